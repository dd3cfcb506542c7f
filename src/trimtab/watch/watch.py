"""The watch: the only place that a trainer talks to. It looks on, writes a run folder, and changes nothing.

watch = Watch("runs/mine")
for batch in batches:
    watch.batch(reward=reward, group=group, row=row, advantage=advantage)        # once per batch, if you have it
    for micro in batch:
        logp = model(micro)
        watch.micro_batch(logp_current=logp, mask=mask, logp_old=old, logp_rollout=rollout, row=rows)
        loss(logp).backward()
    optimizer.step()
    logger.log(watch.step())                                                     # metrics under trimtab/
watch.close()
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import ConfigError, SignalError
from trimtab.sentinel.live import Guard
from trimtab.signal.metrics import Metrics
from trimtab.watch import folder as disk
from trimtab.watch.company import unequal
from trimtab.watch.finding import Finding, new, sentence
from trimtab.watch.harmless import LOG, harmless, note
from trimtab.watch.hold import Held, hold
from trimtab.watch.judge import Said, judge
from trimtab.watch.step import Batch, Pending, settle
from trimtab.watch.trend import Trend

SELDOM = 20
"""The rarest that a step is watched whole."""


class Watch:
    """Watches one run, on one rank."""

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 1,
        where: str = "watch",
        about: Mapping[str, object] | None = None,
        rank: int = 0,
        ranks: int = 1,
        strict: bool = False,
        dump_every: int = 0,
        dump_ids: bool = False,
        dump_bytes: int = 256 * 2**20,
    ) -> None:
        """`every`: of how many steps one is watched whole, at most 20; of the first steps, those at powers of two too.
        `about`: what config.json says of the run (`recipe`, `task`, …).
        `dump_every`: of how many steps one is dumped, 0 for none; `dump_ids`: with token ids, which are text;
        `dump_bytes`: all dumps of a rank together stay below this."""
        if not 1 <= every <= SELDOM:
            raise ConfigError(
                f"watch: every = {every}, and at least every {SELDOM}th step is watched whole, so that a fault is seen "
                f"soon. Give a number from 1 to {SELDOM}."
            )
        self.folder: Path = Path(folder)
        self.every: int = every
        self.where: str = where
        self.rank: int = rank
        self.ranks: int = ranks
        self.strict: bool = strict
        self.findings: list[Finding] = []
        self.failures: list[str] = []
        self.guard: Guard = Guard(every=0)
        self.seconds: float = 0.0
        self.number: int = 0
        self.watched: int = 0
        self.tokens: int = 0
        self._dump: tuple[int, bool, int] = (dump_every, dump_ids, dump_bytes)
        self._dumped: int = 0
        self._batch: Batch | None = None
        self._over: list[tuple[Batch, int]] = []
        self._open: Pending = Pending(0, is_whole=True)
        self._waiting: list[Pending] = []
        self._trend: Trend = Trend()
        self.accumulation: int = 1
        self._is_closed: bool = False
        self._begin(about or {})

    @property
    def is_whole(self) -> bool:
        """Whether the step that is under way is watched whole."""
        return self._open.is_whole

    @harmless(lambda: None)
    def batch(
        self,
        *,
        reward: Tensor | None = None,
        group: Tensor | None = None,
        row: Tensor | None = None,
        advantage: Tensor | None = None,
        normalize: Mapping[str, Any] | None = None,
    ) -> None:
        """A batch of rollouts, before it is cut: rewards and groups of all ranks, own rows, and their advantage.

        `normalize`: how the trainer compares rewards, in the settings of `normalize.mean_std`; without it, advantages
        are not compared with rewards.
        """
        self._close_batch()
        fields = {"reward": reward, "group": group, "row": row, "advantage": advantage}
        self._batch = Batch(hold(fields, {"normalize": None if normalize is None else dict(normalize)}))

    @harmless(lambda: None)
    def micro_batch(self, *, mask: Tensor, row: Tensor | None = None, **given: Any) -> None:
        """One micro-batch: fields [rows, width] or [rows] by their names, and facts in plain numbers.

        Fields: logp_current, logp_old, logp_rollout, logp_ref, entropy, advantage, importance, keep, ids, prompt_ids,
        prompt_mask, denominator. If logp_current has a gradient, the one that arrives at it is watched too.
        Facts: updates (optimiser steps since logp_old was computed), accumulation (micro-batches per step),
        corrections (what is switched on: importance, rejection), has_old.
        """
        fields: dict[str, Tensor | None] = {"row": row}
        facts: dict[str, Any] = {}
        if self._open.is_whole:
            fields["mask"] = mask
            for name, value in given.items():
                if value is not None:
                    (fields if isinstance(value, Tensor) else facts)[name] = value
            self.accumulation = int(facts.get("accumulation", 1))
        held = hold(fields, facts)
        self._open.parts.append((held, self._batch))
        current = given.get("logp_current")
        if self._open.is_whole and isinstance(current, Tensor) and current.requires_grad:
            self._hook(current, held)

    def unwritten(self, fields: Mapping[str, object]) -> AbstractContextManager[object]:
        """While this is open, nobody may write into these tensors in place."""
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        return self.guard.step(batch=tensors) if self._open.is_whole else nullcontext()

    @harmless(dict[str, float])
    def step(self) -> dict[str, float]:
        """The optimiser has stepped. Returns the newest metrics, under `trimtab/`; empty where there are none."""
        started = time.perf_counter()
        self._waiting.append(self._open)
        self.number += 1
        self._open = Pending(self.number, is_whole=self._is_due(self.number))
        numbers: dict[str, float] = {}
        try:
            while self._waiting and self._waiting[0].is_here:
                numbers = self._settle(self._waiting.pop(0)) or numbers
            self._check_rows()
        finally:
            self.seconds += time.perf_counter() - started
        return {f"trimtab/{name}": value for name, value in numbers.items()}

    @harmless(lambda: None)
    def close(self) -> None:
        """Settle what is under way, merge the ranks, and write summary and report."""
        if self._is_closed:
            return
        self._is_closed = True
        for pending in self._waiting:
            pending.wait()
            _ = self._settle(pending)
        self._waiting.clear()
        if self.ranks > 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()
        if self.rank == 0:
            from trimtab.watch.finish import finish

            finish(self)

    def say(self, found: Iterable[Said], step: int) -> None:
        """Keep findings that are new: in the folder, and in the log of rank 0."""
        fresh = new((Finding(name, step, text) for name, text in found), self.findings)
        for one in fresh:
            self.findings.append(one)
            path = "findings.jsonl" if self.rank == 0 else f"ranks/findings_{self.rank:04d}.jsonl"
            disk.append_line(self.folder / path, one.as_json())
            if self.rank == 0:
                LOG.warning("step %d: %s: %s", one.step, one.name, one.text)
        if fresh and self.strict:
            raise SignalError(f"step {fresh[0].step}: {fresh[0].name}: {fresh[0].text}")

    def _begin(self, about: Mapping[str, object]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            own = {"every": self.every, "ranks": self.ranks, "dump_every": self._dump[0], "dump_ids": self._dump[1]}
            if self.rank == 0:
                disk.write_json(self.folder / "config.json", {**about, "watch": own})
                disk.write_json(self.folder / "manifest.json", disk.manifest())
        except OSError as error:
            if self.strict:
                raise
            note(self, "open", error)

    def _is_due(self, number: int) -> bool:
        return number % self.every == 0 or (number < self.every and number & (number - 1) == 0)

    def _hook(self, current: Tensor, held: Held) -> None:
        def look(gradient: Tensor) -> None:
            try:
                scale = float(held.facts.get("grad_scale", 1.0))
                held.add("gradient", gradient if scale == 1.0 else gradient / scale)
            except Exception as error:
                note(self, "gradient", error)

        _ = current.register_hook(look)

    def _settle(self, pending: Pending) -> dict[str, float]:
        pending.count_rows()
        self._hear_guard(pending.number)
        if not pending.is_whole or not pending.parts:
            return {}
        metrics = settle(pending)
        self._write_dump(pending)
        numbers = metrics.numbers()
        self.watched += 1
        self.tokens += int(numbers.get("watch/tokens", 0))
        shown = self._write(pending.number, metrics, numbers)
        found = judge(numbers, self.where, self.accumulation)
        self.say([*found, *self._trend.observe(pending.number, numbers, self.where)], pending.number)
        return shown

    def _write(self, step: int, metrics: Metrics, numbers: Mapping[str, float]) -> dict[str, float]:
        shown = disk.shown(numbers)
        if self.ranks > 1:
            disk.append_rank(self.folder, self.rank, step, metrics)
        if self.rank == 0:
            disk.append_line(self.folder / "metrics.jsonl", {"step": step, **shown})
            line = disk.histogram_line(step, metrics)
            if line is not None:
                disk.append_line(self.folder / "diagnostics.jsonl", line)
        return shown

    def _write_dump(self, pending: Pending) -> None:
        every, with_ids, most = self._dump
        if not every or pending.number % every:
            return
        text = ("ids", "prompt_ids", "prompt_mask")
        for part, (held, batch) in enumerate(pending.parts):
            kept = {name: values for name, values in held.fields.items() if with_ids or name not in text}
            about: dict[str, object] = {"facts": held.facts}
            if batch is not None:
                kept |= {f"batch.{name}": values for name, values in batch.held.fields.items()}
                about |= batch.held.facts
            size = disk.write_dump(self.folder, pending.number, self.rank, part, kept, about, most - self._dumped)
            self._dumped += size

    def _hear_guard(self, step: int) -> None:
        """Alarms of the live guard, as findings."""
        told = [
            (
                "input_written",
                sentence(self.where, alarm.text.partition(". trimtab")[0], "later passes see other numbers",
                         "Compute into a new tensor"),
            )
            for alarm in self.guard.alarms
        ]  # fmt: skip
        self.say(told, step)

    def _close_batch(self) -> None:
        """A batch is over when the next begins."""
        if self._batch is not None and "row" in self._batch.held.fields:
            self._over.append((self._batch, self.number))
        self._check_rows()

    def _check_rows(self) -> None:
        """Each row of a batch that is over must have trained as often as the others."""
        oldest = min((pending.number for pending in self._waiting), default=self.number)
        ready = [batch for batch, number in self._over if number <= oldest and batch.seen]
        self._over = [(batch, number) for batch, number in self._over if number > oldest]
        for batch in ready:
            less, more = unequal(batch.seen, batch.held.fields["row"].numpy())
            for name, count, how, so in (
                ("rows_lost", less, "less", "their tokens are lost"),
                ("rows_duplicated", more, "more", "they count twice"),
            ):
                told = f"{count} rows of one batch trained {how} often than the others"
                do = "Look at how batches are cut and shuffled"
                self.say([(name, sentence(self.where, told, so, do))] if count else [], self.number)

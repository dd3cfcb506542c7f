"""The only place that turns tickets into rollouts: an episode for every sample, a reward for each as it ends, groups.

It does not know batches, staleness or the learner; it runs beside the learner or in a process of its own.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor

from trimtab.rollout.engine import AsyncEngine, Engine, Greedy, Sample, Sampling
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather_groups
from trimtab.rollout.judge import Judge
from trimtab.rollout.loop import Loop
from trimtab.rollout.play import Played, Player
from trimtab.rollout.publication import Publication
from trimtab.rollout.reward import Scorer, Verdict
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.seal import seal_samples
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.stepped import ANY_NUMBER, as_async
from trimtab.rollout.task import Problem, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Result = TypeVar("Result")


@dataclass
class Collector:
    """Tickets in, rollouts out. `seed` is the run's; every answer draws from (seed, ticket, sample, turn)."""

    task: Task
    scorer: Scorer
    engine: Engine | AsyncEngine
    tokenizer: "PreTrainedTokenizerFast"
    how: Sampling
    samples_per_prompt: int
    max_turns: int
    seed: int
    episode_seconds: float = 0.0
    loop: Loop = field(init=False, default_factory=Loop)

    def __post_init__(self) -> None:
        self._engine: AsyncEngine = as_async(self.engine)
        self._judge: Judge = Judge(self.scorer)
        room = asyncio.Semaphore(self._engine.slots) if self._engine.slots < ANY_NUMBER else nullcontext()
        self._player: Player = Player(
            self.task, self._engine, self.tokenizer, self.max_turns, self.episode_seconds, room
        )

    def collect(self, tickets: Sequence[int]) -> Rollouts:
        """One group for each ticket, in their order. It returns when all are complete: nothing is left in flight."""
        return self.loop.run(self.groups(tickets))

    def play(self, problems: Sequence[Problem], seeds: Sequence[int], how: Sampling | Greedy) -> list[Played]:
        """One attempt at each problem."""
        opened = self._open(problems, seeds, [(place,) for place in range(len(problems))])
        self.loop.run(_together([self._player.play(one, how) for one in opened]))
        return opened

    def load(self, publication: Publication) -> None:
        """Give the engine new parameters. What it is answering is stopped, stamped and asked for anew."""
        _ = self.loop.run(self._engine.load(publication))

    async def load_beside(self, publication: Publication) -> int:
        """The same for coroutines of this collector's loop."""
        return await self._engine.load(publication)

    async def groups(self, tickets: Sequence[int]) -> Rollouts:
        """One group for each ticket, in their order, beside whatever else runs.

        A reward that is computed elsewhere starts with its answer. One that is computed here would only hold the others
        up, so those of an order are computed together.
        """
        problems = [self.task.train(ticket) for ticket in tickets]
        numbers = range(self.samples_per_prompt)
        opened = self._open(
            [problem for problem in problems for _ in numbers],
            [stream_seed(self.seed, "rollout", ticket, number) for ticket in tickets for number in numbers],
            [(ticket, number) for ticket in tickets for number in numbers],
        )
        verdicts = await _together([self._played(one) for one in opened])
        episodes = [_episode(one, verdict) for one, verdict in zip(opened, self._judged(opened, verdicts), strict=True)]
        return gather_groups(tickets, [problem.text for problem in problems], episodes)

    def close(self) -> None:
        """End the event loop, the rewards' processes, and whatever is in flight."""
        self.loop.close()
        self._judge.close()

    def _open(
        self, problems: Sequence[Problem], seeds: Sequence[int], orders: Sequence[tuple[int, ...]]
    ) -> list[Played]:
        opened: list[Played] = []
        for problem, seed, order in zip(problems, seeds, orders, strict=True):
            opened.append(self._player.open(problem, seed, order, opened[-1] if opened else None))
        return opened

    async def _played(self, one: Played) -> Verdict | None:
        """Play an episode; the verdict if it is known then."""
        await self._player.play(one, self.how)
        if one.status != "ok":
            return Verdict.failed(one.status, one.message)
        return await self._judge.verdict(one.attempt) if self._judge.waits else None

    def _judged(self, played: Sequence[Played], verdicts: Sequence[Verdict | None]) -> list[Verdict]:
        """All verdicts, with those that were not known yet."""
        open_ones = [one.attempt for one, verdict in zip(played, verdicts, strict=True) if verdict is None]
        found = iter(self.scorer.score(open_ones) if open_ones else ())
        return [next(found) if verdict is None else verdict for verdict in verdicts]


async def _together(work: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run them side by side. If one fails, the others are cancelled and its error travels."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            _ = task.cancel()
        _ = await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _episode(one: Played, verdict: Verdict) -> Episode:
    samples = one.samples
    return Episode(
        ids=one.ids,
        trainable=one.trainable,
        logp=samples[0].logp if len(samples) == 1 else _joined([one.logp for one in samples]),
        version=[version for sample in samples for version in sample.version],
        turn=[number for number, sample in enumerate(samples) for _ in sample.ids],
        ended=one.ended,
        reward=verdict.reward,
        status=verdict.status,
        message=verdict.message,
        support=_support(samples),
        seal=seal_samples(samples),
    )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if parts else torch.zeros(0)


def _support(samples: Sequence[Sample]) -> tuple[list[int], list[int]] | None:
    if any(sample.support is None for sample in samples):
        return None
    tokens = [ids for sample in samples for ids in cast("tuple[tuple[int, ...], ...]", sample.support)]
    return [token for ids in tokens for token in ids], [len(ids) for ids in tokens]

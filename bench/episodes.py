"""Do episodes that do not wait for one another pay? Tokens per second of coroutines against lockstep.

    python -m bench.episodes                 both tasks, five rounds; about three minutes on one core
    python -m bench.episodes --rounds 3 --only calculator
    python -m bench.episodes --write         and put the table into docs/performance.md

Both ways sample the same prompts with the same model, and get new parameters before every batch (the same numbers under
a new version). Coroutines run as in a sampler process: buffer, pool, orders, parameters that arrive in the middle of
answers. Lockstep is how it was done before: a batch at a time, turn by turn. Both end with a batch of rollouts from a
buffer. The learner takes no time.

Seconds are the process's CPU time: neither way ever idles, and other work on the machine does not count.

The ideal is a cost model's (`ideal.py`), over the answers that lockstep drew. What lockstep takes beside its engine
(prompts, texts, rewards, rollouts, parameters) no order of the answers saves, so the ideal takes it too. What
coroutines take beyond that counts against them. The share of the ideal is the median over rounds.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from bench import lockstep
from bench.ideal import Work, ideal_seconds, lockstep_seconds, measured_cost
from bench.timing import busy
from trimtab.config.train import ModelSettings, TaskSettings, TrainSettings
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.collect import Collector
from trimtab.rollout.play import Played
from trimtab.rollout.publication import Publication
from trimtab.train.policy import Policy, published
from trimtab.train.runtimes.beside import Beside
from trimtab.train.runtimes.worker import Local
from trimtab.train.setup import engine_slots, new_collector, new_engine, task_and_policy, worker_room
from trimtab.train.study.table import half_width
from trimtab.train.warmstart import warm_start

MODEL = ModelSettings()
"""The default one, 0.13 million parameters."""
COMMON = {"model": MODEL, "prompts_per_step": 4, "samples_per_prompt": 8, "runtime": "processes"}
TASKS = {
    "long tail": TrainSettings(
        task=TaskSettings(name="calculator", size=9, max_turns=1), max_new_tokens=192, warm_start_steps=0, staleness=4,
        **COMMON,
    ),
    "calculator": TrainSettings(
        task=TaskSettings(name="calculator", size=9), max_new_tokens=32, warm_start_steps=60, staleness=4, **COMMON
    ),
}  # fmt: skip
BATCHES = 16
WARM = 6
"""Batches before the clock starts: a batch that begins with an empty engine is not what a run is made of."""
DOC = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
MARK = "<!-- bench.episodes -->"


def prepared(settings: TrainSettings) -> Policy:
    _, policy = task_and_policy(settings)
    if settings.warm_start_steps:
        _ = warm_start(policy, settings)
    return policy


def new(policy: Policy, settings: TrainSettings) -> Collector:
    return new_collector(policy, settings, engine=new_engine(policy, settings, slots=engine_slots(settings)))


@dataclass(frozen=True)
class Lockstep:
    """What a run in lockstep gave: its speed, what was sampled, and its seconds beside the engine."""

    tokens_per_second: float
    work: list[list[Work]]
    beside: float
    engine: float


def in_lockstep(policy: Policy, settings: TrainSettings) -> Lockstep:
    """A batch at a time through the same buffer."""
    collector, buffer = new(policy, settings), Buffer(settings.prompts_per_step, staleness=0)
    state, tokens, began, work = published(policy.model), 0, 0.0, list[list[Work]]()
    engine = _Watched(collector.engine)
    for version in range(WARM + BATCHES):
        if version == WARM:
            began, engine.seconds = time.process_time(), 0.0
        collector.load(Publication(version, state).copy())
        rollouts, played = lockstep.collect(collector, buffer.admit(version))
        buffer.put(rollouts)
        taken = buffer.take()
        assert taken is not None
        work.append([_work(one) for one in played])
        if version >= WARM:
            tokens += taken[0].num_tokens
    seconds = time.process_time() - began
    collector.close()
    return Lockstep(tokens / seconds, work, seconds - engine.seconds, engine.seconds)


def _work(one: Played) -> Work:
    """What an episode read and wrote, and where its turns are."""
    turns, place = list[tuple[int, int]](), 0
    for sample in one.samples:
        begin = one.trainable.index(True, place)
        place = begin + len(sample.ids)
        turns.append((begin, place))
    return Work(tuple(one.ids), tuple(turns))


class _Watched:
    """Counts the seconds of an engine's answers."""

    def __init__(self, engine: Any) -> None:
        self.seconds: float = 0.0
        self._sample: Any = engine.sample
        engine.sample = self.sample

    def sample(self, *given: Any) -> Any:
        began = time.process_time()
        try:
            return self._sample(*given)
        finally:
            self.seconds += time.process_time() - began


def in_coroutines(policy: Policy, settings: TrainSettings) -> float:
    """Tokens per second of the runtime itself, with a worker in this process."""
    collector = new(policy, settings)
    buffer = Buffer(settings.prompts_per_step, settings.staleness)
    runtime = Beside(lambda _, hear: Local(collector, hear), buffer, workers=1, room=worker_room(settings))
    state, tokens, began = published(policy.model), 0, 0.0
    for version in range(WARM + BATCHES):
        runtime.publish(Publication(version, state))
        delivered = runtime.batch(lambda rollouts: rollouts)
        assert delivered is not None
        if version >= WARM:
            tokens += delivered.rollouts.num_tokens
        if version == WARM - 1:
            began = time.process_time()
    seconds = time.process_time() - began
    runtime.close()
    return tokens / seconds


def table(rounds: int, names: Sequence[str]) -> list[str]:
    lines = [
        "| | lockstep tokens/s | coroutines tokens/s | ratio | ideal | share of the ideal |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in names:
        settings = TASKS[name]
        policy = prepared(settings)
        pairs: list[tuple[float, float]] = []
        ideals: list[float] = []
        work: list[list[Work]] = []
        for number in range(rounds):
            costs = measured_cost(policy, settings)
            before = in_coroutines(policy, settings) if number % 2 else None
            old = in_lockstep(policy, settings)
            work = old.work
            pairs.append((old.tokens_per_second, before or in_coroutines(policy, settings)))
            best = ideal_seconds(work, costs, settings, WARM)
            model = lockstep_seconds(work[WARM:], costs)
            ideals.append((model + old.beside) / (best + old.beside))
            print(f"{name}: round {number}: {pairs[-1][0]:.0f} {pairs[-1][1]:.0f} tokens/s, "
                  f"ratio {pairs[-1][1] / pairs[-1][0]:.2f}, ideal {ideals[-1]:.2f}; lockstep's engine took "
                  f"{old.engine:.2f} s, {model:.2f} by the model, ideal {best:.2f}; {costs}", flush=True)  # fmt: skip
        lengths = [one.num_tokens for batch in work for one in batch]
        turns = mean(len(one.turns) for batch in work for one in batch)
        ratios = [new / old for old, new in pairs]
        shares = [ratio / best for ratio, best in zip(ratios, ideals, strict=True)]
        width = half_width(ratios)
        told = f"{mean(ratios):.2f}" + (f" ± {width:.2f}" if width is not None else "")
        lines.append(
            f"| {name}: {turns:.1f} turns, {mean(lengths):.0f} tokens per episode, {max(lengths)} at most | "
            f"{mean(old for old, _ in pairs):.0f} | {mean(new for _, new in pairs):.0f} | {told} | "
            f"{mean(ideals):.2f} | {100 * median(shares):.0f} % |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--rounds", type=int, default=5)
    _ = parser.add_argument("--only", choices=list(TASKS))
    _ = parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if told := busy():
        print(f"warning: {told}, so ratios are not to be trusted")
    lines = table(asked.rounds, [asked.only] if asked.only else list(TASKS))
    print("\n".join(lines))
    if asked.write:
        before, mark, rest = DOC.read_text().partition(MARK)
        _, _, after = rest.partition("\n\n")
        _ = DOC.write_text(before + mark + "\n" + "\n".join(lines) + "\n\n" + after)


if __name__ == "__main__":
    main()

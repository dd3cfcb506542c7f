"""What only several steps show: the only place of the watch that compares one step with another.

A sampler that is never updated drifts away from the trainer; a correction that never changes anything is inert; and a
sampler that differs from the trainer, without a correction, is left uncorrected.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from trimtab.watch.finding import sentence
from trimtab.watch.judge import FEW_ROWS, SIGMAS, Said, moments

GROWN = 3.0
"""A drift that has grown by less may be the sampler's rounding on another part of the task."""
SEEN = 2e-3
"""Mean |log-ratio| below which a growing drift does no harm."""
STILL, RISING = 1.25, 2.0
"""How much larger it is in the last third of the looks than in the middle one: as a factor, and in standard errors."""
SPAN = 16
"""Steps over which a drift has to grow: a sampler that is renewed every few steps, or whose staleness is still ramping
up, has fallen back or come to rest by then."""
STEPS, LOOKS = 16, 4
"""Optimiser steps, and steps watched whole among them, after which an option without effect counts as inert."""

Gap = tuple[int, float, float, float]
"""A look: step, number of sequences, and mean and standard error of their |old - rollout| per token."""


@dataclass
class Trend:
    """What is kept of earlier steps."""

    gaps: list[Gap] = field(default_factory=list[Gap])
    effects: dict[str, list[tuple[int, float]]] = field(default_factory=dict[str, list[tuple[int, float]]])

    def observe(self, step: int, numbers: Mapping[str, float], where: str) -> list[Said]:
        """Add a step and say what it shows together with the others."""
        n, mean, apart = moments(lambda name: numbers.get(f"evidence/{name}", 0.0), "engine/gap")
        if n >= FEW_ROWS:
            self.gaps.append((step, n, mean, apart / math.sqrt(n)))
        for name in _switched_on(numbers):
            changed = numbers[f"evidence/effect/{name}/changed"]
            self.effects.setdefault(name, []).append((step, changed))
        return [*self._frozen(where), *self._inert(where)]

    def _frozen(self, where: str) -> Iterator[Said]:
        """Does the drift grow from the first look to the last, and has it not stopped growing?"""
        if len(self.gaps) < LOOKS or self.gaps[-1][0] - self.gaps[0][0] < SPAN:
            return
        first, last, third = self.gaps[0], self.gaps[-1], len(self.gaps) // 3
        middle, end = _mean(self.gaps[third : len(self.gaps) - third]), _mean(self.gaps[len(self.gaps) - third :])
        if end[2] < SEEN or end[2] < GROWN * first[2]:
            return
        is_growing = end[2] > STILL * middle[2] and _sigmas(middle, end) > RISING
        rises = sum(_sigmas(a, b) > -3.0 for a, b in zip(self.gaps, self.gaps[1:], strict=False))
        if _sigmas(first, end) > SIGMAS and is_growing and rises == len(self.gaps) - 1:
            yield (
                "engine_frozen",
                sentence(
                    where, f"the sampler was {first[2]:.2g} per token from the trainer at step {first[0]} and is "
                    f"{last[2]:.2g} at step {last[0]}, growing with every update",
                    "the sampler does not get the new weights", "Check that each update reaches the engine",
                ),
            )  # fmt: skip

    def _inert(self, where: str) -> Iterator[Said]:
        for name, seen in self.effects.items():
            first, last = seen[0][0], seen[-1][0]
            if len(seen) >= LOOKS and last - first + 1 >= STEPS and not any(changed for _, changed in seen):
                yield (
                    f"inert_{name}",
                    sentence(
                        where, f"the correction `{name}` is switched on and has changed nothing in {last - first + 1} "
                        f"steps ({len(seen)} of them watched whole)", "nothing is corrected",
                        "Look at its threshold and at what it compares, or switch it off",
                    ),
                )  # fmt: skip


def _switched_on(numbers: Mapping[str, float]) -> list[str]:
    start, end = "evidence/effect/", "/of"
    return [
        name.removeprefix(start).removesuffix(end)
        for name, of in numbers.items()
        if name.startswith(start) and name.endswith(end) and of > 0
    ]


def _sigmas(before: Gap, after: Gap) -> float:
    error = math.hypot(before[3], after[3])
    return (after[2] - before[2]) / error if error > 0 else math.copysign(math.inf, after[2] - before[2])


def _mean(gaps: list[Gap]) -> Gap:
    """Several looks as one."""
    n, error = sum(gap[1] for gap in gaps), math.hypot(*(gap[3] for gap in gaps)) / len(gaps)
    return gaps[-1][0], n, sum(gap[2] for gap in gaps) / len(gaps), error

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
STEPS, LOOKS = 16, 4
"""Optimiser steps, and steps watched whole among them, after which an option without effect counts as inert."""


@dataclass
class Trend:
    """What is kept of earlier steps."""

    gaps: list[tuple[int, float, float, float]] = field(default_factory=list[tuple[int, float, float, float]])
    """Step, number of sequences, and mean and standard error of their |old - rollout| per token."""
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
        if len(self.gaps) < LOOKS:
            return
        first, middle, last = self.gaps[0], self.gaps[len(self.gaps) // 2], self.gaps[-1]
        if last[2] < SEEN or last[2] < GROWN * first[2]:
            return
        is_sure = _sigmas(first, last) > SIGMAS and _sigmas(middle, last) > 0
        rises = sum(_sigmas(a, b) > -3.0 for a, b in zip(self.gaps, self.gaps[1:], strict=False))
        if is_sure and rises == len(self.gaps) - 1:
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


def _sigmas(before: tuple[int, float, float, float], after: tuple[int, float, float, float]) -> float:
    error = math.hypot(before[3], after[3])
    return (after[2] - before[2]) / error if error > 0 else math.copysign(math.inf, after[2] - before[2])

"""The same batch on one process and on two processes that communicate."""

from dataclasses import replace

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.calling import Seen
from trimtab.sentinel.binding.sameness import SINGLE, same
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.apart import differing
from trimtab.sentinel.invariants.declare import Violation, invariant
from trimtab.sentinel.invariants.pool import Pool

_POOLS: dict[int, tuple[Subject, Pool, Pool]] = {}
"""Worker pools of the current subject; `close_pools` ends them."""


@invariant(
    family="I08",
    statement="Loss, gradient, statistics and decisions do not depend on how many processes share the batch.",
    why="If means per rank are averaged, a token's weight depends on its rank. "
    "A statistic over half of a batch differs from one over the whole batch.",
    bug="slime c1dd9ab24: each context-parallel rank whitened its own half of a sequence.",
    repair="Reduce sums and counts over the process group that shares the data, then divide. "
    "Multiply by the size of the group where gradients are averaged.",
)
def parallel_layout(subject: Subject, case: Case) -> Violation | None:
    if subject.ranks is None:
        raise case.cannot("its binding names no process group")
    if case.num_sequences < 2:
        raise case.cannot("there is one sequence for two processes")
    alone, pair = _pools(subject)
    everything = list(range(case.num_sequences))
    (one,) = alone.run(case, [everything])
    half = max(1, case.num_sequences // 3)
    rows = [everything[:half], everything[half:]] if subject.ranks == "data" else [everything, everything]
    two = pair.run(case, rows)
    for name, result in one.results.items():
        scalar = result.level == "scalar"
        if scalar and not result.adds_up:
            found = [t.values[name] for t in two]
            wrong = next((v for v in found if not same(one.values[name], v, tolerance=SINGLE)), None)
            if wrong is not None:
                return differing(f"two processes change {name}", result, one.values[name], wrong)
            continue
        whole = _merged(subject, two, name, result.level)
        if whole is not None and not same(one.values[name], whole, tolerance=1e-7):
            return differing(f"two processes change {name}", result, one.values[name], whole)
        found_gradient = _gradients(subject, one, two, name) if scalar else None
        if found_gradient:
            return found_gradient
    return None


def _merged(subject: Subject, two: list[Seen], name: str, level: str) -> Tensor | None:
    values = [t.values[name] for t in two]
    if level == "scalar":
        total = torch.stack(values).sum()
        if callable(subject.combine):
            return subject.combine(values, [t.case for t in two])
        return total if subject.combine in ("sum", None) else total / len(values)
    if subject.ranks == "data":
        return torch.cat(values)
    # With one sequence over two processes, each marks what it does not own with NaN.
    return torch.where(values[0].isnan(), values[1], values[0])


def _gradients(subject: Subject, one: Seen, two: list[Seen], name: str) -> Violation | None:
    factor = 0.5 if subject.combine in ("mean", "mean over ranks") else 1.0
    for leaf, gradient in one.gradients.get(name, {}).items():
        if any(name not in t.gradients for t in two):
            return Violation(f"on one of two processes {name} has no gradient", "no gradient", "a gradient")
        pieces = [factor * t.gradients[name][leaf] for t in two]
        found = torch.cat(pieces) if subject.ranks == "data" else pieces[0] + pieces[1]
        if not same(gradient, found, tolerance=1e-7):
            return differing(f"two processes change d {name} / d {leaf}", one.results[name], gradient, found)
    return None


def _pools(subject: Subject) -> tuple[Pool, Pool]:
    held = _POOLS.get(0)
    if held is None or held[0] is not subject:
        close_pools()
        plain = replace(subject)
        held = (subject, Pool(plain, 1), Pool(plain, 2))
        _POOLS[0] = held
    return held[1], held[2]


def close_pools() -> None:
    """End the workers of the last subject."""
    held = _POOLS.pop(0, None)
    if held is not None:
        for pool in held[1:]:
            pool.__exit__()

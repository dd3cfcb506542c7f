"""Shrink a counter-example: fewer sequences, fewer tokens, rounder numbers, as long as the violation stays.

The search is greedy. Its limit is a number of attempts and not a time, so that it always gives the same smallest case.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, without_token
from trimtab.sentinel.invariants.declare import Violation

ATTEMPTS = 160
"""Largest number of smaller cases to try."""

Attempt = Callable[[Case], Violation | None]


def smallest(case: Case, violation: Violation, attempt: Attempt) -> tuple[Case, Violation]:
    """The smallest case that still shows a violation of the same grade and severity."""
    left = ATTEMPTS
    best = (case, violation)
    for step in (_fewer_sequences, _fewer_tokens, _rounder_fields, _rounder_numbers):
        again = True
        while again and left > 0:
            again = False
            for smaller in step(best[0]):
                if left <= 0:
                    break
                left -= 1
                found = attempt(smaller)
                if found is not None and _as_bad(found, violation):
                    best, again = (smaller, found), True
                    break
    # How much of the signal it changes is told by the batch it was found on, not by the smallest one.
    return best[0], replace(best[1], effect=violation.effect) if best[1].grade == violation.grade else best[1]


_WORSE = {"high": 2, "medium": 1, "low": 0}


def _as_bad(found: Violation, violation: Violation) -> bool:
    """A bug must not shrink into rounding: a smaller case counts only if its effect on the signal is as large."""
    return found.grade == violation.grade and _WORSE[found.effect.severity] >= _WORSE[violation.effect.severity]


def _fewer_sequences(case: Case) -> Iterator[Case]:
    """Remove a whole group first, because many functions refuse an incomplete one; then a single sequence."""
    groups = case.sequences["group"]
    for name in sorted({int(group) for group in groups}):
        rest = [i for i in range(case.num_sequences) if int(groups[i]) != name]
        if rest:
            yield replace(case.taken(rest, as_part=False), origin=tuple(range(len(rest))))
    for leave in reversed(range(case.num_sequences)):
        rest = [i for i in range(case.num_sequences) if i != leave]
        if rest:
            yield replace(case.taken(rest, as_part=False), origin=tuple(range(len(rest))))


def _fewer_tokens(case: Case) -> Iterator[Case]:
    for place in reversed(range(case.trainable.numel())):
        row = int(case.owner[place])
        if len(case.kinds[row]) > 2:
            yield without_token(case, place)


def _rounder_fields(case: Case) -> Iterator[Case]:
    """Set a whole field to its simplest value."""
    for name, values in case.tokens.items():
        plain = torch.full_like(values, -1.0 if name in LOGPS else 0.0) if values.dtype == torch.float64 else None
        if plain is not None and not torch.equal(plain, values):
            yield case.with_tokens(**{name: plain})
    for name, values in case.sequences.items():
        if values.dtype == torch.float64 and name != "length" and bool((values != 0).any()):
            yield case.with_sequences(**{name: torch.zeros_like(values)})


def _rounder_numbers(case: Case) -> Iterator[Case]:
    """Round one field to a coarser grid, the coarsest first."""
    for name, values in case.tokens.items():
        if values.dtype == torch.float64 and values.ndim == 1:
            for unit in (1.0, 0.5, 0.1):
                rounded = _on_grid(values, unit)
                rounded = rounded.clamp(max=-unit) if name in LOGPS else rounded
                if torch.equal(rounded, values):
                    break
                yield case.with_tokens(**{name: rounded})
    for name, values in case.sequences.items():
        if values.dtype == torch.float64 and name != "length":
            for unit in (1.0, 0.5, 0.1):
                rounded = _on_grid(values, unit)
                if torch.equal(rounded, values):
                    break
                yield case.with_sequences(**{name: rounded})


def _on_grid(values: torch.Tensor, unit: float) -> torch.Tensor:
    """Round to a multiple of the unit, and to a short decimal number."""
    return torch.round(torch.round(values / unit) * unit, decimals=6)

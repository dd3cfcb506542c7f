"""A counter-example made small: fewer sequences, fewer tokens, rounder numbers, as long as the violation stays.

Greedy and counted in attempts, never in seconds, so that the same search gives the same smallest case.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from trimtab.sentinel.case import Case
from trimtab.sentinel.declare import Violation
from trimtab.sentinel.perturb import LOGPS, without_token

ATTEMPTS = 160
"""How often a smaller case is tried."""

Attempt = Callable[[Case], Violation | None]


def smallest(case: Case, violation: Violation, attempt: Attempt) -> tuple[Case, Violation]:
    """The smallest case that still shows a violation of the same grade."""
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
                if found is not None and found.grade == violation.grade:
                    best, again = (smaller, found), step is not _rounder_numbers
                    if again:
                        break
    return best


def _fewer_sequences(case: Case) -> Iterator[Case]:
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
    """A whole field at its simplest value."""
    for name, values in case.tokens.items():
        plain = torch.full_like(values, -1.0 if name in LOGPS else 0.0) if values.dtype == torch.float64 else None
        if plain is not None and not torch.equal(plain, values):
            yield case.with_tokens(**{name: plain})
    for name, values in case.sequences.items():
        if values.dtype == torch.float64 and name != "length" and bool((values != 0).any()):
            yield case.with_sequences(**{name: torch.zeros_like(values)})


def _rounder_numbers(case: Case) -> Iterator[Case]:
    """Every number of a field on a coarser grid."""
    for unit in (1.0, 0.5, 0.1):
        tokens = {
            n: torch.round(v / unit) * unit if n not in LOGPS else torch.clamp(torch.round(v / unit) * unit, max=-unit)
            for n, v in case.tokens.items()
            if v.dtype == torch.float64 and v.ndim == 1
        }
        sequences = {n: torch.round(v / unit) * unit for n, v in case.sequences.items() if v.dtype == torch.float64}
        yield case.with_tokens(**tokens).with_sequences(**sequences)
        for name, values in tokens.items():
            if not torch.equal(values, case.tokens[name]):
                yield case.with_tokens(**{name: values})

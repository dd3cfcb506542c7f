"""A case as plain lists: what reference definitions compute with, and the few reductions that they share."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from trimtab.sentinel.batch.case import Case

LARGEST = 709.0
"""math.exp overflows above this."""

Flags = dict[str, list[bool]]
Answer = tuple[list[float], Mapping[str, list[bool] | list[float]]]
"""One number per token or per sequence, and further results of the formula: observations, a value target."""


@dataclass(frozen=True)
class Plain:
    """A case as lists: one entry per trainable token; `rows` holds the token indices of each sequence."""

    tokens: dict[str, list[float]]
    sequences: dict[str, list[float]]
    rows: list[list[int]]
    row_of: list[int]
    bound: float = math.inf
    """Exponents are held within ± this. Published formulas have no bound; ours are bounded at 20."""

    def exp(self, x: float) -> float:
        held = max(-self.bound, min(self.bound, x))
        return math.exp(held) if held < LARGEST else math.inf

    def __getattr__(self, name: str) -> list[float]:
        found = self.tokens if name in self.tokens else self.sequences
        return found[name]


def plain(case: Case, *, bound: float = math.inf) -> Plain:
    """The trainable tokens of a case, as numbers."""
    row_of = cast("list[int]", case.segments.sequence_of_token.tolist())
    rows = [[t for t, row in enumerate(row_of) if row == i] for i in range(case.num_sequences)]
    tokens = {name: _numbers(values[case.trainable]) for name, values in case.tokens.items()}
    return Plain(tokens, {name: _numbers(values) for name, values in case.sequences.items()}, rows, row_of, bound)


def _numbers(values: Tensor) -> list[float]:
    return cast("list[float]", values.tolist())


def clamp(x: float, band: tuple[float, float]) -> float:
    return min(max(x, band[0]), band[1])


def stdev(values: list[float]) -> float:
    """Standard deviation with ddof 1."""
    centre = sum(values) / len(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))


def each(p: Plain, value: Callable[[int], float]) -> list[float]:
    return [value(t) for t in range(len(p.row_of))]


def row_mean(p: Plain, row: int, value: Callable[[int], float]) -> float:
    chosen = p.rows[row]
    return sum(value(t) for t in chosen) / len(chosen) if chosen else 0.0


def log_ratio(p: Plain, t: int) -> float:
    return p.logp_old[t] - p.logp_rollout[t]


def turn_of(p: Plain, t: int) -> list[int]:
    """The tokens of the turn of a token: its neighbours in its sequence that have the same turn."""
    row = p.rows[p.row_of[t]]
    first = last = row.index(t)
    while first > 0 and p.turn[row[first - 1]] == p.turn[t]:
        first -= 1
    while last + 1 < len(row) and p.turn[row[last + 1]] == p.turn[t]:
        last += 1
    return row[first : last + 1]

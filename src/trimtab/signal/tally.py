"""Counts and sums of many fields at once: the only place that turns fields into the totals that metrics are made of.

What is held per sequence is a row of one table. The product of the table with itself holds the sum of every row among
every other, so however many metrics are asked for, a few operations compute them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.signal.fields import Field
from trimtab.signal.layout import Segments
from trimtab.signal.metric_kind import Mean, Metric, Sum
from trimtab.signal.tensors import Array, Number, is_plain, library, read_if_plain

Slot = tuple[int, int, int]
"""Where a total will stand: what a sequence counts for, and two rows; or NUMBERS, 0, and the place of a number."""

BY_TOKENS, BY_SEQUENCES, NUMBERS = range(3)


class Tally:
    """Ask for shares, means and sums by name; `entries` computes all of them."""

    def __init__(self, segments: Segments) -> None:
        self._segments: Segments = segments
        self._rows: list[Array] = [segments.measures[:, 1]]
        """The first is 1 everywhere: a sum among all."""
        self._places: dict[int, int] = {}
        self._numbers: list[Number] = []
        self._asked: dict[str, tuple[Callable[..., Metric], tuple[Slot, ...]]] = {}

    def share(self, name: str, flags: Field, among: Field | None = None, of: Field | None = None) -> None:
        """The share of flagged tokens: of all, or among some; `of`: these are what the share is of."""
        total = self._flagged(flags, among)
        self._asked[name] = _share, (total, self.count(among if of is None else of))

    def share_of_sequences(self, name: str, flags: Array, among: Array | None = None) -> None:
        """The share of flagged sequences."""
        place = 0 if among is None else self._row(among)
        self._asked[name] = _share, ((BY_SEQUENCES, self._row(flags), place), (BY_SEQUENCES, place, place))

    def mean(self, name: str, values: Field, among: Field | None = None) -> None:
        """The mean over tokens, of all or among some."""
        self._asked[name] = Mean, (self._sum(values, among), self.count(among))

    def sum(self, name: str, values: Field, among: Field | None = None) -> None:
        self._asked[name] = Sum, (self._sum(values, among),)

    def sum_of_count(self, name: str, flags: Field) -> None:
        self._asked[name] = Sum, (self.count(flags),)

    def sum_of_sequences(self, name: str, flags: Array) -> None:
        self._asked[name] = Sum, ((BY_SEQUENCES, self._row(flags), 0),)

    def number(self, name: str, kind: Callable[..., Metric], *numbers: Number) -> None:
        """A metric whose numbers are known already."""
        self._asked[name] = kind, tuple(self._known(one) for one in numbers)

    def same(self, name: str, other: str) -> None:
        """A second name for what was asked for before."""
        self._asked[name] = self._asked[other]

    def count(self, flags: Field | None) -> Slot:
        """How many tokens are flagged; without flags, how many there are."""
        if flags is None:
            return BY_TOKENS, 0, 0
        return self._flagged(flags, None)

    def entries(self) -> dict[str, Metric]:
        """Every metric that was asked for, in that order."""
        found = self._products()
        return {
            name: kind(*[found[what][first][second] for what, first, second in slots])
            for name, (kind, slots) in self._asked.items()
        }

    def _flagged(self, flags: Field, among: Field | None) -> Slot:
        """How many tokens have both flags. Flags of tokens are counted per sequence once, whoever asks."""
        if flags.is_shared and (among is None or among.is_shared):
            return BY_TOKENS, self._row(flags.values), 0 if among is None else self._row(among.values)
        if among is None:
            return self._known(_count_of(flags.values))
        if among.is_shared:
            return BY_SEQUENCES, self._row(flags.tally), self._row(among.values)
        if flags.is_shared:
            return BY_SEQUENCES, self._row(among.tally), self._row(flags.values)
        return self._known(_count_of(flags.values & among.values))

    def _sum(self, values: Field, among: Field | None) -> Slot:
        if not values.is_shared:
            chosen = values if among is None else values.where(among)
            return self._known(read_if_plain(chosen.values.sum(dtype=torch.float64)))
        if among is None or among.is_shared:
            return BY_TOKENS, self._row(values.values), 0 if among is None else self._row(among.values)
        return BY_SEQUENCES, self._row(values.values), self._row(among.tally)

    def _row(self, values: Array) -> int:
        """The place of an array in the table, which holds it, so that its id stays its own."""
        place = self._places.get(id(values))
        if place is None:
            place = self._places[id(values)] = len(self._rows)
            self._rows.append(values)
        return place

    def _known(self, number: Number) -> Slot:
        self._numbers.append(number)
        return NUMBERS, 0, len(self._numbers) - 1

    def _products(self) -> list[Any]:
        """[what][row][row]: the sum of one row among another, by tokens and by sequences; then the numbers."""
        segments, lib = self._segments, library(self._rows[0])
        table = lib.concatenate(self._rows).reshape(len(self._rows), segments.num_sequences)
        pairs = [(table * segments.measures[:, 0]) @ table.T, table @ table.T]
        if isinstance(table, Tensor):
            return [*([row.unbind() for row in one] for one in pairs), [self._numbers]]
        return [*(one.tolist() for one in pairs), [self._numbers]]


def _share(total: Number, count: Number) -> Mean:
    return Mean(total, count, absent=False)


def _count_of(flags: Tensor) -> Number:
    return float(np.count_nonzero(flags.numpy())) if is_plain(flags) else flags.count_nonzero()

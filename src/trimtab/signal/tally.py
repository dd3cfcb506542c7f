"""Counts and sums of many fields at once: the only place that turns fields into the totals that metrics are made of.

What is held per sequence is counted by the number of its tokens, in one product for all of it. However many metrics are
asked for, a few operations compute them.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor

from trimtab.signal.fields import Field
from trimtab.signal.layout import Segments
from trimtab.signal.metrics import Mean, Metric, Sum
from trimtab.signal.tensors import Array, Number, is_plain, library, read_if_plain

Slot = tuple[int, int]
"""Where a total will stand: among the flags or the values that are held per sequence, or the numbers; and its place."""

FLAGS, VALUES, NUMBERS = range(3)
BY_TOKENS, BY_SEQUENCES = range(2)


class Tally:
    """Ask for shares, means and sums by name; `entries` computes all of them."""

    def __init__(self, segments: Segments) -> None:
        self._segments: Segments = segments
        self._rows: tuple[list[Array], list[Array]] = ([], [])
        self._numbers: list[Number] = []
        self._counted: dict[tuple[int, int], tuple[Array, Slot]] = {}
        self._asked: dict[str, tuple[Callable[..., Metric], tuple[Slot, ...]]] = {}

    def share(self, name: str, flags: Field, among: Field | None = None, *, within: bool = False) -> None:
        """The share of flagged tokens, of all or among some; `within`: what is flagged is among them already."""
        total = self.count(flags) if within or among is None else self._count_among(flags, among)
        self._asked[name] = _share, (total, self._all(BY_TOKENS) if among is None else self.count(among))

    def share_of_sequences(self, name: str, flags: Array, among: Array | None = None, *, within: bool = False) -> None:
        """The share of flagged sequences."""
        chosen = flags if within or among is None else flags & among
        count = self._all(BY_SEQUENCES) if among is None else self._count(among, BY_SEQUENCES)
        self._asked[name] = _share, (self._count(chosen, BY_SEQUENCES), count)

    def mean(self, name: str, values: Field, among: Field | None = None) -> None:
        """The mean over tokens, of all or among some."""
        count = self._all(BY_TOKENS) if among is None else self.count(among)
        self._asked[name] = Mean, (self._sum(values, among), count)

    def sum(self, name: str, values: Field, among: Field | None = None) -> None:
        self._asked[name] = Sum, (self._sum(values, among),)

    def sum_of_count(self, name: str, flags: Field) -> None:
        self._asked[name] = Sum, (self.count(flags),)

    def sum_of_sequences(self, name: str, flags: Array) -> None:
        self._asked[name] = Sum, (self._count(flags, BY_SEQUENCES),)

    def number(self, name: str, kind: Callable[..., Metric], *numbers: Number) -> None:
        """A metric whose numbers are known already."""
        self._asked[name] = kind, tuple(self._known(one) for one in numbers)

    def same(self, name: str, other: str) -> None:
        """A second name for what was asked for before."""
        self._asked[name] = self._asked[other]

    def count(self, flags: Field) -> Slot:
        """How many tokens are flagged; the same flags are counted once."""
        if flags.is_shared:
            return self._count(flags.values, BY_TOKENS)
        key = id(flags.values), NUMBERS
        if key not in self._counted:
            self._counted[key] = flags.values, self._known(_count_of(flags.values))
        return self._counted[key][1]

    def _count_among(self, flags: Field, among: Field) -> Slot:
        if flags.is_shared or not among.is_shared:
            return self.count(flags & among)
        self._rows[VALUES].append(flags.tally * among.values)  # token flags are counted once, whoever asks
        return VALUES, 2 * len(self._rows[VALUES]) - 2 + BY_SEQUENCES

    def entries(self) -> dict[str, Metric]:
        """Every metric that was asked for, in that order."""
        found = (*map(self._totals, self._rows), self._numbers)
        return {name: kind(*(found[what][at] for what, at in slots)) for name, (kind, slots) in self._asked.items()}

    def _count(self, flags: Array, by: int) -> Slot:
        key = id(flags), by
        if key not in self._counted:
            self._rows[FLAGS].append(flags)
            slot = FLAGS, 2 * len(self._rows[FLAGS]) - 2 + by
            self._counted[key] = flags, slot  # held, so that its id stays its own
        return self._counted[key][1]

    def _sum(self, values: Field, among: Field | None) -> Slot:
        chosen = values if among is None else values.where(among)
        if not chosen.is_shared:
            return self._known(read_if_plain(chosen.values.sum(dtype=torch.float64)))
        self._rows[VALUES].append(chosen.values)
        return VALUES, 2 * len(self._rows[VALUES]) - 2 + BY_TOKENS

    def _all(self, by: int) -> Slot:
        return self._known(float((self._segments.num_tokens, self._segments.num_sequences)[by]))

    def _known(self, number: Number) -> Slot:
        self._numbers.append(number)
        return NUMBERS, len(self._numbers) - 1

    def _totals(self, rows: list[Array]) -> list[Number]:
        """Each row summed over tokens, then over sequences: one product for all rows."""
        if not rows:
            return []
        table, measures = library(rows[0]).stack(rows), self._segments.measures
        if isinstance(table, Tensor):
            return list((table.double() @ measures).flatten().unbind())
        return cast("list[Number]", (table.astype(np.float64) @ measures).ravel().tolist())


def _share(total: Number, count: Number) -> Mean:
    return Mean(total, count, absent=False)


def _count_of(flags: Tensor) -> Number:
    return float(np.count_nonzero(flags.numpy())) if is_plain(flags) else flags.count_nonzero().double()

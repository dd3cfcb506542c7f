"""Token fields that know their level: the only place that tells one value per token from one per sequence.

Most decisions, advantages and weights are about whole sequences. Held once per sequence, they are combined and counted
without a pass over the tokens, and are spread over the tokens only where a formula reads them.
"""

import operator
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from trimtab.signal.layout import Segments
from trimtab.signal.reduce import sequence_any, sequence_tally, to_tokens
from trimtab.signal.tensors import Array, as_torch, host, library


class Field:
    """One value per token, or one per sequence (`is_shared`) where the tokens of each sequence agree.

    Two sequences of 2 and 3 tokens: Field([True, False], …, is_shared=True).tokens = [True, True, False, False, False].
    It never changes. `values` is a tensor, or an array where it is shared.
    """

    __slots__ = ("_sequences", "_tally", "_tokens", "is_shared", "segments", "values")

    def __init__(self, values: Array, segments: Segments, is_shared: bool = False) -> None:
        self.values: Array = host(values) if is_shared and type(values) is Tensor else values
        self.segments: Segments = segments
        self.is_shared: bool = is_shared
        self._tokens: Tensor | None = None
        self._sequences: Array | None = None
        self._tally: Array | None = None

    @property
    def tokens(self) -> Tensor:
        """One value per token."""
        if not self.is_shared:
            return self.values
        if self._tokens is None:
            self._tokens = to_tokens(as_torch(self.values), self.segments)
        return self._tokens

    @property
    def sequences(self) -> Array:
        """For flags: the sequences with a flagged token."""
        if self._sequences is None:
            shared, segments = self.is_shared, self.segments
            if shared:
                self._sequences = self.values & segments.filled
            else:
                self._sequences = host(sequence_any(self.values, segments)) if self._tally is None else self._tally > 0
        return self._sequences

    @property
    def tally(self) -> Array:
        """For flags: how many tokens of each sequence are flagged."""
        if self._tally is None:
            shared, segments = self.is_shared, self.segments
            self._tally = (
                self.values * segments.measures[:, 0] if shared else host(sequence_tally(self.values, segments))
            )
        return self._tally

    @property
    def dtype(self) -> torch.dtype:
        return as_torch(self.values).dtype

    def map(self, change: Callable[[Array], Array]) -> "Field":
        """The same change to every value."""
        return Field(change(self.values), self.segments, self.is_shared)

    def join(self, other: "Field", how: Callable[[Array, Array], Array]) -> "Field":
        """Two fields joined value by value: per sequence where both are."""
        if self.is_shared and other.is_shared:
            return Field(how(self.values, other.values), self.segments, True)
        return Field(how(self.tokens, other.tokens), self.segments)

    def where(self, flags: "Field") -> "Field":
        """The value where a flag is true, 0 elsewhere."""
        return self.join(flags, _where)

    def __and__(self, other: "Field") -> "Field":
        return self.join(other, _both)

    def __mul__(self, other: "Field") -> "Field":
        return self.join(other, _times)

    def __invert__(self) -> "Field":
        return self.map(operator.invert)


def _both(first: Array, second: Array) -> Array:
    return first & second


def _times(first: Array, second: Array) -> Array:
    return first * second


def _where(values: Array, flags: Array) -> Array:
    return library(values).where(flags, values, 0.0)


def everything(segments: Segments) -> Field:
    """Flags that are true at every token."""
    return Field(torch.ones_like(segments.token_counts, dtype=torch.bool), segments, True)


def ones(segments: Segments, dtype: torch.dtype) -> Field:
    """1 at every token."""
    return Field(torch.ones_like(segments.token_counts, dtype=dtype), segments, True)


class Fields(Mapping[str, Tensor]):
    """Token fields by name. A plain read gives one value per token; `held` gives a field as it is held."""

    def __init__(self, segments: Segments, held: Mapping[str, Field]) -> None:
        self.segments: Segments = segments
        self._held: dict[str, Field] = dict(held)

    @classmethod
    def of(cls, segments: Segments, given: Mapping[str, Tensor]) -> "Fields":
        """Fields that are held per token already, or that are Fields."""
        if isinstance(given, Fields):
            return given
        return cls(segments, {name: Field(values, segments) for name, values in given.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self._held[name].tokens

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def held(self, name: str) -> Field:
        return self._held[name]

    def adding(self, more: Mapping[str, Field]) -> "Fields":
        """These, and more or other ones."""
        return Fields(self.segments, {**self._held, **more})

    def cut(self, segments: Segments, sequences: Tensor | slice, tokens: Tensor | slice) -> "Fields":
        """The fields of some sequences; slices are views, indices copy."""

        def chosen(field: Field) -> Field:
            place = host(sequences) if field.is_shared else tokens
            return Field(field.values[place], segments, field.is_shared)

        return Fields(segments, {name: chosen(field) for name, field in self._held.items()})

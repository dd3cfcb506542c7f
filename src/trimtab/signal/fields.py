"""Token fields that know their level: the only place that tells one value per token from one per sequence.

Most decisions, advantages and weights are about whole sequences. Held once per sequence, they are combined and counted
without a pass over the tokens, and are spread over the tokens only where a formula reads them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool
from torch import Tensor

from trimtab.signal.layout import Segments
from trimtab.signal.reduce import sequence_any, to_tokens


@dataclass(frozen=True)
class Field:
    """One value per token, or one per sequence (`is_shared`) where the tokens of each sequence agree.

    Two sequences of 2 and 3 tokens: Field([True, False], …, is_shared=True).tokens = [True, True, False, False, False].
    """

    values: Tensor
    segments: Segments
    is_shared: bool = False

    @cached_property
    def tokens(self) -> Tensor:
        """One value per token."""
        return to_tokens(self.values, self.segments) if self.is_shared else self.values

    def map(self, change: Callable[[Tensor], Tensor]) -> "Field":
        """The same change to every value."""
        return Field(change(self.values), self.segments, self.is_shared)

    def join(self, other: "Field", how: Callable[[Tensor, Tensor], Tensor]) -> "Field":
        """Two fields joined value by value: per sequence where both are."""
        if self.is_shared and other.is_shared:
            return Field(how(self.values, other.values), self.segments, True)
        return Field(how(self.tokens, other.tokens), self.segments)

    def __and__(self, other: "Field") -> "Field":
        return self.join(other, torch.bitwise_and)

    def __mul__(self, other: "Field") -> "Field":
        return self.join(other, torch.mul)

    def __invert__(self) -> "Field":
        return self.map(torch.bitwise_not)

    @cached_property
    def sequences(self) -> Bool[Tensor, " sequences"]:
        """For flags: the sequences with a flagged token."""
        return self.values & self.segments.filled if self.is_shared else sequence_any(self.values, self.segments)


def everything(segments: Segments) -> Field:
    """Flags that are true at every token."""
    flags = torch.ones(segments.num_sequences, dtype=torch.bool, device=segments.token_counts.device)
    return Field(flags, segments, True)


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
            place = sequences if field.is_shared else tokens
            values = field.values[place] if isinstance(place, slice) else field.values.index_select(0, place)
            return Field(values, segments, field.is_shared)

        return Fields(segments, {name: chosen(field) for name, field in self._held.items()})

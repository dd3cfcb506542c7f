"""The only place that stores keys and values of sampling: buffers with room to grow, rows that leave and enter.

The cache of transformers copies all of itself for every token. Here, a token costs the copy of one column. Import
this module only inside a function: it needs transformers.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 8
"""Columns of free room in a new buffer; a full one grows by half."""


class Columns(DynamicLayer):
    """Keys and values of one layer, `[rows, heads, columns, size]`: the first columns of larger buffers."""

    def __init__(self) -> None:
        super().__init__()
        self._width: int = 0
        self._key_room: Tensor = torch.empty(0)
        self._value_room: Tensor = torch.empty(0)

    def get_seq_length(self) -> int:
        """How many columns are filled."""
        return self._width

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append columns and return all of them."""
        start, self._width = self._width, self._width + key_states.shape[-2]
        if not start or self._width > self._key_room.shape[-2]:
            capacity = max(self._width, start + start // 2) + ROOM
            self._key_room = _grow(self._key_room, start, key_states, capacity)
            self._value_room = _grow(self._value_room, start, value_states, capacity)
            self.is_initialized = True
        self._key_room[:, :, start : self._width] = key_states
        self._value_room[:, :, start : self._width] = value_states
        return self._filled()

    def take(self, rows: Tensor, unseen: int) -> None:
        """Keep these rows, in this order, and drop the first `unseen` columns."""
        self._key_room = self._key_room.index_select(0, rows)[:, :, unseen:]
        self._value_room = self._value_room.index_select(0, rows)[:, :, unseen:]
        self._width -= unseen

    def join(self, other: "Columns") -> None:
        """Append the rows of `other`; the narrower of the two gets columns of zeros on its left."""
        width = max(self._width, other._width)
        pairs = zip(self._filled(), other._filled(), strict=True)
        self._key_room, self._value_room = (torch.cat([_right(a, width), _right(b, width)]) for a, b in pairs)
        self._width = width

    def _filled(self) -> tuple[Tensor, Tensor]:
        return self._key_room[:, :, : self._width], self._value_room[:, :, : self._width]


def _grow(old: Tensor, filled: int, like: Tensor, capacity: int) -> Tensor:
    """Copy the filled columns into a new buffer of `capacity` columns."""
    rows, heads, _, size = like.shape
    room = like.new_empty(rows, heads, capacity, size)
    if filled:
        room[:, :, :filled] = old[:, :, :filled]
    return room


def _right(cached: Tensor, width: int) -> Tensor:
    """The columns aligned to the right edge of `width`, with free room after them."""
    return pad(cached, (0, 0, width - cached.shape[-2], ROOM))


class RowCache(Cache):
    """The cache of a whole model. Every layer keeps all its columns, also under a sliding window: rows are aligned."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=Columns)

    @property
    def filled(self) -> "list[Columns]":
        """The layers that hold something; a model whose layers share keys leaves some of them empty."""
        return [layer for layer in self.layers if isinstance(layer, Columns) and layer.is_initialized]

    def take(self, rows: Tensor, unseen: int = 0) -> None:
        for layer in self.filled:
            layer.take(rows, unseen)

    def join(self, other: "RowCache") -> None:
        for layer, more in zip(self.filled, other.filled, strict=True):
            layer.join(more)

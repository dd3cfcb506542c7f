"""The only place that stores keys and values of sampling: buffers with room to grow, rows that leave and enter.

The cache of transformers copies all of itself for every token. Here a token costs the copy of one column, and an
answer that enters the copy of its own columns: it takes a row that another has left. All rows end at one column, so
short ones have columns before their first that are not theirs. Import this module only inside a function: it needs
transformers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 8
"""Columns of free room in a new buffer, besides half as many as are filled."""


class Columns(DynamicLayer):
    """Keys and values of one layer, `[rows, heads, columns, size]`: columns `start` to `end` of larger buffers."""

    def __init__(self, rows: int = 0, end: int = 0) -> None:
        super().__init__()
        self.start: int = 0
        self.end: int = end
        self._rows: int = rows
        self._rooms: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    def get_seq_length(self) -> int:
        """How many columns are seen by some row."""
        return self.end - self.start

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append columns to the first rows, as many as are given, and return all of their columns."""
        rows, width = key_states.shape[0], key_states.shape[-2]
        if not self.is_initialized:
            self._rooms = (_room(key_states, rows, width), _room(value_states, rows, width))
            self.is_initialized = True
        elif self.end + width > self._rooms[0].shape[-2]:
            _ = self.fit(rows, width, self.end + width)  # nothing moves
        first, self.end = self.end, self.end + width
        keys, values = self._rooms
        keys[:rows, :, first : self.end] = key_states
        values[:rows, :, first : self.end] = value_states
        return keys[:rows, :, self.start : self.end], values[:rows, :, self.start : self.end]

    def fit(self, rows: int, columns: int, width: int) -> int:
        """Make room for this many rows, for more columns, and for a row that then ends `width` columns after its first.

        Returns by how much the filled columns moved to the right.
        """
        if not self.is_initialized:
            return 0
        held, _, capacity, _ = self._rooms[0].shape
        if rows <= held and width <= self.end + columns <= capacity:
            return 0
        filled = self.end - self.start
        left = max(width - columns - filled, 0)
        for room in self._rooms:
            larger = _room(room, max(rows, held + held // 2) if rows > held else held, left + filled + columns)
            larger[:held, :, left : left + filled] = room[:, :, self.start : self.end]
            self._rooms = (self._rooms[1], larger)
        moved = left - self.start
        self.start, self.end = left, left + filled
        return moved

    def put(self, rows: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write whole beginnings into these rows, so that they end where the others end."""
        if not self.is_initialized:
            self._rooms = (_room(keys, self._rows, self.end), _room(values, self._rows, self.end))
            self.is_initialized = True
        for room, given in zip(self._rooms, (keys, values), strict=True):
            _ = room.narrow(2, self.end - given.shape[-2], given.shape[-2]).index_copy_(0, rows, given)

    def copy(self, source: Tensor, rows: Tensor, first: int) -> None:
        """Write what the rows `source` hold from the column `first` on into `rows`."""
        for room in self._rooms:
            part = room.narrow(2, first, self.end - first)
            _ = part.index_copy_(0, rows, part.index_select(0, source))

    def take(self, rows: Tensor) -> int:
        """Keep these rows, in this order. Returns by how much the filled columns moved to the right."""
        keys, values = (room[:, :, self.start :].index_select(0, rows) for room in self._rooms)
        self._rooms, moved = (keys, values), -self.start
        self.start, self.end = 0, self.end - self.start
        return moved

    @property
    def columns(self) -> tuple[Tensor, Tensor]:
        """Keys and values of all rows."""
        keys, values = self._rooms
        return keys[:, :, self.start : self.end], values[:, :, self.start : self.end]


def _room(like: Tensor, rows: int, width: int) -> Tensor:
    """An empty buffer. Zeros, because what a row must not see is multiplied by 0, and memory may hold nan."""
    _, heads, _, size = like.shape
    return like.new_zeros(rows, heads, width + width // 2 + ROOM, size)


class RowCache(Cache):
    """The cache of a whole model. Every layer keeps all its columns, also under a sliding window: rows are aligned.

    A new one gets this many rows, which will end at the column `end`.
    """

    def __init__(self, rows: int = 0, end: int = 0) -> None:
        super().__init__(layer_class_to_replicate=Columns)
        self._rows: int = rows
        self._end: int = end
        self.bands: list[tuple[int, int]] = [(0, 0)]
        """Neighbours that see about equally many columns: the first row of each band, and the first column it sees."""
        self.steps: int = 0
        self.vain: int = 0
        """Steps since the rows were last put in order, and columns that were looked at in vain."""

    def layer(self, number: int) -> Columns:
        """The layer with this number; it is made when it is first asked for."""
        while len(self.layers) <= number:
            self.layers.append(Columns(self._rows, self._end))
        found = self.layers[number]
        assert isinstance(found, Columns)
        return found

    @property
    def filled(self) -> "list[Columns]":
        """The layers that hold something; a model whose layers share keys leaves some of them empty."""
        return [layer for layer in self.layers if isinstance(layer, Columns) and layer.is_initialized]

    @property
    def start(self) -> int:
        """The first column that some row sees."""
        return min(first for _, first in self.bands)

    @property
    def end(self) -> int:
        """The column after the last."""
        return next((layer.end for layer in self.filled), self._end)

    def columns(self, rows: int) -> int:
        """How many columns of rows are looked at in a step of this many rows."""
        ends = [*(begin for begin, _ in self.bands[1:]), rows]
        return sum((end - begin) * (self.end - first) for (begin, first), end in zip(self.bands, ends, strict=True))

    def see_from(self, rows: Sequence[int], first: int) -> None:
        """Some of these rows see this column."""
        for row in rows:
            number = sum(begin <= row for begin, _ in self.bands) - 1
            begin, before = self.bands[number]
            self.bands[number] = (begin, min(before, first))
        self._tell()

    def lay(self, bands: Sequence[tuple[int, int]]) -> None:
        """Rows lie in these bands, each with its number of rows and of columns that they see."""
        begin, end, self.bands = 0, self.end, []
        for count, seen in bands:
            self.bands.append((begin, end - seen))
            begin += count
        self._tell()

    def see_only(self, rows: Sequence[int], first: Sequence[int]) -> None:
        """Only these rows, in their order, are looked at, each from this column on; the others are free."""
        begins = [begin for begin, _ in self.bands]
        seen = [self.end] * len(begins)
        band = 0
        for row, column in zip(rows, first, strict=True):
            while band + 1 < len(begins) and begins[band + 1] <= row:
                band += 1
            seen[band] = min(seen[band], column)
        self.bands = list(zip(begins, seen, strict=True))
        self._tell()

    def fit(self, rows: int, columns: int, width: int) -> int:
        """Make room in every layer. Returns by how much the filled columns moved to the right."""
        moved = [layer.fit(rows, columns, width) for layer in self.filled]
        if not moved or not moved[0]:
            return 0
        self.bands = [(begin, first + moved[0]) for begin, first in self.bands]
        return moved[0]

    def copy(self, source: Tensor, rows: Tensor, first: int) -> None:
        for layer in self.filled:
            layer.copy(source, rows, first)

    def take(self, rows: Tensor, bands: Sequence[tuple[int, int]] = ()) -> int:
        """Keep these rows, in this order and in these bands, each with its number of rows and of columns that they see.

        Returns by how much the filled columns moved to the right.
        """
        self.lay(bands or [(len(rows), self.end - self.filled[0].start)])
        moved, *_ = [layer.take(rows) for layer in self.filled]
        self.bands = [(begin, first + moved) for begin, first in self.bands]
        self.steps = self.vain = 0
        return moved

    def _tell(self) -> None:
        for layer in self.filled:
            layer.start = self.start

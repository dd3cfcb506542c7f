"""Where a token lives in the caller's layout: the only place that knows padded, list and packed layouts.

Everything downstream sees flat tokens, sequence after sequence, trainable ones only. It knows nothing of rewards,
log-probs or formulas.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.layout import Segments, SequenceIndex, TokenIndex
from trimtab.signal.once import once
from trimtab.signal.tensors import Numbers, as_tensor, is_plain

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Cells:
    """Where every trainable token lives in the caller's layout.

    A padded [2, 3] batch whose mask is [[0, 1, 1], [1, 0, 0]]: shape = (2, 3), index = [1, 2, 3].
    `gather` reads the trainable cells and nothing else, so whatever the others hold cannot leak;
    `scatter` puts tokens back and gives every other cell the fill the caller names.
    """

    shape: tuple[int, ...]
    places: TokenIndex | None = None
    """None: every cell is a trainable token, in order."""
    lengths: tuple[int, ...] | None = None
    """Set for the list layout: the length of each list entry."""
    device: torch.device = CPU
    """Where the caller's fields are; read where `places` does not tell."""

    def __post_init__(self) -> None:
        if self.places is not None:
            object.__setattr__(self, "device", self.places.device)

    @once
    def index(self) -> TokenIndex:
        """The place of every trainable token among the cells."""
        return torch.arange(math.prod(self.shape), device=self.device) if self.places is None else self.places

    def gather(self, field: Numbers, name: str = "field", dtype: torch.dtype | None = None) -> Tensor:
        """The trainable tokens of a field, flat; differentiable, and never the caller's own memory."""
        cells = self.field(field, name, dtype).reshape(-1)
        if self.is_dense:
            return cells.clone()
        return cells.index_select(0, self.index)

    @property
    def is_dense(self) -> bool:
        """Every cell is a trainable token, in order."""
        return self.places is None or self.places.shape[0] == math.prod(self.shape)

    def field(self, field: Numbers, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A field as one tensor in this layout; plain numbers are read in `dtype`."""
        if self.lengths is not None and not isinstance(field, Tensor):
            return self.joined(field, name, dtype)
        values = as_tensor(field, f"SignalBatch: {name}", dtype=dtype, device=self.device)
        self.check_shape(values, name)
        if values.device != self.device:
            raise SignalError(
                f"SignalBatch: {name} is on {values.device} and trainable on {self.device}. "
                f"Move it there: {name}.to('{self.device}')."
            )
        return values

    def check_shape(self, field: Tensor, name: str) -> None:
        """Raise unless a field has the layout of `trainable`."""
        if tuple(field.shape) != self.shape:
            raise SignalError(
                f"SignalBatch: {name} has shape {list(field.shape)} but trainable has {list(self.shape)}, "
                "so its tokens cannot be told apart. Give every token field the layout of trainable."
            )

    def scatter(self, tokens: Tensor, *, fill: float) -> Tensor:
        """A field in the caller's layout with `tokens` in the trainable cells and `fill` elsewhere; differentiable."""
        blank = torch.full((math.prod(self.shape),), fill, dtype=tokens.dtype, device=tokens.device)
        return blank.index_put((self.index,), tokens).reshape(self.shape)

    def scatter_list(self, tokens: Tensor, *, fill: float) -> list[Tensor]:
        """As `scatter`, cut into the caller's list entries."""
        if self.lengths is None:
            raise SignalError(
                "scatter_list: this batch did not come from a list, so there are no entries. Use scatter."
            )
        return list(torch.split(self.scatter(tokens, fill=fill), list(self.lengths)))

    def owners(self, name: str) -> Int[Tensor, " cells"]:
        """The sequence of every cell, trainable or not; `name` is the field that asks."""
        device = self.device
        if len(self.shape) == 2:
            return torch.arange(self.shape[0], device=device).repeat_interleave(self.shape[1])
        if self.lengths is not None:
            lengths = torch.tensor(self.lengths, device=device)
            return torch.arange(len(self.lengths), device=device).repeat_interleave(lengths)
        raise SignalError(f"SignalBatch: {name} needs the padded or list layout, where a cell's sequence is known.")

    def joined(self, entries: Numbers, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A field in the list layout as one flat tensor."""
        assert self.lengths is not None
        if not isinstance(entries, Sequence) or isinstance(entries, str):
            raise SignalError(f"SignalBatch: {name} is {type(entries).__name__} but trainable is a list. Give a list.")
        rows = [
            as_tensor(entry, f"SignalBatch: {name}[{i}]", dtype=dtype, device=self.device)
            for i, entry in enumerate(cast("Sequence[object]", entries))
        ]
        lengths = tuple(row.shape[0] if row.ndim == 1 else -1 for row in rows)
        if lengths != self.lengths:
            wrong = next(
                (i for i, (a, b) in enumerate(zip(lengths, self.lengths, strict=False)) if a != b),
                min(len(lengths), len(self.lengths)),
            )
            raise SignalError(
                f"SignalBatch: {name} does not match trainable at entry {wrong} "
                f"(lengths {list(lengths[wrong : wrong + 1])} and {list(self.lengths[wrong : wrong + 1])}), "
                "so its tokens cannot be told apart. Give one 1-D tensor per sequence, of equal lengths."
            )
        return torch.cat(rows) if rows else torch.zeros(0)


def padded_cells(trainable: Bool[Tensor, "rows width"]) -> tuple[Cells, Segments]:
    """Cells of a padded [rows, width] mask; padding may be on either side or inside."""
    counts = trainable.sum(1)
    index = trainable.reshape(-1).nonzero().squeeze(1)
    return Cells(tuple(trainable.shape), index), Segments.from_counts(counts, index.shape[0])


def list_cells(trainable: Sequence[Bool[Tensor, " _"]]) -> tuple[Cells, Segments]:
    """Cells of one 1-D mask per sequence."""
    lengths = tuple(entry.shape[0] for entry in trainable)
    joined = torch.cat(list(trainable)) if trainable else torch.zeros(0, dtype=torch.bool)
    counts = torch.stack([entry.sum() for entry in trainable]) if trainable else torch.zeros(0, dtype=torch.long)
    index = joined.nonzero().squeeze(1)
    return Cells((joined.shape[0],), index, lengths), Segments.from_counts(counts, index.shape[0])


def token_cells(token_counts: SequenceIndex) -> tuple[Cells, Segments]:
    """Cells of trainable tokens alone, sequence after sequence."""
    num_tokens = int(token_counts.sum())
    return Cells((num_tokens,), device=token_counts.device), Segments.from_counts(token_counts, num_tokens)


def packed_cells(trainable: Bool[Tensor, " packed"], cu_seqlens: Int[Tensor, " boundaries"]) -> tuple[Cells, Segments]:
    """Cells of one packed row; cu_seqlens = [0, end of sequence 0, …, end of the last]."""
    ends, width = cu_seqlens, trainable.shape[0]
    # Everything that decides is read in one go.
    counts, facts = _counted(ends, trainable) if ends.numel() else (ends, None)
    if facts is None or facts[:3] != [0, width, 0]:
        raise SignalError(
            f"SignalBatch: cu_seqlens is {ends.tolist()} for a packed row of {width} tokens, so the sequences do not "
            f"cover it. It starts with 0, never decreases and ends with {width}."
        )
    if facts[3] == width:
        return Cells((width,), device=trainable.device), Segments.from_counts(counts, width)
    index = trainable.nonzero().squeeze(1)
    before = torch.searchsorted(index, ends)  # how many trainable tokens lie before each boundary
    return Cells((width,), index), Segments.from_counts(before.diff(), index.shape[0])


def _counted(ends: Tensor, trainable: Tensor) -> tuple[Tensor, list[int]]:
    """Tokens between boundaries; the first and the last boundary, how many decrease, how many tokens are trainable."""
    if is_plain(trainable):
        at = ends.numpy()
        counts = at[1:] - at[:-1]
        facts = [int(at[0]), int(at[-1]), int(np.count_nonzero(counts < 0)), int(np.count_nonzero(trainable.numpy()))]
        return torch.from_numpy(counts), facts
    counts = ends[1:] - ends[:-1]
    facts = torch.stack([ends[0], ends[-1], (counts < 0).count_nonzero(), trainable.count_nonzero()])
    return counts, cast("list[int]", facts.tolist())

"""Levels and cells: which token belongs to which sequence, and where it lives in the caller's layout.

This is the only place that knows padded, list and packed layouts. Everything downstream sees flat tokens,
sequence after sequence, trainable ones only. It knows nothing of rewards, log-probs or formulas.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.once import once
from trimtab.signal.tensors import Array, Numbers, as_tensor, host, is_plain

PerToken = Float[Tensor, " tokens"]
PerSequence = Float[Tensor, " sequences"]
PerEpisode = Float[Tensor, " episodes"]
PerGroup = Float[Tensor, " groups"]
PerKey = Float[Tensor, "episodes keys"]
ScoredKeys = Bool[Tensor, "episodes keys"]
Keep = Bool[Tensor, " tokens"]
Scalar = Float[Tensor, ""]
TokenIndex = Int[Tensor, " tokens"]
SequenceIndex = Int[Tensor, " sequences"]
EpisodeIndex = Int[Tensor, " episodes"]
SequenceFlag = Bool[Tensor, " sequences"]
EpisodeFlag = Bool[Tensor, " episodes"]


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Segments:
    """Which flat token belongs to which sequence.

    Two sequences of 2 and 3 tokens: token_counts = [2, 3], num_tokens = 5, sequence_of_token = [0, 0, 1, 1, 1].
    A sequence may be empty; its reductions are then empty sums.
    """

    token_counts: SequenceIndex
    num_tokens: int
    """Passed in so that no device value has to be read back."""

    @classmethod
    def from_counts(cls, token_counts: SequenceIndex, num_tokens: int) -> "Segments":
        return cls(token_counts, num_tokens)

    @property
    def num_sequences(self) -> int:
        return self.token_counts.shape[0]

    @once
    def sequence_of_token(self) -> TokenIndex:
        """Made where a formula reads it: most need only the counts."""
        if is_plain(self.token_counts):
            return torch.from_numpy(self.everyone.numpy().repeat(self.token_counts.numpy()))
        return self.everyone.repeat_interleave(self.token_counts, output_size=self.num_tokens)

    @once
    def everyone(self) -> SequenceIndex:
        """The sequences by their places: 0, 1, …"""
        return torch.arange(self.num_sequences, device=self.token_counts.device)

    @once
    def offsets(self) -> Int[Tensor, " boundaries"]:
        """[0, end of sequence 0, …, number of tokens]: computed once, read by every reduction."""
        return torch.nn.functional.pad(self.token_counts.cumsum(0), (1, 0))

    @once
    def starts(self) -> "tuple[Array | None, Array]":
        """For plain counts: which sequences have tokens (None: all), and where each of these begins."""
        counts = self.token_counts.numpy()
        first = counts.cumsum() - counts
        if counts.all():
            return (None, first) if len(counts) else (first, first)
        filled = counts.nonzero()[0]
        return filled, first[filled]

    @once
    def filled(self) -> Array:
        """The sequences that have tokens."""
        return host(self.token_counts) > 0

    @once
    def measures(self) -> Array:
        """What a sequence counts for, in float64: its tokens, and itself."""
        if is_plain(self.token_counts):
            found = np.ones((self.num_sequences, 2))
            found[:, 0] = self.token_counts.numpy()
            return found
        tokens = self.token_counts.double()
        return torch.stack([tokens, torch.ones_like(tokens)], 1)

    @once
    def all_filled(self) -> bool:
        """Every sequence has tokens, as far as that can be seen without waiting for a device."""
        return is_plain(self.token_counts) and self.starts[0] is None

    @once
    def counted(self) -> Array:
        """1 for a sequence that has tokens, 0 for one without, in float64."""
        return self.measures[:, 1] * self.filled

    @once
    def num_filled(self) -> "float | Tensor":
        """How many sequences have tokens, at least 1: what a mean over sequences is divided by."""
        count = self.counted.sum()
        return count.clamp(min=1) if isinstance(count, Tensor) else max(float(count), 1.0)

    @property
    def first_token(self) -> SequenceIndex:
        """Index of each sequence's first token (of the next sequence's, for an empty one)."""
        return self.offsets[:-1]


@dataclass(frozen=True)
class Levels:
    """token ⊂ sequence ⊂ episode ⊂ group, as index maps.

    One prompt answered twice, the second answer cut into two contexts: three sequences, two episodes, one group.
        segments.token_counts = [4, 3, 2]   episode_of_sequence = [0, 1, 1]   group_of_episode = [0, 0]
    """

    segments: Segments
    episode_of_sequence: SequenceIndex
    group_of_episode: EpisodeIndex
    num_groups: int
    one_each: bool = False
    """Every sequence is an episode of its own, in order."""

    def to_sequences(self, values: Tensor) -> Tensor:
        """Each episode's value at every one of its sequences."""
        return values if self.one_each else values.index_select(0, self.episode_of_sequence)

    @property
    def token_counts(self) -> SequenceIndex:
        return self.segments.token_counts

    @property
    def num_tokens(self) -> int:
        return self.segments.num_tokens

    @property
    def num_sequences(self) -> int:
        return self.segments.num_sequences

    @property
    def num_episodes(self) -> int:
        return self.group_of_episode.shape[0]

    @property
    def episode_of_token(self) -> TokenIndex:
        return self.episode_of_sequence.index_select(0, self.segments.sequence_of_token)


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


def places(flags: Bool[Tensor, " _"]) -> list[int]:
    """Where the flags are true, as plain numbers: for messages."""
    return cast("list[int]", flags.nonzero().squeeze(1).tolist())


def renumbered(group: Tensor) -> tuple[Tensor, int]:
    """Any group names as 0, 1, … in their order, and how many there are."""
    index, facts = group_index(group)
    num, lone = cast("list[int]", facts.tolist())
    return known_company(index, lone), num


def group_index(group: Tensor) -> tuple[Tensor, Array]:
    """Any group names as 0, 1, … in their order; how many there are, and whether one has a single episode."""
    if not group.numel():
        return group.clone(), host(torch.zeros(2, dtype=torch.long, device=group.device))
    if is_plain(group):
        index, sizes = _numbered(group.numpy())
        return torch.from_numpy(index), np.array([len(sizes), 1 in sizes])
    ordered, order = group.sort()
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    rank = begins.cumsum(0)
    ends = begins.roll(-1)  # the last one ends where the first begins
    return torch.empty_like(order).scatter_(0, order, rank - 1), torch.stack([rank[-1], (begins & ends).any().long()])


def _numbered(group: Array) -> tuple[Array, Array]:
    """Group names as 0, 1, … in their order, and the size of each; names that ascend already need no sorting."""
    before, after = group[:-1], group[1:]
    if (after < before).any():
        _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
        return index, sizes
    index = np.zeros(len(group), np.int64)
    _ = np.cumsum(after != before, out=index[1:])
    return index, np.bincount(index)


def known_company(index: Tensor, lone: int) -> Tensor:
    """Note on an index of groups that none has a single episode: formulas then need not ask the device again."""
    index.has_company = not lone  # pyright: ignore[reportAttributeAccessIssue]
    return index


def _counted(ends: Tensor, trainable: Tensor) -> tuple[Tensor, list[int]]:
    """Tokens between boundaries; the first and the last boundary, the least count, how many tokens are trainable."""
    if is_plain(ends) and is_plain(trainable):
        at = ends.numpy()
        counts = at[1:] - at[:-1]
        facts = [int(at[0]), int(at[-1]), min(counts.tolist(), default=0), int(np.count_nonzero(trainable.numpy()))]
        return torch.from_numpy(counts), facts
    counts = ends[1:] - ends[:-1]
    shortest = counts.amin() if counts.shape[0] else ends[0]
    facts = torch.stack([ends[0], ends[-1], shortest, trainable.count_nonzero()])
    return counts, cast("list[int]", facts.tolist())


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
    counts, (first, last, least, num_tokens) = _counted(ends, trainable) if ends.numel() else (ends, (-1, 0, 0, width))
    if first != 0 or last != width or least < 0:
        raise SignalError(
            f"SignalBatch: cu_seqlens is {ends.tolist()} for a packed row of {width} tokens, so the sequences do not "
            f"cover it. It starts with 0, never decreases and ends with {width}."
        )
    if num_tokens == width:
        return Cells((width,), device=trainable.device), Segments.from_counts(counts, width)
    running = torch.nn.functional.pad(trainable.cumsum(0), (1, 0))
    index = trainable.nonzero().squeeze(1)
    return Cells((width,), index), Segments.from_counts(running[ends].diff(), index.shape[0])

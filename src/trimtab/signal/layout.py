"""Levels: the only place that says which token belongs to which sequence, episode and group, and names their types.

It knows flat tokens alone, sequence after sequence; where they came from stands in cell.py.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from trimtab.signal.once import once
from trimtab.signal.tensors import Array, host, is_plain

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


def places(flags: Bool[Tensor, " _"]) -> list[int]:
    """Where the flags are true, as plain numbers: for messages."""
    return cast("list[int]", flags.nonzero().squeeze(1).tolist())

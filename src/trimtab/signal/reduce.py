"""Reductions over levels: the only place that sums, averages or takes extrema of flat tokens.

Every reduction is local to its segment: a NaN or an infinity in one sequence never reaches another
(no running total over the batch). The order of summation depends on a sequence's own tokens and on nothing else, so a
sequence reduces to the same bits whatever else is in the batch. Empty segments give the neutral element; a mean of
nothing is 0 by definition here, and callers that need it defined check the count.

Plain numbers in the processor's memory are reduced by numpy, where they lie: torch has no fast segment reduction there.
A tensor with a gradient, or on another device, is reduced by torch.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from trimtab.signal.layout import Keep, PerSequence, PerToken, Segments, SequenceIndex, TokenIndex
from trimtab.signal.tensors import Array, as_torch, host, is_plain, quiet

LOG_BOUND = 20.0
"""A log-ratio is bounded here just before it is exponentiated: e^20 is 5e8, far past any truncation in use,
and its square still fits float32. SkyRL and verl use the same number."""


def segment_sum(
    values: Num[Tensor, " items"], index: Int[Tensor, " items"], num_segments: int
) -> Num[Tensor, " segments"]:
    """Sum of the items of each segment."""
    if is_plain(values) and is_plain(index):
        found = np.bincount(index.numpy(), weights=values.numpy(), minlength=num_segments)
        return torch.from_numpy(found).to(values.dtype)
    return values.new_zeros(num_segments).index_add(0, index, values)


def segment_any(
    flags: Bool[Tensor, " items"], index: Int[Tensor, " items"], num_segments: int
) -> Bool[Tensor, " segments"]:
    """Whether any item of each segment is flagged."""
    return as_torch(any_of(host(flags), host(index), num_segments))


def any_of(flags: Array, index: Array, num_segments: int) -> Array:
    """`segment_any` of arrays."""
    if isinstance(flags, Tensor):
        return flags.new_zeros(num_segments).index_put((index,), flags, accumulate=True)
    found = np.zeros(num_segments, np.bool_)
    found[index[flags]] = True
    return found


@quiet
def segment_extreme(
    values: Float[Tensor, " items"], index: Int[Tensor, " items"], num_segments: int, how: Literal["amin", "amax"]
) -> Float[Tensor, " segments"]:
    """The smallest or the largest item of each segment; without any, an infinity that bounds nothing."""
    place = host(index) if is_plain(values) else index
    return as_torch(extreme_of(host(values), place, num_segments, how))


def extreme_of(values: Array, index: Array, num_segments: int, how: Literal["amin", "amax"]) -> Array:
    """`segment_extreme` of arrays."""
    bound = torch.inf if how == "amin" else -torch.inf
    if isinstance(values, Tensor):
        return values.new_full((num_segments,), bound).scatter_reduce(0, index, values, how)
    found = np.full(num_segments, bound, values.dtype)
    (np.minimum if how == "amin" else np.maximum).at(found, index, values)
    return found


def sequence_sum(values: PerToken, segments: Segments, dtype: torch.dtype | None = None) -> PerSequence:
    """Sum over each sequence's tokens, added up in `dtype`, or in that of the values."""
    return as_torch(sum_of(values if dtype is None else values.to(dtype), segments))


def sum_of(values: PerToken, segments: Segments) -> Array:
    """`sequence_sum` as an array."""
    if is_plain(values):
        return _reduced(np.add, values, segments, 0)
    return torch.segment_reduce(values, "sum", offsets=segments.offsets, initial=0, unsafe=True)


def extremes_of(values: PerToken, segments: Segments) -> tuple[Array, Array]:
    """The smallest and the largest of each sequence's tokens, past nan; inf and -inf for a sequence without any."""
    if is_plain(values):
        return _reduced(np.fmin, values, segments, np.inf), _reduced(np.fmax, values, segments, -np.inf)
    ends = segments.offsets
    low = torch.segment_reduce(values, "min", offsets=ends, initial=torch.inf, unsafe=True)
    return low, torch.segment_reduce(values, "max", offsets=ends, initial=-torch.inf, unsafe=True)


def sequence_tally(flags: Keep, segments: Segments) -> SequenceIndex:
    """How many tokens of each sequence are flagged: a running count is exact, whatever the other sequences hold."""
    if is_plain(flags):
        return as_torch(_reduced(np.add, flags.view(torch.uint8), segments, 0, dtype=np.int32))
    running = torch.zeros(flags.shape[0] + 1, dtype=torch.int32, device=flags.device)
    _ = torch.cumsum(flags, 0, dtype=torch.int32, out=running[1:])
    return running.index_select(0, segments.offsets).diff()


def sequence_count(keep: Keep, segments: Segments, like: PerToken) -> PerSequence:
    """How many tokens of each sequence are kept, in the dtype of `like`."""
    return sequence_tally(keep, segments).to(like.dtype)


def sequence_mean(values: PerToken, segments: Segments, keep: Keep | None = None) -> PerSequence:
    """Mean over each sequence's (kept) tokens; 0 for a sequence without any."""
    if keep is not None:
        values = torch.where(keep, values, torch.zeros_like(values))
        count = sequence_count(keep, segments, values)
    else:
        count = segments.token_counts.to(values.dtype)
    return sequence_sum(values, segments) / count.clamp(min=1)


def sequence_any(flags: Keep, segments: Segments) -> Bool[Tensor, " sequences"]:
    """Whether any token of the sequence is flagged."""
    if is_plain(flags):
        return as_torch(_reduced(np.logical_or, flags, segments, False))
    return sequence_tally(flags, segments) > 0


@quiet
def _reduced(
    how: np.ufunc,
    values: Tensor,
    segments: Segments,
    nothing: float | int | bool,
    dtype: type[np.generic] | None = None,
) -> Array:
    """Each sequence's tokens joined by `how`; `nothing` where there are none."""
    array, (filled, starts) = values.numpy(), segments.starts
    if filled is None:
        return how.reduceat(array, starts, dtype=dtype)
    found = np.full(segments.num_sequences, nothing, dtype or array.dtype)
    if len(starts):
        found[filled] = how.reduceat(array, starts, dtype=dtype)
    return found


def to_tokens(values: Tensor, segments: Segments) -> Tensor:
    """Each sequence's value at every one of its tokens."""
    if is_plain(values) and values.ndim == 1 and is_plain(segments.token_counts):
        return torch.from_numpy(values.numpy().repeat(segments.token_counts.numpy()))
    return values.index_select(0, segments.sequence_of_token)


def turn_mean(values: PerToken, segments: Segments, turn: TokenIndex, keep: Keep | None = None) -> PerToken:
    """Mean over each turn's (kept) tokens, at every one of them: a turn ends where the number or the sequence changes.

    No number is read back from a device: there are at most as many turns as tokens.
    """
    count, owner = values.shape[0], segments.sequence_of_token
    begins = (turn[1:] != turn[:-1]) | (owner[1:] != owner[:-1])
    place = torch.cat([begins.new_zeros(count - begins.shape[0]), begins]).cumsum(0)
    weight = torch.ones_like(values) if keep is None else keep.to(values.dtype)
    held = values if keep is None else torch.where(keep, values, torch.zeros_like(values))
    means = segment_sum(held, place, count) / segment_sum(weight, place, count).clamp(min=1)
    return means.index_select(0, place)


def sequence_quantile(values: PerToken, segments: Segments, share: float) -> PerSequence:
    """The quantile of each sequence's tokens, between its two neighbours in proportion; 0 for one without tokens."""
    if not segments.num_tokens:
        return values.new_zeros(segments.num_sequences)
    by_value = values.argsort()
    ordered = values[by_value[segments.sequence_of_token[by_value].argsort(stable=True)]]
    place = share * (segments.token_counts - 1).clamp(min=0).double()
    below = segments.first_token.clamp(max=segments.num_tokens - 1) + place.long()
    above = torch.minimum(below + 1, (segments.offsets[1:] - 1).clamp(min=0))
    found = torch.lerp(ordered[below], ordered[above], (place - place.floor()).to(values.dtype))
    return torch.where(segments.token_counts > 0, found, torch.zeros_like(found))


def earlier_sum(values: PerToken, segments: Segments) -> PerToken:
    """The sum over the tokens before each one in its sequence, by doubling: 0 at the first.

    No number is read back from a device, and no other sequence takes part.
    """
    count, owner = values.shape[0], segments.sequence_of_token
    total, reach = _shifted(values, owner, 1), 1
    while reach < count:
        total = total + _shifted(total, owner, reach)
        reach *= 2
    return total


def _shifted(values: PerToken, owner: TokenIndex, by: int) -> PerToken:
    """Each token's value `by` places later; 0 where that is another sequence."""
    moved, same = torch.zeros_like(values), owner[by:] == owner[:-by]
    moved[by:] = torch.where(same, values[:-by], moved[by:])
    return moved


def last_token(segments: Segments) -> tuple[Int[Tensor, " nonempty"], Int[Tensor, " nonempty"]]:
    """Sequences that have tokens, and the index of the last token of each."""
    sequences = (segments.token_counts > 0).nonzero().squeeze(1)
    return sequences, (segments.first_token + segments.token_counts - 1)[sequences]


def bounded_exp(log_value: Tensor) -> Tensor:
    """exp of a log-ratio bounded to ±LOG_BOUND: finite value and finite gradient for every finite input."""
    return torch.exp(log_value.clamp(-LOG_BOUND, LOG_BOUND))


def aggregate(logratio: PerToken, segments: Segments, level: str) -> PerToken:
    """The log-ratio that is exponentiated, at every token: its own, its sequence's sum, or its sequence's mean."""
    if level == "token":
        return logratio
    per_sequence = sequence_sum(logratio, segments) if level == "sequence" else sequence_mean(logratio, segments)
    return to_tokens(per_sequence, segments)


def smallest(order: PerToken, eligible: Keep, count: Tensor, token_key: TokenIndex) -> Keep:
    """The `count` eligible tokens that come first in order; ties go by key, so the batch's order does not matter."""
    by_key = torch.argsort(token_key)
    key = torch.where(eligible, order, torch.full_like(order, torch.inf))
    rank = torch.empty_like(token_key)
    rank[by_key[torch.argsort(key[by_key], stable=True)]] = torch.arange(key.shape[0], device=key.device)
    return eligible & (rank < count)

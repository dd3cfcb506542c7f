"""Discounted sums over the tokens of each sequence: the only place that runs a recursion through time."""

import weakref
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor

from trimtab.signal.layout import PerSequence, PerToken, Segments, TokenIndex
from trimtab.signal.reduce import to_tokens

BLOCK = 32
"""Tokens that a discounted sum goes through one after another; a power of two."""


def discounted_sum(values: PerToken, segments: Segments, discount: float) -> PerToken:
    """sum_{s >= t} discount^(s - t) * values_s inside each sequence.

    Each sequence is cut into blocks of its own, and the recursion runs backwards through all blocks at once. What a
    block owes to the later ones is the same sum over blocks: one number per block, discounted by a block's length.
    """
    blocks = blocks_of(segments)
    lanes, width = min(BLOCK, blocks.longest), blocks.width
    table = values.new_zeros(lanes * width).scatter_(0, blocks.place, values)
    rows = [table[lane * width : (lane + 1) * width] for lane in range(lanes)]
    for lane in range(lanes - 2, -1, -1):
        _ = rows[lane].add_(rows[lane + 1], alpha=discount)
    if blocks.longest > BLOCK:
        reach = discount ** torch.arange(BLOCK, 0, -1, dtype=values.dtype, device=values.device)
        later = _later_blocks(rows[0], blocks, discount**BLOCK)
        _ = table.reshape(lanes, width).addcmul_(reach[:, None], later)
    return table.index_select(0, blocks.place)


def discounted_sum_each(values: PerToken, segments: Segments, discount: PerSequence) -> PerToken:
    """The same with a discount of its own for each sequence."""
    blocks = blocks_of(segments)
    lanes, width, count = min(BLOCK, blocks.longest), blocks.width, blocks.segments.num_tokens
    each = torch.nn.functional.pad(to_tokens(discount, blocks.segments), (0, width - count))
    table = values.new_zeros(lanes * width).scatter_(0, blocks.place, values).reshape(lanes, width)
    for lane in range(lanes - 2, -1, -1):
        _ = table[lane].addcmul_(table[lane + 1], each)
    if blocks.longest > BLOCK:
        reach = each ** torch.arange(BLOCK, 0, -1, dtype=values.dtype, device=values.device)[:, None]
        total = discounted_sum_each(table[0].narrow(0, 0, count), blocks.segments, discount**BLOCK)
        later = torch.where(blocks.is_last, torch.zeros_like(total), total.roll(-1))
        _ = table.addcmul_(reach, torch.nn.functional.pad(later, (0, width - count)))
    return table.reshape(-1).index_select(0, blocks.place)


def _later_blocks(block: Tensor, blocks: "Blocks", discount: float) -> Tensor:
    """For each block, the discounted sum of all later ones of its sequence, seen from the start of the next."""
    count = blocks.segments.num_tokens
    total = discounted_sum(block[:count], blocks.segments, discount)
    later = torch.where(blocks.is_last, torch.zeros_like(total), total.roll(-1))
    return torch.nn.functional.pad(later, (0, blocks.width - count))


@dataclass(frozen=True)
class Blocks:
    """Sequences cut into blocks of BLOCK tokens, side by side: row 0 holds the first token of every block.

    With BLOCK = 2 and width 3, sequences of 3 and 1 tokens have the blocks [0, 1], [2, -] and [3, -]:
    place = [0, 3, 1, 2] in a table of two rows, segments.token_counts = [2, 1], is_last = [False, True, True].
    """

    longest: int
    """Tokens of the longest sequence."""
    width: int
    """Numbers in a row of the table; no fewer than there are blocks."""
    place: TokenIndex
    """Where each token stands in the flat table."""
    segments: Segments
    """Which block belongs to which sequence."""
    is_last: Bool[Tensor, " blocks"]


_known: dict[int, Blocks] = {}
"""Blocks by the identity of their segments; an entry goes when its segments do."""


def blocks_of(segments: Segments) -> Blocks:
    """The blocks of these segments: computed once, however often they are summed over."""
    found = _known.get(id(segments))
    if found is None:
        found = _known[id(segments)] = _cut(segments)
        _ = weakref.finalize(segments, _known.pop, id(segments), None)
    return found


def _cut(segments: Segments) -> Blocks:
    counts = segments.token_counts
    per_sequence = (counts + BLOCK - 1) // BLOCK
    longest, count = (
        cast("list[int]", torch.stack([counts.max(), per_sequence.sum()]).tolist()) if len(counts) else (0, 0)
    )
    owners = Segments.from_counts(per_sequence, count)
    width = (
        count + (16 - count) % 32
    )  # an odd number of cache lines, or the rows of a column would share one set of them
    shift = to_tokens(owners.first_token * BLOCK - segments.first_token, segments)
    spot = torch.arange(segments.num_tokens, device=counts.device) + shift
    place = spot.bitwise_and(BLOCK - 1) * width + spot.bitwise_right_shift(BLOCK.bit_length() - 1)
    sequence = owners.sequence_of_token
    is_last = torch.nn.functional.pad(sequence[1:] != sequence[:-1], (0, min(1, count)), value=True)
    return Blocks(longest, width, place, owners, is_last)

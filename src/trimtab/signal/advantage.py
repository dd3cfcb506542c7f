"""From rewards to advantages: the only place that spreads credit over tokens.

Each formula returns (advantage, returns), one number a trainable token. Time runs over trainable tokens only: an
observation between two actions was never in the batch. A rejected token is still a time step.
"""

import weakref
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.catalogue import Unit, formula
from trimtab.signal.layout import PerSequence, PerToken, Segments, SequenceFlag, TokenIndex, places
from trimtab.signal.reduce import to_tokens

Credit = tuple[PerToken, PerToken]

_PROMISES = ("mask_content", "nonfinite_isolation", "no_aliasing", "permutation", "equals_definition")

BLOCK = 32
"""Tokens that a discounted sum goes through one after another; a power of two."""


@formula(
    source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, outcome supervision", scope="episode", promises=_PROMISES
)
def broadcast(outcome: PerSequence, segments: Segments) -> Credit:
    """Every token gets its episode's normalised reward.

    A_t = outcome of t's sequence
    """
    advantage = to_tokens(outcome, segments)
    return advantage, advantage.clone()


@formula(source="Williams 1992; Hu et al. 2025, REINFORCE++, arXiv:2501.03262", scope="sequence", promises=_PROMISES)
def reward_to_go(token_reward: PerToken, segments: Segments, *, gamma: Unit = 1.0) -> Credit:
    """The discounted sum of the token rewards from here to the end of the sequence.

    A_t = sum_{s >= t} gamma^(s - t) * r_s
    """
    returns = discounted_sum(token_reward, segments, gamma)
    return returns, returns.clone()


@formula(
    source="Schulman et al. 2016, arXiv:1506.02438, eq. 16", scope="sequence", promises=_PROMISES, known_as=("GAE",)
)
def gae(
    token_reward: PerToken,
    value_old: PerToken,
    value_after: PerSequence,
    ended: SequenceFlag,
    segments: Segments,
    *,
    gamma: Unit = 1.0,
    lam: Unit = 1.0,
) -> Credit:
    """Generalised advantage estimation over trainable tokens.

    A_t = sum_{s >= t} (gamma * lam)^(s - t) * d_s,   d_s = r_s + gamma * V_{s+1} - V_s,   returns_t = A_t + V_t

    The value after the last token is 0 where the sequence ended by itself and `value_after` where it was cut off.
    Undefined when a sequence was cut off and value_after is not finite there (raises).
    """
    boundary = torch.where(ended, torch.zeros_like(value_after), value_after)
    is_unknown = ~torch.isfinite(boundary) & (segments.token_counts > 0)
    if bool(is_unknown.any()):
        raise SignalError(
            f"gae: sequences {places(is_unknown)[:8]} did not end by themselves and have no finite value_after, "
            "so the state they were cut off in has no value. "
            "Give value_after for them, or suppress them with not_ended."
        )
    delta = token_reward + gamma * _next_value(value_old, boundary, segments) - value_old
    advantage = discounted_sum(delta, segments, gamma * lam)
    return advantage, advantage + value_old


def _next_value(value: PerToken, boundary: PerSequence, segments: Segments) -> PerToken:
    """The value one token later, and `boundary` after the last. A sequence without tokens writes past the end."""
    num_tokens = value.shape[0]
    last = torch.where(segments.token_counts > 0, segments.offsets[1:] - 1, num_tokens)
    later = value.new_empty(num_tokens + 1)
    later[: max(num_tokens - 1, 0)] = value[1:]
    return later.index_put_((last,), boundary)[:num_tokens]


def discounted_sum(values: PerToken, segments: Segments, discount: float) -> PerToken:
    """sum_{s >= t} discount^(s - t) * values_s inside each sequence.

    Each sequence is cut into blocks of its own, and the recursion runs backwards through all blocks at once. What a
    block owes to the later ones is the same sum over blocks: one number per block, discounted by a block's length.
    """
    blocks = blocks_of(segments)
    if blocks.longest <= 1:
        return values.clone()
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

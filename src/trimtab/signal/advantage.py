"""From rewards to advantages: the only place that spreads credit over tokens.

Each formula returns (advantage, returns), one number a trainable token. Time runs over trainable tokens only: an
observation between two actions was never in the batch. A rejected token is still a time step.
"""

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.catalogue import Unit, formula
from trimtab.signal.layout import PerSequence, PerToken, Segments, SequenceFlag, places
from trimtab.signal.reduce import last_token, to_tokens

Credit = tuple[PerToken, PerToken]

_PROMISES = ("mask_content", "nonfinite_isolation", "no_aliasing", "permutation", "equals_definition")

BLOCK = 32
"""Tokens that a discounted sum works on together."""


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
    unknown = places(~torch.isfinite(boundary) & (segments.token_counts > 0))
    if unknown:
        raise SignalError(
            f"gae: sequences {unknown[:8]} did not end by themselves and have no finite value_after, "
            "so the state they were cut off in has no value. "
            "Give value_after for them, or suppress them with not_ended."
        )
    delta = token_reward + gamma * _next_value(value_old, boundary, segments) - value_old
    advantage = discounted_sum(delta, segments, gamma * lam)
    return advantage, advantage + value_old


def _next_value(value: PerToken, boundary: PerSequence, segments: Segments) -> PerToken:
    sequences, last = last_token(segments)
    return value.roll(-1).index_put((last,), boundary[sequences])


def discounted_sum(values: PerToken, segments: Segments, discount: float) -> PerToken:
    """sum_{s >= t} discount^(s - t) * values_s inside each sequence.

    Each sequence is laid out in blocks of its own. Inside a block and from block to block the sum doubles its reach:
    log2(length) passes, most of them over one number per block.
    """
    longest = int(segments.token_counts.max()) if segments.num_sequences else 0
    if longest <= 1:
        return values.clone()
    last_block = ((segments.token_counts + BLOCK - 1) // BLOCK).cumsum(0)  # one past it, for each sequence
    first_block = torch.nn.functional.pad(last_block, (1, 0))[:-1]
    most = values.shape[0] // BLOCK + segments.num_sequences
    shifted = to_tokens(first_block * BLOCK - segments.first_token, segments)
    place = torch.arange(values.shape[0], device=values.device) + shifted
    table = values.new_zeros(most * BLOCK).index_copy(0, place, values).reshape(most, BLOCK)
    shift, factor = 1, discount
    while shift < BLOCK:
        ahead = factor * table[:, shift:]
        table = torch.cat([table[:, :-shift] + ahead, table[:, -shift:]], 1)
        shift, factor = 2 * shift, factor * factor
    later = _later_blocks(table[:, 0], last_block, discount, longest)
    reach = discount ** torch.arange(BLOCK, 0, -1, dtype=values.dtype, device=values.device)
    return torch.addcmul(table, later[:, None], reach).reshape(-1).index_select(0, place)


def _later_blocks(block: Tensor, last_block: Tensor, discount: float, longest: int) -> Tensor:
    """For each block, the discounted sum of all later ones of its sequence, seen from the start of the next."""
    place = torch.arange(block.shape[0], device=block.device)
    owner = torch.searchsorted(last_block, place, right=True).clamp(max=last_block.shape[0] - 1)
    remaining = last_block[owner] - place
    total = block
    shift, factor = 1, discount**BLOCK
    while shift * BLOCK < longest:
        ahead = torch.nn.functional.pad(total[shift:], (0, min(shift, len(total))))
        total = torch.where(remaining > shift, total + factor * ahead, total)
        shift, factor = 2 * shift, factor * factor
    return torch.where(remaining > 1, torch.nn.functional.pad(total[1:], (0, 1)), 0.0)

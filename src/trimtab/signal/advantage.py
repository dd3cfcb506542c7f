"""From rewards to advantages: the only place that spreads credit over tokens.

Each formula returns (advantage, returns), one number a trainable token. Time runs over trainable tokens only: an
observation between two actions was never in the batch. A rejected token is still a time step.
"""

import torch

from trimtab.errors import SignalError
from trimtab.signal.catalogue import Positive, Unit, formula
from trimtab.signal.discount import discounted_sum, discounted_sum_each
from trimtab.signal.layout import PerSequence, PerToken, Segments, SequenceFlag, places
from trimtab.signal.reduce import to_tokens

Credit = tuple[PerToken, PerToken]

PROMISES = ("mask_content", "nonfinite_isolation", "no_aliasing", "permutation", "equals_definition")


@formula(
    source="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, outcome supervision", scope="episode", promises=PROMISES
)
def broadcast(outcome: PerSequence, segments: Segments) -> Credit:
    """Every token gets its episode's normalised reward.

    A_t = outcome of t's sequence
    """
    advantage = to_tokens(outcome, segments)
    return advantage, advantage.clone()


@formula(source="Williams 1992; Hu et al. 2025, REINFORCE++, arXiv:2501.03262", scope="sequence", promises=PROMISES)
def reward_to_go(token_reward: PerToken, segments: Segments, *, gamma: Unit = 1.0) -> Credit:
    """The discounted sum of the token rewards from here to the end of the sequence.

    A_t = sum_{s >= t} gamma^(s - t) * r_s
    """
    returns = discounted_sum(token_reward, segments, gamma)
    return returns, returns.clone()


@formula(
    source="Schulman et al. 2016, arXiv:1506.02438, eq. 16; Yue et al. 2025, VAPO, arXiv:2504.05118 (lam_value)",
    scope="sequence",
    promises=PROMISES,
    known_as=("GAE",),
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
    lam_value: Unit | None = None,
) -> Credit:
    """Generalised advantage estimation over trainable tokens.

    A_t = sum_{s >= t} (gamma * lam)^(s - t) * d_s,   d_s = r_s + gamma * V_{s+1} - V_s,   returns_t = A_t + V_t

    The value after the last token is 0 where the sequence ended by itself and `value_after` where it was cut off.
    With lam_value, the returns are those of a second estimate with that lambda.
    Settings in use: 0.95 for both; VAPO has lam_value 1.
    Undefined when a sequence was cut off and value_after is not finite there (raises).
    """
    delta = temporal_errors("gae", token_reward, value_old, value_after, ended, segments, gamma)
    advantage = discounted_sum(delta, segments, gamma * lam)
    if lam_value is None:
        return advantage, advantage + value_old
    return advantage, discounted_sum(delta, segments, gamma * lam_value) + value_old


@formula(
    source="Yue et al. 2025, VAPO, arXiv:2504.05118, eq. 7 and 8",
    scope="sequence",
    promises=PROMISES,
    known_as=("length-adaptive GAE",),
)
def gae_by_length(
    token_reward: PerToken,
    value_old: PerToken,
    value_after: PerSequence,
    ended: SequenceFlag,
    segments: Segments,
    *,
    alpha: Positive,
    gamma: Unit = 1.0,
    lam_value: Unit = 1.0,
) -> Credit:
    """GAE whose lambda grows with the length of the sequence, so that a reward at the end reaches as far in each.

    lam_i = max(0, 1 - 1 / (alpha * L_i)),   L_i the trainable tokens;   returns from lam_value, as in gae

    Settings in use: VAPO has alpha 0.05 and lam_value 1; with 0.05, 20 tokens or fewer have lambda 0.
    Undefined as gae is (raises).
    """
    delta = temporal_errors("gae_by_length", token_reward, value_old, value_after, ended, segments, gamma)
    lam = (1 - 1 / (alpha * segments.token_counts.to(delta.dtype))).clamp(min=0)
    returns = discounted_sum(delta, segments, gamma * lam_value) + value_old
    return discounted_sum_each(delta, segments, gamma * lam), returns


@formula(source="AReaL, relative_position_gae_lambda", scope="sequence", promises=PROMISES)
def gae_by_share(
    token_reward: PerToken,
    value_old: PerToken,
    value_after: PerSequence,
    ended: SequenceFlag,
    segments: Segments,
    *,
    share: Unit,
    gamma: Unit = 1.0,
) -> Credit:
    """GAE whose lambda brings the same share of a last reward to the first token, whatever the length.

    lam_i = share^(1 / (L_i - 1)),   unused for a single token;   returns_t = A_t + V_t

    Settings in use: name a share, e.g. 0.5: with gamma 1, half of the last error reaches the first token.
    Undefined as gae is (raises).
    """
    delta = temporal_errors("gae_by_share", token_reward, value_old, value_after, ended, segments, gamma)
    lam = share ** (1 / (segments.token_counts - 1).to(delta.dtype))
    advantage = discounted_sum_each(delta, segments, gamma * lam)
    return advantage, advantage + value_old


def temporal_errors(
    where: str,
    reward: PerToken,
    value: PerToken,
    value_after: PerSequence,
    ended: SequenceFlag,
    segments: Segments,
    gamma: float,
) -> PerToken:
    """d_t = r_t + gamma * V_{t+1} - V_t; after the last step, 0 where the sequence ended and value_after elsewhere."""
    boundary = torch.where(ended, torch.zeros_like(value_after), value_after)
    is_unknown = ~torch.isfinite(boundary) & (segments.token_counts > 0)
    if bool(is_unknown.any()):
        raise SignalError(
            f"{where}: sequences {places(is_unknown)[:8]} did not end by themselves and have no finite value_after, "
            "so the state they were cut off in has no value. "
            "Give value_after for them, or suppress them with not_ended."
        )
    return reward + gamma * _next_value(value, boundary, segments) - value


def _next_value(value: PerToken, boundary: PerSequence, segments: Segments) -> PerToken:
    """The value one token later, and `boundary` after the last. A sequence without tokens writes past the end."""
    num_tokens = value.shape[0]
    last = torch.where(segments.token_counts > 0, segments.offsets[1:] - 1, num_tokens)
    later = torch.nn.functional.pad(value[1:], (0, 2))
    return later.index_put_((last,), boundary)[:num_tokens]

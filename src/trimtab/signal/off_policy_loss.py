"""Policy losses for data that another policy sampled: how they weigh a token whose ratio is far from 1.

Each is a `policy_loss` formula, under the rules of policy_loss.py: one number per token, to be minimised, never
averaged. Rejected tokens arrive as log-ratio 0 and advantage 0, and `keep` says which they are.
"""

from math import exp, inf, log

import torch

from trimtab.signal.catalogue import Band, NonNegative, Positive, formula
from trimtab.signal.correction import RatioLevel
from trimtab.signal.layout import Keep, PerToken, Segments, TokenIndex
from trimtab.signal.policy_loss import Losses, clipped, soft_gated
from trimtab.signal.reduce import LOG_BOUND, bounded_exp, sequence_mean, sequence_sum, to_tokens, turn_mean

_COMMON = ("mask_content", "nonfinite_isolation", "no_aliasing", "split", "permutation", "equals_definition")
_ON_POLICY = (*_COMMON, "on_policy_identity")
_RATIO = (*_ON_POLICY, "metric_truth")

GMPO_BAND = (exp(-0.4), exp(0.4))
"""Zhao et al. 2025: log-ratios between -0.4 and 0.4."""


@formula(
    source="Zhao et al. 2025, GMPO, arXiv:2507.20673",
    stage="policy_loss",
    scope="sequence",
    consumes="ratio",
    promises=_RATIO,
    constant_advantage=True,
    known_as=("GMPO",),
)
def geometric_of_clipped(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    keep: Keep,
    segments: Segments,
    *,
    band: Band = GMPO_BAND,
) -> Losses:
    """The geometric mean of a sequence's ratios, each clipped on the side to which its advantage pulls.

    l_t = -A_t * exp(mean over kept tokens of u),   u_t = min(d_t, log(band[1])) if A_t > 0, max(d_t, log(band[0]))
    elsewhere,   d_t = logp_current_t - logp_anchor_t

    geometric_clipped clips the mean, this one what goes into it: a clipped token loses its own gradient only.
    Settings in use: 0.4 both ways in log-ratios, (0.67, 1.49).
    Differs from verl and TRL: a sequence without kept tokens is no sequence. There it is counted in the mean, and in
    TRL it adds -A_t, the loss at ratio 1, without a gradient.
    Undefined when the advantage or the importance varies inside a sequence (the pipeline refuses).
    """
    low, high = log(band[0]) if band[0] > 0 else -inf, log(band[1])
    log_ratio = logp_current - logp_anchor.detach()
    bounded = torch.where(advantage > 0, log_ratio.clamp(max=high), log_ratio.clamp(min=low))
    ratio = bounded_exp(to_tokens(sequence_mean(bounded, segments, keep), segments))
    stopped = ((advantage > 0) & (log_ratio > high)) | ((advantage < 0) & (log_ratio < low))
    return -ratio * advantage.detach(), {"clipped_tokens": stopped}


@formula(
    source="Shen et al. 2026, VESPO (Variational Sequence-Level Soft Policy Optimization), arXiv:2602.10693",
    stage="policy_loss",
    scope="sequence",
    consumes="ratio",
    promises=_ON_POLICY,
    known_as=("VESPO",),
)
def gamma_weighted(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    segments: Segments,
    *,
    power_positive: NonNegative = 2.0,
    rate_positive: NonNegative = 3.0,
    power_negative: NonNegative = 3.0,
    rate_negative: NonNegative = 2.0,
) -> Losses:
    """REINFORCE under a smooth, detached weight of the sequence's whole ratio: 1 at ratio 1, and 0 at both ends.

    l_t = -sg(W^power * exp(rate * (1 - W))) * A_t * logp_current_t,   power and rate by the sign of A_t
    W = exp(sum over the sequence of (logp_current - logp_anchor))

    The product is not normalised by length, so long sequences reach the ends sooner.
    Settings in use: (2, 3) where A >= 0 and (3, 2) where A < 0, TRL and the authors; the anchor is the sampler, so the
    loss carries both factors and needs no importance beside it.
    Differs from TRL: the sum is bounded to ±20, not its tokens before it; and a rejected token leaves the product,
    where in TRL it takes its sequence to weight 0.
    """
    log_ratio = sequence_sum((logp_current - logp_anchor).detach(), segments).clamp(-LOG_BOUND, LOG_BOUND)
    whole = to_tokens(log_ratio, segments)
    positive = advantage >= 0
    power = torch.where(positive, whole.new_tensor(power_positive), whole.new_tensor(power_negative))
    rate = torch.where(positive, whole.new_tensor(rate_positive), whole.new_tensor(rate_negative))
    weight = torch.exp(power * whole - rate * torch.expm1(whole))
    return -weight * advantage.detach() * logp_current, {}


@formula(
    source="Richemond et al. 2024, DRO, arXiv:2405.19107; Kimi Team 2025, Kimi k1.5, arXiv:2501.12599, eq. 3",
    stage="policy_loss",
    scope="token",
    promises=_ON_POLICY,
    known_as=("DRO", "Kimi k1.5"),
)
def quadratic(logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken, *, coef: NonNegative = 0.1) -> Losses:
    """REINFORCE with a quadratic leash to the anchor, and no ratio.

    l_t = -A_t * logp_current_t + coef / 2 * (logp_current_t - logp_anchor_t)^2

    It is made for data of another policy and yet corrects no factor: the leash holds instead, so it consumes nothing.
    An importance beside it weighs the leash too.
    Settings in use: coef is 0.1 in ROLL, 0.05 in Tinker's example; verl has no default.
    Differs from the papers: per token. Theirs is of the sequence's summed log-ratio; the frameworks are per token too.
    """
    leash = 0.5 * coef * (logp_current - logp_anchor.detach()).square()
    return leash - advantage.detach() * logp_current, {}


@formula(
    source="Le Roux et al. 2025, Tapered Off-Policy REINFORCE (TOPR), arXiv:2503.14286, eq. 8",
    stage="policy_loss",
    scope="sequence",
    consumes="ratio",
    promises=_RATIO,
    known_as=("TOPR",),
)
def tapered(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    keep: Keep,
    segments: Segments,
    *,
    band: Band = (0.0, 1.0),
    level: RatioLevel = "token",
) -> Losses:
    """REINFORCE in full for what is better than average, and under a bounded, detached ratio for what is worse.

    l_t = -A_t * logp_current_t where A_t > 0;   -sg(clamp(r_t, *band)) * A_t * logp_current_t elsewhere
    r_t = exp of the token's own log-ratio | its sequence's sum | its sequence's mean over kept tokens

    Settings in use: band (0, 1); ROLL level = "token", the paper level = "sequence".
    Differs from the paper and ROLL: the side is the sign of the advantage, not of the score, because the loss knows no
    score. With normalize.raw and rewards of both signs they are the same.
    """
    log_ratio = (logp_current - logp_anchor).detach()
    ratio = bounded_exp(_aggregate(log_ratio, keep, segments, level))
    worse = advantage <= 0
    weight = torch.where(worse, ratio.clamp(*band), torch.ones_like(ratio))
    seen = {"clipped_tokens": worse & ((ratio < band[0]) | (ratio > band[1]))}
    return -weight * advantage.detach() * logp_current, seen


@formula(
    source="Gao et al. 2025, SAPO, arXiv:2511.20347, eq. 5 and 6 (the gate); AReaL, on the sequence's ratio",
    stage="policy_loss",
    scope="sequence",
    consumes="ratio",
    promises=_RATIO,
    constant_advantage=True,
    known_as=("sequence SAPO",),
)
def geometric_soft_gated(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    keep: Keep,
    segments: Segments,
    *,
    temperature_positive: Positive = 1.0,
    temperature_negative: Positive = 1.05,
) -> Losses:
    """The gate of soft_gated on the sequence's geometric-mean ratio; its gradient is shared by the sequence's tokens.

    l_t = -A_t * (4 / tau) * sigmoid(tau * (s - 1)),   s = exp(mean over kept tokens of (logp_current - logp_anchor))

    Differs from AReaL: an advantage that varies inside a sequence is refused, where AReaL takes its mean.
    """
    log_ratio = to_tokens(sequence_mean(logp_current - logp_anchor.detach(), segments, keep), segments)
    settings = {"temperature_positive": temperature_positive, "temperature_negative": temperature_negative}
    return soft_gated(log_ratio, torch.zeros_like(log_ratio), advantage, **settings)


@formula(
    source="ROLL, agentic ratio_type = segment; Zheng et al. 2025, GSPO, arXiv:2507.18071, eq. 14 and 15 (gradient)",
    stage="policy_loss",
    scope="sequence",
    consumes="ratio",
    promises=_RATIO,
    known_as=("segment ratio",),
)
def turn_clipped(
    logp_current: PerToken,
    logp_anchor: PerToken,
    advantage: PerToken,
    keep: Keep,
    segments: Segments,
    turn: TokenIndex,
    *,
    band: Band = (0.8, 1.2),
) -> Losses:
    """The PPO surrogate on the geometric-mean ratio of each turn, with each token's own gradient.

    l_t = -min(s_t * A_t, clamp(s_t, *band) * A_t),   s_t = sg(s) * exp(logp_current_t - sg(logp_current_t))
    s = exp(mean over the kept tokens of t's turn of (logp_current - logp_anchor))

    Where advantage and weight are the same inside a turn, its gradient is that of the shared ratio, as in ROLL.
    Differs from ROLL: a turn is a turn, not a run of trainable tokens; and an advantage may vary inside a turn.
    """
    shared = turn_mean((logp_current - logp_anchor).detach(), segments, turn, keep)
    log_ratio = shared.clamp(-LOG_BOUND, LOG_BOUND) + logp_current - logp_current.detach()
    return clipped(log_ratio, torch.zeros_like(log_ratio), advantage, band=band)


def _aggregate(log_ratio: PerToken, keep: Keep, segments: Segments, level: str) -> PerToken:
    """The log-ratio at a level, at every token; a rejected token is in no mean, and adds 0 to a sum."""
    if level == "token":
        return log_ratio
    if level == "geometric":
        return to_tokens(sequence_mean(log_ratio, segments, keep), segments)
    return to_tokens(sequence_sum(torch.where(keep, log_ratio, torch.zeros_like(log_ratio)), segments), segments)

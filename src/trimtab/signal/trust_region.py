"""Trust regions: which tokens are left out because two policies differ too much at them, or around them.

Each is a `keep` formula. Where correction.py bounds ratios, these bound distances of policies: a difference of two
probabilities of the sampled token, a divergence. `logp_later` and `logp_earlier` are the two ends of
the ratio that the recipe chose, so each can be asked about the engine (old against rollout), the update (current
against old) or both (current against rollout). A formula that reads the advantage decides after the vote.
"""

from typing import Literal

import torch

from trimtab.signal.catalogue import Band, Count, Positive, Rule, Unit, formula
from trimtab.signal.correction import Observations
from trimtab.signal.layout import Keep, PerSequence, PerToken, Segments, TokenIndex
from trimtab.signal.reduce import bounded_exp, segment_extreme, sequence_mean, sequence_sum, to_tokens

Level = Literal["token", "sequence"]
Direction = Literal["earlier_to_later", "later_to_earlier", "larger"]
Measure = Literal["k2", "k3", "ratio_distance", "exp_distance"]
Total = Literal["mean", "sum"]
Newest = Literal["batch", "sequence"]

_COMMON = ("mask_content", "nonfinite_isolation", "no_aliasing", "permutation", "equals_definition", "metric_truth")
_DECISION = (*_COMMON, "split", "decision_granularity")
_DPPO = "Qi et al. 2026, Rethinking the Trust Region in LLM RL (DPPO), arXiv:2602.04879"


@formula(
    source=f"{_DPPO}, eq. 13 (by sign); prime-rl, IPO loss (both signs); ROLL, probability-difference filter",
    stage="keep",
    scope="token",
    promises=_DECISION,
    known_as=("DPPO-TV", "probability-difference filter"),
)
def probability_band(
    logp_later: PerToken,
    logp_earlier: PerToken,
    advantage: PerToken,
    *,
    low: Positive = 0.2,
    high: Positive = 0.2,
    by_sign: bool = True,
) -> tuple[Keep, Observations]:
    """Keep a token unless its probability moved too far; by sign, unless it moved too far to where its advantage pulls.

    x_t = exp(logp_later_t) - exp(logp_earlier_t)
    by_sign: rejected iff x_t > high and advantage_t > 0, or x_t < -low and advantage_t < 0
    otherwise: rejected iff x_t > high or x_t < -low

    Settings in use: DPPO low = high = 0.2, by sign, on `total` (the sampler is the anchor; verl takes `update`);
    prime-rl's IPO 0.1 and ROLL 0.2, not by sign. Without the sign, moves back to the anchor are rejected too, so a
    token that has drifted stays where it is.
    Differs from verl and prime-rl: a token of advantage 0 is kept, since it has no sign.
    """
    moved = _probability(logp_later) - _probability(logp_earlier)
    over, under = moved > high, moved < -low
    rejected = (over & (advantage > 0)) | (under & (advantage < 0)) if by_sign else over | under
    return ~rejected, {"over_high_tokens": over, "under_low_tokens": under}


@formula(
    source="Schulman et al. 2017, PPO, arXiv:1707.06347, eq. 7 (the gate alone); MiniMax 2025, MiniMax-M1, "
    "arXiv:2506.13585, eq. 7 (unified mask)",
    stage="keep",
    scope="token",
    promises=_DECISION,
    known_as=("CISPO unified mask",),
)
def token_band_by_sign(logratio: PerToken, advantage: PerToken, *, band: Band) -> tuple[Keep, Observations]:
    """Reject a token whose ratio has left the band on the side to which its advantage pulls: the gate of the PPO clip.

    rejected iff exp(logratio_t) > band[1] and advantage_t > 0, or exp(logratio_t) < band[0] and advantage_t < 0

    Settings in use: PPO (0.8, 1.2); on `update`, beside policy_loss.clipped_importance, ROLL's cispo_use_unified_mask.
    """
    ratio = bounded_exp(logratio)
    over, under = ratio > band[1], ratio < band[0]
    rejected = (over & (advantage > 0)) | (under & (advantage < 0))
    return ~rejected, {"over_high_tokens": over, "under_low_tokens": under}


@formula(
    source=f"{_DPPO}, eq. 14 (by sign); Ling Team 2026, Ring-2.6, arXiv:2606.15079 (KPop, not by sign)",
    stage="keep",
    scope="sequence",
    promises=_DECISION,
    known_as=("DPPO-KL", "KPop"),
    rules=(
        Rule(
            lambda given: given["level"] == "token" or not given["by_sign"],
            "by_sign compares the move of one token with its advantage, and a mean over a sequence has no such move; "
            "use level = 'token'",
        ),
    ),
)
def binary_kl(
    logp_later: PerToken,
    logp_earlier: PerToken,
    advantage: PerToken,
    segments: Segments,
    *,
    limit: Positive,
    level: Level = "token",
    direction: Direction = "earlier_to_later",
    by_sign: bool = True,
    eps: Positive = 1e-8,
) -> tuple[Keep, Observations]:
    """Keep what is near in binary KL, that of two coins which show the sampled token; by sign, as in probability_band.

    b_t = p * (log p - log q) + (1 - p) * log((1 - p + eps) / (1 - q + eps)), of the sampled token
    p is of the earlier policy and q of the later one (earlier_to_later), the other way round, or the larger of the two
    rejected iff b_t > limit, or its mean over the sequence; by_sign: only where advantage_t * (log p' - log q') > 0
    with p' of the later policy and q' of the earlier one

    Settings in use: limit is 0.05 in DPPO, by sign, per token, on `total`. OpenRLHF: earlier_to_later on `engine`, per
    token or as a sequence's mean. AReaL: the larger of both.
    Differs from verl and SkyRL: one limit for both signs. verl's own comes from its clip range, 0.2, which is wide for
    a KL. Near probability 1 a small move is a large KL: from 1 - 1e-7 to 0.99 it is 0.01, from 0.5 to 0.49 it is 2e-4.
    """
    forward = _binary_kl(logp_earlier, logp_later, eps)
    backward = _binary_kl(logp_later, logp_earlier, eps)
    choices = {"earlier_to_later": forward, "later_to_earlier": backward, "larger": torch.maximum(forward, backward)}
    if level == "sequence":
        return _within(sequence_mean(choices[direction], segments), segments, limit)
    over = choices[direction] > limit
    outward = _pulls(advantage, logp_later - logp_earlier)
    return ~(over & outward) if by_sign else ~over, {"over_high_tokens": over}


@formula(
    source="OpenRLHF, truncation by total variation (is_correction_gating = tv)",
    stage="keep",
    scope="sequence",
    promises=_DECISION,
    known_as=("TV gate",),
)
def total_variation(
    logp_later: PerToken, logp_earlier: PerToken, segments: Segments, *, limit: Positive
) -> tuple[Keep, Observations]:
    """Keep a sequence iff the probabilities of its tokens differ little on average.

    keep = mean_t |exp(logp_later_t) - exp(logp_earlier_t)| <= limit

    For one token it is probability_band with low = high = limit and by_sign = false.
    Settings in use: OpenRLHF names no default. It is not open-instruct's: that is divergence with ratio_distance.
    """
    apart = (_probability(logp_later) - _probability(logp_earlier)).abs()
    return _within(sequence_mean(apart, segments), segments, limit)


@formula(
    source="Schulman 2020, joschu.net/blog/kl-approx.html (k2, k3); Li et al. 2025, Trust Region Masking, "
    "arXiv:2512.23075; NeMo-RL, sequence log-prob error (exp_distance); open-instruct (ratio_distance)",
    stage="keep",
    scope="sequence",
    promises=_DECISION,
    known_as=("sequence KL limit",),
)
def divergence(
    logratio: PerToken, segments: Segments, *, limit: Positive, measure: Measure = "k3", total: Total = "mean"
) -> tuple[Keep, Observations]:
    """Keep a sequence iff the divergence of its tokens, averaged or added up, is at most the limit.

    keep = mean or sum over t of f(d_t) <= limit,   d_t = logratio_t
    k2: d^2 / 2   k3: exp(d) - d - 1   ratio_distance: |exp(d) - 1|   exp_distance: exp(|d|)

    exp_distance is 1 where policies agree, so its limit is above 1, and one far token decides for its sequence.
    Settings in use: k3 with a mean of 0.01 in verl. ratio_distance estimates twice the total variation
    (open-instruct). A limit on one token, or on the largest of a sequence, is a band: keep.token_band, keep.veto.
    Differs from AReaL: its k3 takes -d, which is right for samples of the later policy, and the earlier one sampled.
    """
    exponential = bounded_exp(logratio)
    values = {
        "k2": 0.5 * logratio.square(),
        "k3": exponential - logratio - 1,
        "ratio_distance": (exponential - 1).abs(),
        "exp_distance": bounded_exp(logratio.abs()),
    }[measure]
    reduced = sequence_mean(values, segments) if total == "mean" else sequence_sum(values, segments)
    return _within(reduced, segments, limit)


@formula(
    source="Honari et al. 2026, Align and Filter (VACO), arXiv:2603.01365, as in open-instruct "
    "(rho_mask_tv_divergence)",
    stage="keep",
    scope="sequence",
    promises=(*_COMMON, "split"),
    known_as=("VACO",),
)
def outward_drift(
    logratio: PerToken, advantage: PerToken, segments: Segments, *, limit: Positive
) -> tuple[Keep, Observations]:
    """In a sequence that has drifted, reject the tokens whose gradient would carry it further.

    rejected iff mean_t |exp(logratio_t) - 1| > limit and advantage_t * logratio_t > 0

    The sequence is measured and the token is decided about: some of its tokens stay.
    Settings in use: none is published; open-instruct's comes from the upper bound of its band.
    Differs from open-instruct: no lower bound. Its lower bound rejects sequences that hardly drifted.
    """
    drifted = sequence_mean((bounded_exp(logratio) - 1).abs(), segments) > limit
    return ~(to_tokens(drifted, segments) & _pulls(advantage, logratio)), {"drifted_sequences": drifted}


@formula(
    source="Wang et al. 2025, Beyond the 80/20 Rule, arXiv:2506.01939 (high-entropy tokens)",
    stage="keep",
    scope="update",
    promises=("no_aliasing", "permutation", "equals_definition", "metric_truth"),
    known_as=("top entropy quantile",),
)
def high_entropy(entropy: PerToken, *, fraction: Unit = 0.2) -> tuple[Keep, Observations]:
    """Keep the `fraction` of the update's tokens at which the current policy is least certain.

    keep_t = entropy_t >= the n-th largest entropy of the update,   n = fraction * number of tokens, rounded down

    At least one token stays; of equal ones all do.
    Settings in use: 0.2 in the paper; TRL's top_entropy_quantile is the same fraction, 1 by default.
    Differs from TRL: over the whole update, not per micro-batch; and TRL interpolates its quantile, so it may keep one
    token more. Whether rejected tokens count in the denominator is the weighting's choice, `over`.
    """
    if not entropy.numel():
        return torch.ones_like(entropy, dtype=torch.bool), {"under_low_tokens": torch.zeros_like(entropy).bool()}
    count = max(int(entropy.numel() * fraction), 1)
    under = entropy < entropy.topk(count).values[-1]
    return ~under, {"under_low_tokens": under}


@formula(
    source="slime, mask_offpolicy_in_partial_rollout",
    stage="keep",
    scope="batch",
    promises=("no_aliasing", "permutation", "equals_definition", "metric_truth"),
    known_as=("version mask",),
)
def recent_version(
    version: TokenIndex, segments: Segments, *, lag: Count = 0, newest: Newest = "batch"
) -> tuple[Keep, Observations]:
    """Keep the tokens that were sampled by the newest version of the parameters, or by one of the `lag` before it.

    keep_t = version_t >= newest - lag

    newest = "batch" is the newest version of any token of the batch, "sequence" that of the token's own sequence: of an
    answer that was interrupted and resumed, what came after the last resumption stays.
    Settings in use: slime and miles lag = 0 by sequence, where a rollout was resumed.
    """
    if newest == "sequence":
        latest = segment_extreme(version.double(), segments.sequence_of_token, segments.num_sequences, "amax")
        stale = version < to_tokens(latest, segments) - lag
    else:
        stale = version < version.max() - lag if version.numel() else torch.zeros_like(version, dtype=torch.bool)
    return ~stale, {"under_low_tokens": stale}


def _probability(logp: PerToken) -> PerToken:
    """Of the sampled token. A log-prob may lie above 0 by rounding, a probability not above 1."""
    return torch.exp(logp.clamp(max=0))


def _binary_kl(logp: PerToken, logq: PerToken, eps: float) -> PerToken:
    """KL of a coin that shows the token with probability exp(logp) from one with exp(logq)."""
    logp, logq = logp.clamp(max=0), logq.clamp(max=0)
    other_p, other_q = -torch.expm1(logp), -torch.expm1(logq)
    return torch.exp(logp) * (logp - logq) + other_p * torch.log((other_p + eps) / (other_q + eps))


def _within(value: PerSequence, segments: Segments, limit: float) -> tuple[Keep, Observations]:
    """Sequences up to the limit; one without tokens has 0."""
    over = value > limit
    return to_tokens(~over, segments), {"over_high_sequences": over}


def _pulls(advantage: PerToken, logratio: PerToken) -> Keep:
    """Whether the advantage carries the token on in the direction in which it has moved."""
    return advantage * logratio > 0

"""Off-policy corrections: the only place that decides how much a token counts because somebody else sampled it.

correction = importance × keep. An importance is a detached factor above zero; a keep is true or false, so it carries no
gradient. Each formula reads the same untouched log-ratio, chosen by the recipe: `engine` = old − rollout (the sampler
differs from the trainer), `update` = current − old, `total` = current − rollout (both). Stages never see one another,
so they commute. Each returns its result and its observations; a name's ending, `_tokens` or `_sequences`, is the level
it is counted at.
"""

from typing import Literal

import torch
from torch import Tensor

from trimtab.signal.catalogue import Band, Positive, Rule, formula
from trimtab.signal.layout import Keep, PerToken, Segments, SequenceFlag, TokenIndex
from trimtab.signal.reduce import (
    LOG_BOUND,
    aggregate,
    bounded_exp,
    sequence_any,
    sequence_mean,
    sequence_sum,
    to_tokens,
    turn_mean,
)

RatioLevel = Literal["token", "sequence", "geometric"]
Observations = dict[str, Tensor]

_COMMON = ("mask_content", "nonfinite_isolation", "no_aliasing", "split", "permutation", "equals_definition")
_IMPORTANCE = (*_COMMON, "importance_contract")
_DECISION = (*_COMMON, "decision_granularity", "metric_truth")


@formula(
    source="Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training (token, TIS); "
    "Liu et al. 2025, When Speed Kills Stability (sequence, Seq-TIS); MiniMax 2025, arXiv:2506.13585 (two-sided)",
    stage="importance",
    scope="sequence",
    consumes="ratio",
    promises=_IMPORTANCE,
    known_as=("TIS", "sequence TIS", "off-policy importance sampling"),
)
def truncated(
    logratio: PerToken, segments: Segments, *, level: RatioLevel = "token", band: Band = (0.0, 2.0)
) -> tuple[PerToken, Observations]:
    """The ratio, bounded to a band and detached.

    w_t = clamp(exp(a_t), *band),   a_t = logratio_t | sum over the sequence | mean over the sequence

    band = (0, C) is single-sided truncation at C; (1 - eps_low, 1 + eps_high) is the two-sided clip of slime #2084.
    """
    exponent = aggregate(logratio.detach(), segments, level)
    ratio = bounded_exp(exponent)
    low, high = band
    seen = {
        "over_high_tokens": ratio > high,
        "under_low_tokens": ratio < low,
        "exponent_bounded_tokens": exponent.abs() > LOG_BOUND,
    }
    if level != "token":
        seen["over_high_sequences"] = sequence_any(ratio > high, segments)
        seen["under_low_sequences"] = sequence_any(ratio < low, segments)
    return ratio.clamp(low, high), seen


@formula(
    source="verl, rollout_is_batch_normalize; self-normalised importance sampling: Owen 2013, Monte Carlo, ch. 9.2",
    stage="importance",
    scope="update",
    consumes="ratio",
    promises=("no_aliasing", "permutation", "equals_definition", "importance_contract"),
    known_as=("batch-normalised TIS",),
)
def self_normalised(
    logratio: PerToken,
    segments: Segments,
    trains: SequenceFlag,
    *,
    level: RatioLevel = "token",
    band: Band = (0.0, 2.0),
) -> tuple[PerToken, Observations]:
    """The truncated ratio over its own mean, so that a drift does not change the size of the step.

    w_t = v_t / mean of v,   v_t = clamp(exp(a_t), *band), a_t as in truncated

    The mean is over the tokens of sequences that train (over these sequences, at their levels), kept or not. The band
    bounds what enters it; the result may leave the band (decision 37). On `engine` it is the mean of the batch.
    Differs from verl: over the whole update, not over what ranks hold at one time, so a split changes nothing.
    """
    values, seen = truncated(logratio, segments, level=level, band=band)
    counts = to_tokens(trains, segments)
    if level != "token":
        share = to_tokens(segments.token_counts, segments).to(values.dtype).reciprocal()
    else:
        share = torch.ones_like(values)
    # Who does not train enters no sum, not even as a number times 0: it may be nan.
    total = torch.where(counts, share, 0.0).sum()
    mean = torch.where(counts, values * share, 0.0).sum() / total
    # Where nothing trains there is no mean, and nothing is divided.
    return values / torch.where(total > 0, mean, torch.ones_like(mean)), seen


@formula(
    source="ROLL, importance by generated segment (is_weight.weight_type = segment)",
    stage="importance",
    scope="sequence",
    consumes="ratio",
    promises=_IMPORTANCE,
    known_as=("segment TIS",),
)
def truncated_by_turn(
    logratio: PerToken, segments: Segments, turn: TokenIndex, *, band: Band = (0.0, 2.0)
) -> tuple[PerToken, Observations]:
    """The geometric-mean ratio of each turn, bounded to a band and detached.

    w_t = clamp(exp(mean over t's turn of logratio), *band)

    Settings in use: band (0, 1.2) in ROLL.
    Differs from ROLL: a turn is a turn. There it is a run of trainable tokens, so two turns without a gap are one.
    """
    exponent = turn_mean(logratio.detach(), segments, turn)
    ratio = bounded_exp(exponent)
    low, high = band
    seen = {
        "over_high_tokens": ratio > high,
        "under_low_tokens": ratio < low,
        "exponent_bounded_tokens": exponent.abs() > LOG_BOUND,
    }
    return ratio.clamp(low, high), seen


@formula(
    source="Ling Team 2025, Ring-1T, arXiv:2510.18855 (IcePop)",
    stage="keep",
    scope="token",
    promises=_DECISION,
    known_as=("IcePop", "token mask"),
)
def token_band(logratio: PerToken, *, band: Band) -> tuple[Keep, Observations]:
    """Keep a token iff its own ratio lies in the band.

    keep_t = band[0] <= exp(logratio_t) <= band[1]

    Settings in use: IcePop and OpenRLHF (0.5, 5), SkyRL (0.5, 2).
    """
    ratio = bounded_exp(logratio)
    over, under = ratio > band[1], ratio < band[0]
    return ~(over | under), {"over_high_tokens": over, "under_low_tokens": under}


@formula(
    source="Liu et al. 2025, When Speed Kills Stability (Seq-MIS)",
    stage="keep",
    scope="sequence",
    promises=_DECISION,
    known_as=("product mask", "Seq-MIS"),
)
def product_band(logratio: PerToken, segments: Segments, *, band: Band) -> tuple[Keep, Observations]:
    """Keep a sequence iff the product of its token ratios lies in the band.

    keep = band[0] <= exp(sum_t logratio_t) <= band[1]

    Settings in use: SkyRL (0.5, 2), TRL (0, 3). The product grows with length: long sequences leave any fixed band.
    """
    return _sequence_band(sequence_sum(logratio, segments), segments, band)


@formula(
    source="Liu et al. 2025, When Speed Kills Stability (Geo-RS)",
    stage="keep",
    scope="sequence",
    promises=_DECISION,
    known_as=("geometric mask", "Geo-RS"),
)
def geometric_band(logratio: PerToken, segments: Segments, *, band: Band) -> tuple[Keep, Observations]:
    """Keep a sequence iff the geometric mean of its token ratios lies in the band.

    keep = band[0] <= exp(mean_t logratio_t) <= band[1]

    Settings in use: SkyRL (0.99, 1.01), verl (0.999, 1.001).
    """
    return _sequence_band(sequence_mean(logratio, segments), segments, band)


def _sequence_band(exponent: Tensor, segments: Segments, band: tuple[float, float]) -> tuple[Keep, Observations]:
    ratio = bounded_exp(exponent)
    filled = segments.token_counts > 0
    over, under = (ratio > band[1]) & filled, (ratio < band[0]) & filled
    return to_tokens(~(over | under), segments), {"over_high_sequences": over, "under_low_sequences": under}


@formula(
    source="Liu et al. 2025, When Speed Kills Stability (token veto)",
    stage="keep",
    scope="sequence",
    promises=_DECISION,
    known_as=("outlier veto", "token veto"),
    rules=(
        Rule(
            lambda given: (given["low"] or 0.0) <= 1 <= (given["high"] or float("inf")),
            "low is at most 1 and high at least 1; otherwise a token that did not drift at all is rejected",
        ),
        Rule(
            lambda given: given["low"] is not None or given["high"] is not None,
            "without a bound it would reject nothing; name low, high or both",
        ),
    ),
)
def veto(
    logratio: PerToken, segments: Segments, *, low: Positive | None = None, high: Positive | None = None
) -> tuple[Keep, Observations]:
    """Reject a whole sequence as soon as one of its tokens has a ratio below low or above high.

    keep = all_t (low <= exp(logratio_t) <= high); a bound of None is not there

    Settings in use: SkyRL suggests low 1e-4 and high 100.
    """
    ratio = bounded_exp(logratio)
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    over = sequence_any(ratio > high if high is not None else nothing, segments)
    under = sequence_any(ratio < low if low is not None else nothing, segments)
    return to_tokens(~(over | under), segments), {"over_high_sequences": over, "under_low_sequences": under}


@formula(
    source="DeepSeek-AI 2025, DeepSeek-V3.2, arXiv:2512.02556, off-policy sequence masking; slime #1917",
    stage="keep",
    scope="sequence",
    promises=_DECISION,
    known_as=("OPSM", "off-policy sequence masking"),
)
def negative_drift(
    logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken, segments: Segments, *, delta: float
) -> tuple[Keep, Observations]:
    """Reject a sequence that is worse than average and that the policy has already moved away from.

    rejected iff mean_t(advantage_t) < 0 and mean_t(logp_anchor_t - logp_current_t) > delta

    One decision per sequence, at every one of its tokens; non-negative sequences are always kept. The anchor is the
    sampler (`anchor = "rollout"`, DeepSeek-V3.2 and TRL) or the trainer's old policy (`anchor = "old"`, slime).
    Settings in use: delta is 1e-4 in slime, 0.05 to 0.2 in Trinity, 0.5 in TRL; DeepSeek published none.
    """
    drift = sequence_mean(logp_anchor - logp_current, segments)
    rejected = (sequence_mean(advantage, segments) < 0) & (drift > delta)
    return to_tokens(~rejected, segments), {"drifted_sequences": (drift > delta) & (segments.token_counts > 0)}

"""Formulas about whole sequences, worked out once per sequence: the same numbers without a pass over the tokens.

Each function here stands for the formula of its name and gives what that formula gives at every token of a sequence.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trimtab.signal.fields import Field
from trimtab.signal.ingredient import Stage
from trimtab.signal.layout import Segments
from trimtab.signal.parts import Part
from trimtab.signal.ratio import Ratio, bounded_factor
from trimtab.signal.reduce import LOG_BOUND, sequence_mean
from trimtab.signal.stages import Answer, Seen, logratio
from trimtab.signal.tensors import Array, between, host, in_precision, library

PerSequenceAnswer = tuple[Array, Seen]


def truncated(ratio: Ratio, *, level: str, band: tuple[float, float]) -> PerSequenceAnswer | None:
    """importance.truncated of whole sequences; None where it is about tokens."""
    if level == "token":
        return None
    exponent = _as_held(ratio.total if level == "sequence" else ratio.mean, ratio)
    factor, (low, high) = bounded_factor(exponent), band
    over, under = factor > high, factor < low
    segments, filled = ratio.segments, ratio.segments.filled
    seen: dict[str, Field | Array] = {
        "over_high_tokens": Field(over, segments, True),
        "under_low_tokens": Field(under, segments, True),
        "exponent_bounded_tokens": Field(abs(exponent) > LOG_BOUND, segments, True),
        "over_high_sequences": over & filled,
        "under_low_sequences": under & filled,
    }
    return between(factor, low, high), seen


def _as_held(values: Array, ratio: Ratio) -> Array:
    """In the precision of the log-probs, in which the formula decides."""
    return in_precision(values, ratio.dtype)


def product_band(ratio: Ratio, *, band: tuple[float, float]) -> PerSequenceAnswer:
    return _band(_as_held(ratio.total, ratio), ratio.segments, band)


def geometric_band(ratio: Ratio, *, band: tuple[float, float]) -> PerSequenceAnswer:
    return _band(_as_held(ratio.mean, ratio), ratio.segments, band)


def _band(exponent: Array, segments: Segments, band: tuple[float, float]) -> PerSequenceAnswer:
    ratio = bounded_factor(exponent)
    over, under = (ratio > band[1]) & segments.filled, (ratio < band[0]) & segments.filled
    return ~(over | under), {"over_high_sequences": over, "under_low_sequences": under}


def veto(ratio: Ratio, *, low: float | None, high: float | None) -> PerSequenceAnswer:
    """keep.veto: a ratio is beyond a bound if the extreme one is."""
    least, most = map(bounded_factor, ratio.extremes)
    filled = ratio.segments.filled
    over = (most > high) & filled if high is not None else ~filled & filled
    under = (least < low) & filled if low is not None else ~filled & filled
    return ~(over | under), {"over_high_sequences": over, "under_low_sequences": under}


def token_mean(one: Array, keep: Array, segments: Segments, *, over: str) -> Array:
    return one / ((segments.measures[:, 0] * keep).sum() if over == "kept" else segments.num_tokens)


def sequence_mean_token_mean(one: Array, keep: Array, segments: Segments, *, over: str) -> Array:
    # An empty sequence has no token to weigh; a divisor of 0 must not become a weight of infinity.
    tokens = between(segments.measures[:, 0], 1, None)
    return one / (tokens * _sequences(keep, segments, over))


def sequence_mean_token_sum(one: Array, keep: Array, segments: Segments, *, over: str) -> Array:
    return one / _sequences(keep, segments, over)


def constant_divisor(one: Array, keep: Array, segments: Segments, *, divisor: float, over: str) -> Array:
    return one / _sequences(keep, segments, over) / divisor


def _sequences(keep: Array, segments: Segments, over: str) -> Array:
    return (segments.filled & keep if over == "kept" else segments.filled).sum()


STAGES: dict[str, Callable[..., PerSequenceAnswer | None]] = {
    "importance.truncated": truncated,
    "keep.product_band": product_band,
    "keep.geometric_band": geometric_band,
    "keep.veto": veto,
}
WEIGHTINGS: dict[str, Callable[..., Array]] = {
    "weighting.token_mean": token_mean,
    "weighting.sequence_mean_token_mean": sequence_mean_token_mean,
    "weighting.sequence_mean_token_sum": sequence_mean_token_sum,
    "weighting.constant_divisor": constant_divisor,
}
PER_SEQUENCE: dict[str, Callable[..., Any]] = {**STAGES, **WEIGHTINGS}
"""Every formula that is worked out once per sequence, by its name."""


class StageShortcuts:
    """Answers of stages that are about whole sequences; stages on the same ratio share what is computed of it."""

    def __init__(self, ratios: dict[str, Ratio]) -> None:
        self._ratios: dict[str, Ratio] = ratios

    def __call__(self, stage: Stage, available: Mapping[str, Any]) -> Answer | None:
        name, segments = stage.part.formula.name, available["segments"]
        if name == "keep.negative_drift":
            return negative_drift(stage, available)
        shortcut = STAGES.get(name)
        if shortcut is None or stage.ratio is None:
            return None
        if stage.ratio not in self._ratios:
            values = logratio(stage.ratio, available)
            if values is None:
                return None
            self._ratios[stage.ratio] = Ratio(values, segments)
        answer = shortcut(self._ratios[stage.ratio], **stage.part.own_settings)
        return None if answer is None else (Field(answer[0], segments, True), answer[1])


def negative_drift(stage: Stage, available: Mapping[str, Any]) -> Answer | None:
    """keep.negative_drift: one decision per sequence."""
    current, anchor = available.get("logp_current"), available.get(f"logp_{stage.anchor}")
    advantage, segments = available.get("advantage"), available["segments"]
    if current is None or anchor is None or advantage is None:
        return None
    drifted = host(sequence_mean(anchor - current, segments)) > stage.part.own_settings["delta"]
    rejected = (host(sequence_mean(advantage, segments)) < 0) & drifted
    return Field(~rejected, segments, True), {"drifted_sequences": drifted & segments.filled}


def weights(part: Part, dtype: torch.dtype, keep: Field) -> Field | None:
    """What a weighting gives to every token of a sequence, where keep is about whole sequences."""
    shortcut = WEIGHTINGS.get(part.formula.name)
    if shortcut is None or not keep.is_shared:
        return None
    segments = keep.segments
    values = shortcut(segments.measures[:, 1], keep.values, segments, **part.own_settings)
    weight = library(values).where(keep.values, values, 0.0)
    return Field(in_precision(weight, dtype), segments, True)

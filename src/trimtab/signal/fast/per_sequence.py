"""Formulas about whole sequences, worked out once per sequence: the same numbers without a pass over the tokens.

Each function here stands for the formula of its name and gives what that formula gives at every token of a sequence.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trimtab.signal.composition import Stage
from trimtab.signal.fields import Field
from trimtab.signal.layout import PerSequence, PerToken, Segments, SequenceFlag
from trimtab.signal.parts import Part
from trimtab.signal.reduce import LOG_BOUND, bounded_exp, sequence_extremes, sequence_mean, sequence_sum
from trimtab.signal.stages import Answer, Seen, logratio

PerSequenceAnswer = tuple[Tensor, Seen]


class Columns:
    """What stages ask of one log-ratio, per sequence; each column is computed once."""

    def __init__(self, logratio: PerToken, segments: Segments) -> None:
        self.logratio: PerToken = logratio.detach()
        self.segments: Segments = segments

    @cached_property
    def total(self) -> PerSequence:
        return sequence_sum(self.logratio, self.segments)

    @cached_property
    def mean(self) -> PerSequence:
        return self.total / self.segments.token_counts.to(self.total.dtype).clamp(min=1)

    @cached_property
    def extremes(self) -> tuple[PerSequence, PerSequence]:
        return sequence_extremes(self.logratio, self.segments)


def truncated(columns: Columns, *, level: str, band: tuple[float, float]) -> PerSequenceAnswer | None:
    """importance.truncated of whole sequences; None where it is about tokens."""
    if level == "token":
        return None
    exponent = columns.total if level == "sequence" else columns.mean
    ratio, (low, high) = bounded_exp(exponent), band
    over, under = ratio > high, ratio < low
    segments, filled = columns.segments, columns.segments.filled
    seen: dict[str, Field | SequenceFlag] = {
        "over_high_tokens": Field(over, segments, True),
        "under_low_tokens": Field(under, segments, True),
        "exponent_bounded_tokens": Field(exponent.abs() > LOG_BOUND, segments, True),
        "over_high_sequences": over & filled,
        "under_low_sequences": under & filled,
    }
    return ratio.clamp(low, high), seen


def product_band(columns: Columns, *, band: tuple[float, float]) -> PerSequenceAnswer:
    return _band(columns.total, columns.segments, band)


def geometric_band(columns: Columns, *, band: tuple[float, float]) -> PerSequenceAnswer:
    return _band(columns.mean, columns.segments, band)


def _band(exponent: PerSequence, segments: Segments, band: tuple[float, float]) -> PerSequenceAnswer:
    ratio = bounded_exp(exponent)
    over, under = (ratio > band[1]) & segments.filled, (ratio < band[0]) & segments.filled
    return ~(over | under), {"over_high_sequences": over, "under_low_sequences": under}


def veto(columns: Columns, *, low: float | None, high: float | None) -> PerSequenceAnswer:
    """keep.veto: a ratio is beyond a bound if the extreme one is."""
    least, most = map(bounded_exp, columns.extremes)
    filled = columns.segments.filled
    over = (most > high) & filled if high is not None else torch.zeros_like(filled)
    under = (least < low) & filled if low is not None else torch.zeros_like(filled)
    return ~(over | under), {"over_high_sequences": over, "under_low_sequences": under}


def token_mean(advantage: Tensor, keep: SequenceFlag, segments: Segments, *, over: str) -> PerSequence:
    count = (segments.token_counts * keep).sum() if over == "kept" else segments.num_tokens
    return _where_kept(torch.ones_like(keep, dtype=advantage.dtype) / count, keep)


def sequence_mean_token_mean(advantage: Tensor, keep: SequenceFlag, segments: Segments, *, over: str) -> PerSequence:
    # An empty sequence has no token to weigh; a divisor of 0 must not become a weight of infinity.
    tokens = segments.token_counts.to(advantage.dtype).clamp(min=1)
    return _where_kept(1 / (tokens * _sequences(keep, segments, over)), keep)


def sequence_mean_token_sum(advantage: Tensor, keep: SequenceFlag, segments: Segments, *, over: str) -> PerSequence:
    return _where_kept(torch.ones_like(keep, dtype=advantage.dtype) / _sequences(keep, segments, over), keep)


def constant_divisor(
    advantage: Tensor, keep: SequenceFlag, segments: Segments, *, divisor: float, over: str
) -> PerSequence:
    return sequence_mean_token_sum(advantage, keep, segments, over=over) / divisor


def _sequences(keep: SequenceFlag, segments: Segments, over: str) -> Tensor:
    return (segments.filled & keep if over == "kept" else segments.filled).sum()


def _where_kept(weight: PerSequence, keep: SequenceFlag) -> PerSequence:
    return torch.where(keep, weight, 0.0)


STAGES: dict[str, Callable[..., PerSequenceAnswer | None]] = {
    "importance.truncated": truncated,
    "keep.product_band": product_band,
    "keep.geometric_band": geometric_band,
    "keep.veto": veto,
}
WEIGHTINGS: dict[str, Callable[..., PerSequence]] = {
    "weighting.token_mean": token_mean,
    "weighting.sequence_mean_token_mean": sequence_mean_token_mean,
    "weighting.sequence_mean_token_sum": sequence_mean_token_sum,
    "weighting.constant_divisor": constant_divisor,
}
PER_SEQUENCE: dict[str, Callable[..., Any]] = {**STAGES, **WEIGHTINGS}
"""Every formula that is worked out once per sequence, by its name."""


class StageShortcuts:
    """Answers of stages that are about whole sequences; stages on the same ratio share its columns."""

    def __init__(self) -> None:
        self._columns: dict[str, Columns] = {}

    def __call__(self, stage: Stage, available: Mapping[str, Any]) -> Answer | None:
        name, segments = stage.part.formula.name, available["segments"]
        if name == "keep.negative_drift":
            return negative_drift(stage, available)
        shortcut = STAGES.get(name)
        if shortcut is None or stage.ratio is None:
            return None
        if stage.ratio not in self._columns:
            values = logratio(stage.ratio, available)
            if values is None:
                return None
            self._columns[stage.ratio] = Columns(values, segments)
        answer = shortcut(self._columns[stage.ratio], **stage.part.own_settings)
        return None if answer is None else (Field(answer[0], segments, True), answer[1])


def negative_drift(stage: Stage, available: Mapping[str, Any]) -> Answer | None:
    """keep.negative_drift: one decision per sequence."""
    current, anchor = available.get("logp_current"), available.get(f"logp_{stage.anchor}")
    advantage, segments = available.get("advantage"), available["segments"]
    if current is None or anchor is None or advantage is None:
        return None
    drifted = sequence_mean(anchor - current, segments) > stage.part.own_settings["delta"]
    rejected = (sequence_mean(advantage, segments) < 0) & drifted
    return Field(~rejected, segments, True), {"drifted_sequences": drifted & segments.filled}


def weights(part: Part, advantage: Field, keep: Field) -> Field | None:
    """What a weighting gives to every token of a sequence, where keep is about whole sequences."""
    shortcut = WEIGHTINGS.get(part.formula.name)
    if shortcut is None or not keep.is_shared:
        return None
    values = shortcut(advantage.values[:0], keep.values, keep.segments, **part.own_settings)
    return Field(values, keep.segments, True)

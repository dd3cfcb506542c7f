"""What is measured along the way: the only place that turns log-ratios, decisions and observations into metrics."""

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from trimtab.signal.fast.choice import is_all_watched
from trimtab.signal.fields import Field
from trimtab.signal.histogram import Histogram
from trimtab.signal.layout import PerToken, Segments
from trimtab.signal.metric_kind import Extremum, Mean, Metric, SampleSize, Spread
from trimtab.signal.metrics import Metrics
from trimtab.signal.once import once
from trimtab.signal.ratio import Ratio
from trimtab.signal.reduce import LOG_BOUND, bounded_exp
from trimtab.signal.stages import Decisions, Seen, conjunction
from trimtab.signal.tally import Tally
from trimtab.signal.tensors import Number, between, library


def drift(ratios: Mapping[str, Ratio], segments: Segments) -> Metrics:
    """Everything about some ratios, over all tokens given, before any truncation.

    logratio = later - earlier policy, on tokens sampled from (near) the earlier, so
    k1 and k3 estimate KL(earlier || later).
    """
    if not ratios:
        return Metrics.empty()
    entries: dict[str, Metric] = {}
    histograms: dict[str, Histogram] = {}
    count = float(segments.num_tokens)
    for name, ratio in ratios.items():
        if is_all_watched():
            histograms[f"logratio_{name}"] = ratio.histogram
        total, sequences, product, square, mean, m2, lowest, highest = _products(ratio)
        far, moved, around = ratio.sums.far, ratio.sums.moved, ratio.sums.around
        farthest, least, most = _extremes(ratio.sums.low, ratio.sums.high)
        share = moved / max(count, 1.0)
        entries |= {
            f"logratio_{name}/token_abs_mean": Mean(far, count),
            f"logratio_{name}/token_abs_max": Extremum(farthest, 1),
            f"ratio_{name}/token_mean": Mean(count + moved, count),
            f"ratio_{name}/token_std": Spread(count, share, around),  # of ratio - 1, which spreads alike
            f"ratio_{name}/token_min": Extremum(least, -1),
            f"ratio_{name}/token_max": Extremum(most, 1),
            f"ratio_{name}/sequence_mean": Mean(product, sequences),
            f"ratio_{name}/sequence_std": Spread(sequences, mean, m2),
            f"ratio_{name}/sequence_min": Extremum(lowest, -1),
            f"ratio_{name}/sequence_max": Extremum(highest, 1),
            f"ess_{name}/token": SampleSize(count + moved, count + 2 * moved + around + share * moved, count),
            f"ess_{name}/sequence": SampleSize(product, square, sequences),
            f"k1_{name}/token_mean": Mean(-total, count),
            f"k3_{name}/token_mean": Mean(moved - total, count),
        }
        ratio.forget()
    return Metrics(entries, histograms)


def _products(ratio: Ratio) -> tuple[Number, ...]:
    """What is measured of the products over sequences that have tokens; the smallest with its sign turned."""
    logs, segments = ratio.total, ratio.segments
    if not segments.num_tokens:
        return (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -math.inf, -math.inf)
    lib, count = library(logs), segments.num_filled
    product = low = high = lib.exp(between(logs, -LOG_BOUND, LOG_BOUND))
    if not segments.all_filled:
        filled = segments.filled
        product = lib.where(filled, product, 0.0)
        low, high = lib.where(filled, low, torch.inf), lib.where(filled, high, -torch.inf)
    total = product.sum()
    mean = total / count
    apart = product - mean if segments.all_filled else lib.where(segments.filled, product - mean, 0.0)
    found = logs.sum(), total, product @ product, mean, apart @ apart, -low.min(), high.max()
    log, total, square, mean, m2, lowest, highest = found if lib is torch else map(float, found)
    return log, count, total, square, mean, m2, lowest, highest


def _extremes(low: Number, high: Number) -> tuple[Number, Number, Number]:
    """The largest |log-ratio|, and the smallest and the largest ratio, the smallest with its sign turned.

    Of no token, what any token would replace.
    """
    if isinstance(low, Tensor) and isinstance(high, Tensor):
        return torch.maximum(high, -low), -bounded_exp(low), bounded_exp(high)
    least, most = cast("float", low), cast("float", high)
    if least > most:
        return -math.inf, -math.inf, -math.inf
    return max(most, -least), -_bounded(least), _bounded(most)


def _bounded(log_value: float) -> float:
    return math.exp(max(min(log_value, LOG_BOUND), -LOG_BOUND))


def drift_by_age(logratio: PerToken, version: Tensor, now: int) -> dict[str, Metric]:
    """old - rollout, split: tokens of the current version show the engine alone, older ones engine and staleness."""
    stale = version < now
    gap = logratio.abs()
    return {
        "drift/engine_token_abs_mean": Mean.of(gap, ~stale),
        "drift/staleness_token_abs_mean": Mean.of(gap, stale),
        "drift/stale_token_fraction": Mean.fraction(stale),
    }


class Population:
    """The tokens that metrics are about; `is_everything`: they are all there are."""

    def __init__(self, tokens: Field, advantage: Field, *, is_everything: bool = False) -> None:
        self.tokens: Field = tokens
        self.advantage: Field = advantage
        self.is_everything: bool = is_everything

    @property
    def among(self) -> Field | None:
        return None if self.is_everything else self.tokens

    @once
    def positive(self) -> Field:
        return self._within(self.advantage.map(lambda values: values > 0))

    @once
    def negative(self) -> Field:
        return self._within(self.advantage.map(lambda values: values < 0))

    def _within(self, flags: Field) -> Field:
        return flags if self.is_everything else flags & self.tokens


def observe(tally: Tally, label: str, seen: Seen, population: Population) -> None:
    """A formula's observations as fractions: `_tokens` among the given tokens, `_sequences` among those they lie in."""
    for name, flags in seen.items():
        if isinstance(flags, Field):
            tally.share(f"{label}/{name}", flags, population.among)
        else:
            tally.share_of_sequences(f"{label}/{name}", flags, population.tokens.sequences)


def by_sign(tally: Tally, label: str, what: str, flags: Field, population: Population) -> None:
    """A token flag among the given tokens of positive, and of negative, advantage."""
    tally.share(f"{label}/{what}_positive_tokens", flags, population.positive)
    tally.share(f"{label}/{what}_negative_tokens", flags, population.negative)


def stage_metrics(tally: Tally, decisions: Decisions, trains: Population, *, before: Field | None = None) -> None:
    """What each correction stage saw and did: alone, and on top of the others and of earlier rejections."""
    start = trains.tokens if before is None else trains.tokens & before
    for label, keep in decisions.keeps.items():
        rejected, others = ~keep, {other: one for other, one in decisions.keeps.items() if other != label}
        left = keep if keep.is_shared or trains.is_everything else trains.tokens & keep
        tally.share(f"{label}/rejected_tokens", rejected, trains.among)
        tally.share_of_sequences(
            f"{label}/rejected_sequences",
            rejected.values if keep.is_shared else ~left.sequences,
            trains.tokens.sequences,
        )
        by_sign(tally, label, "rejected", rejected, trains)
        tally.same(f"{label}/alone", f"{label}/rejected_tokens")
        tally.share(f"{label}/on_top", rejected, conjunction(start, others), of=trains.tokens)
    kept = conjunction(start, decisions.keeps) if decisions.importances else None
    for label, importance in decisions.importances.items():
        effect = importance.map(lambda factor: abs(factor - 1))
        tally.mean(f"{label}/importance_mean", importance, trains.among)
        tally.mean(f"{label}/alone", effect, trains.among)
        tally.mean(f"{label}/on_top", effect, kept)
    for label, flags in decisions.seen.items():
        observe(tally, label, flags, trains)


def kept_share(tally: Tally, kept: Population, trains: Population) -> None:
    """What is left of the update after every correction; what is kept trains."""
    effective = kept.tokens & kept.advantage.map(lambda values: values != 0)
    tally.share("kept/token_fraction", kept.tokens, of=trains.among)
    tally.share_of_sequences("kept/sequence_fraction", kept.tokens.sequences, trains.tokens.sequences)
    tally.sum_of_count("effective_batch/tokens", effective)
    tally.sum_of_sequences("effective_batch/sequences", effective.sequences)
    tally.share("effective_batch/token_fraction", effective, of=trains.among)

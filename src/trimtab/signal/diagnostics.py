"""What is measured along the way: the only place that turns log-ratios, decisions and observations into metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from trimtab.signal.layout import Keep, PerToken, Segments
from trimtab.signal.metrics import Extremum, Histogram, Mean, Metric, Metrics, Population, SampleSize, Spread, Sum
from trimtab.signal.reduce import bounded_exp, sequence_any, sequence_sum
from trimtab.signal.stages import Decisions, conjunction


def drift(name: str, logratio: PerToken, segments: Segments) -> Metrics:
    """Everything about one ratio, over all tokens given, before any truncation.

    logratio = later - earlier policy, on tokens sampled from (near) the earlier, so
    k1 and k3 estimate KL(earlier || later).
    """
    exact = logratio.detach().double()
    tokens, excess = Population.everything(exact), bounded_exp(exact).sub_(1)
    product, filled = bounded_exp(sequence_sum(exact, segments)), Population.of(segments.token_counts > 0)
    # Sums of ratio - 1 lose nothing where the policies are close. Everything below is made of these few sums.
    count, total, moved = tokens.count, exact.sum(), excess.sum()
    mean = moved / count.clamp(min=1)
    around = excess.sub_(mean).square_().sum()
    farthest, smallest, largest = _extremes(exact)
    entries: dict[str, Metric] = {
        f"logratio_{name}/token_abs_mean": Mean(exact.abs().sum(), count),
        f"logratio_{name}/token_abs_max": Extremum(farthest, 1),
        f"ratio_{name}/token_mean": Mean(count + moved, count),
        f"ratio_{name}/token_std": Spread(count, 1 + mean, around),
        f"ratio_{name}/token_min": Extremum(-smallest, -1),
        f"ratio_{name}/token_max": Extremum(largest, 1),
        f"ratio_{name}/sequence_mean": Mean.of(product, filled),
        f"ratio_{name}/sequence_std": Spread.of(product, filled),
        f"ratio_{name}/sequence_min": Extremum.of(product, -1, filled),
        f"ratio_{name}/sequence_max": Extremum.of(product, 1, filled),
        f"ess_{name}/token": SampleSize(count + moved, count + 2 * moved + around + mean * moved, count),
        f"ess_{name}/sequence": SampleSize.of(product, filled),
        f"k1_{name}/token_mean": Mean(-total, count),
        f"k3_{name}/token_mean": Mean(moved - total, count),
    }
    return Metrics(entries, {f"logratio_{name}": Histogram.of(logratio)})


def _extremes(logratio: PerToken) -> tuple[Tensor, Tensor, Tensor]:
    """The largest |log-ratio|, the smallest and the largest ratio; of no token, what any token would replace."""
    if not logratio.numel():
        nothing = logratio.new_full((), -torch.inf)
        return nothing, -nothing, nothing
    low, high = torch.aminmax(logratio)
    return torch.maximum(high, -low), bounded_exp(low), bounded_exp(high)


def drift_by_age(logratio: PerToken, version: Tensor, now: int) -> dict[str, Metric]:
    """old - rollout, split: tokens of the current version show the engine alone, older ones engine and staleness."""
    stale = version < now
    gap = logratio.abs()
    return {
        "drift/engine_token_abs_mean": Mean.of(gap, ~stale),
        "drift/staleness_token_abs_mean": Mean.of(gap, stale),
        "drift/stale_token_fraction": Mean.fraction(stale),
    }


def observed(label: str, seen: Mapping[str, Tensor], trains: "Trains") -> dict[str, Metric]:
    """A formula's observations as fractions: `_tokens` among the given tokens, `_sequences` among those they lie in."""
    return {
        f"{label}/{name}": Mean.fraction(flags, trains.sequences if name.endswith("_sequences") else trains.tokens)
        for name, flags in seen.items()
    }


@dataclass(frozen=True)
class Trains:
    """The tokens that a metric is about, and the sequences they lie in; each is counted once."""

    flags: Keep
    segments: Segments
    is_everything: bool = False

    @cached_property
    def tokens(self) -> Population:
        return Population.everything(self.flags) if self.is_everything else Population.of(self.flags)

    @cached_property
    def sequences(self) -> Population:
        """Those with such a token."""
        return Population.of(sequence_any(self.flags, self.segments))

    def by_sign(self, advantage: PerToken) -> tuple[Population, Population]:
        """Those of positive, and of negative, advantage."""
        return Population.of(self.flags & (advantage > 0)), Population.of(self.flags & (advantage < 0))


def by_sign(label: str, what: str, flags: Keep, signs: tuple[Population, Population]) -> dict[str, Metric]:
    """A token flag among the given tokens of positive, and of negative, advantage."""
    return {
        f"{label}/{what}_positive_tokens": Mean.fraction(flags, signs[0]),
        f"{label}/{what}_negative_tokens": Mean.fraction(flags, signs[1]),
    }


def stage_metrics(
    decisions: Decisions, advantage: PerToken, trains: Trains, *, before: Keep | None = None
) -> dict[str, Metric]:
    """What each correction stage saw and did: alone, and on top of the others and of earlier rejections."""
    entries: dict[str, Metric] = {}
    start = trains.flags if before is None else trains.flags & before
    signs = trains.by_sign(advantage) if decisions.keeps else None
    for label, keep in decisions.keeps.items():
        others = {other: decision for other, decision in decisions.keeps.items() if other != label}
        rejected = trains.flags & ~keep
        left = sequence_any(trains.flags & keep, trains.segments)
        alone = Mean.fraction(rejected, trains.tokens)
        entries[f"{label}/rejected_tokens"] = alone
        entries[f"{label}/rejected_sequences"] = Mean.fraction(~left, trains.sequences)
        entries |= by_sign(label, "rejected", rejected, cast("tuple[Population, Population]", signs))
        entries[f"{label}/alone"] = alone
        entries[f"{label}/on_top"] = Mean.fraction(rejected & conjunction(start, others), trains.tokens)
    kept = Population.of(conjunction(start, decisions.keeps)) if decisions.importances else None
    for label, importance in decisions.importances.items():
        entries[f"{label}/importance_mean"] = Mean.of(importance, trains.tokens)
        effect = (importance - 1).abs()
        entries[f"{label}/alone"] = Mean.of(effect, trains.tokens)
        entries[f"{label}/on_top"] = Mean.of(effect, kept)
    for label, flags in decisions.seen.items():
        entries |= observed(label, flags, trains)
    return entries


def kept_share(kept: Trains, advantage: PerToken, trains: Trains) -> dict[str, Metric]:
    """What is left of the update after every correction; what is kept trains."""
    effective = kept.flags & (advantage != 0)
    sequences = cast("Tensor", kept.sequences.flags)
    alone = Mean.fraction(effective, trains.tokens)
    return {
        "kept/token_fraction": Mean.fraction(kept.flags, trains.tokens),
        "kept/sequence_fraction": Mean.fraction(sequences, trains.sequences),
        "effective_batch/tokens": Sum(alone.total),
        "effective_batch/sequences": Sum.of(sequence_any(effective, kept.segments)),
        "effective_batch/token_fraction": alone,
    }

"""What is measured along the way: the only place that turns log-ratios, decisions and observations into metrics."""

from collections.abc import Mapping

from torch import Tensor

from trimtab.signal.layout import Keep, PerToken, Segments
from trimtab.signal.metrics import Extremum, Histogram, Mean, Metric, Metrics, SampleSize, Spread, Sum
from trimtab.signal.reduce import bounded_exp, sequence_any, sequence_sum
from trimtab.signal.stages import Decisions, conjunction


def drift(name: str, logratio: PerToken, segments: Segments) -> Metrics:
    """Everything about one ratio, over all tokens given, before any truncation.

    logratio = later - earlier policy, on tokens sampled from (near) the earlier, so
    k1 and k3 estimate KL(earlier || later).
    """
    exact = logratio.double()
    ratio, product = bounded_exp(exact), bounded_exp(sequence_sum(exact, segments))
    filled = segments.token_counts > 0
    entries: dict[str, Metric] = {
        f"logratio_{name}/token_abs_mean": Mean.of(exact.abs()),
        f"logratio_{name}/token_abs_max": Extremum.of(exact.abs(), 1),
        f"ratio_{name}/token_mean": Mean.of(ratio),
        f"ratio_{name}/token_std": Spread.of(ratio),
        f"ratio_{name}/token_min": Extremum.of(ratio, -1),
        f"ratio_{name}/token_max": Extremum.of(ratio, 1),
        f"ratio_{name}/sequence_mean": Mean.of(product, filled),
        f"ratio_{name}/sequence_std": Spread.of(product, filled),
        f"ratio_{name}/sequence_min": Extremum.of(product, -1, filled),
        f"ratio_{name}/sequence_max": Extremum.of(product, 1, filled),
        f"ess_{name}/token": SampleSize.of(ratio),
        f"ess_{name}/sequence": SampleSize.of(product, filled),
        f"k1_{name}/token_mean": Mean.of(-exact),
        f"k3_{name}/token_mean": Mean.of(ratio - 1 - exact),
    }
    return Metrics(entries, {f"logratio_{name}": Histogram.of(exact)})


def drift_by_age(logratio: PerToken, version: Tensor, now: int) -> dict[str, Metric]:
    """old - rollout, split: tokens of the current version show the engine alone, older ones engine and staleness."""
    stale = version < now
    gap = logratio.abs()
    return {
        "drift/engine_token_abs_mean": Mean.of(gap, ~stale),
        "drift/staleness_token_abs_mean": Mean.of(gap, stale),
        "drift/stale_token_fraction": Mean.fraction(stale),
    }


def observed(label: str, seen: Mapping[str, Tensor], tokens: Keep, segments: Segments) -> dict[str, Metric]:
    """A formula's observations as fractions: `_tokens` among the given tokens, `_sequences` among those they lie in."""
    sequences = sequence_any(tokens, segments)
    return {
        f"{label}/{name}": Mean.fraction(flags, sequences if name.endswith("_sequences") else tokens)
        for name, flags in seen.items()
    }


def by_sign(label: str, what: str, flags: Keep, advantage: PerToken, tokens: Keep) -> dict[str, Metric]:
    """A token flag among the given tokens of positive, and of negative, advantage."""
    return {
        f"{label}/{what}_positive_tokens": Mean.fraction(flags, tokens & (advantage > 0)),
        f"{label}/{what}_negative_tokens": Mean.fraction(flags, tokens & (advantage < 0)),
    }


def stage_metrics(
    decisions: Decisions, advantage: PerToken, trains: Keep, segments: Segments, *, before: Keep | None = None
) -> dict[str, Metric]:
    """What each correction stage saw and did: alone, and on top of the others and of earlier rejections."""
    entries: dict[str, Metric] = {}
    start = trains if before is None else trains & before
    for label, keep in decisions.keeps.items():
        others = {other: decision for other, decision in decisions.keeps.items() if other != label}
        rejected = trains & ~keep
        whole = sequence_any(trains, segments) & ~sequence_any(trains & keep, segments)
        entries[f"{label}/rejected_tokens"] = Mean.fraction(rejected, trains)
        entries[f"{label}/rejected_sequences"] = Mean.fraction(whole, sequence_any(trains, segments))
        entries |= by_sign(label, "rejected", rejected, advantage, trains)
        entries[f"{label}/alone"] = Mean.fraction(rejected, trains)
        entries[f"{label}/on_top"] = Mean.fraction(rejected & conjunction(start, others), trains)
    kept = conjunction(start, decisions.keeps)
    for label, importance in decisions.importances.items():
        entries[f"{label}/importance_mean"] = Mean.of(importance, trains)
        entries[f"{label}/alone"] = Mean.of((importance - 1).abs(), trains)
        entries[f"{label}/on_top"] = Mean.of((importance - 1).abs(), kept)
    for label, flags in decisions.seen.items():
        entries |= observed(label, flags, trains, segments)
    return entries


def kept_share(keep: Keep, advantage: PerToken, trains: Keep, segments: Segments) -> dict[str, Metric]:
    """What is left of the update after every correction."""
    effective = keep & trains & (advantage != 0)
    training = sequence_any(trains, segments)
    return {
        "kept/token_fraction": Mean.fraction(keep, trains),
        "kept/sequence_fraction": Mean.fraction(sequence_any(keep & trains, segments), training),
        "effective_batch/tokens": Sum.of(effective),
        "effective_batch/sequences": Sum.of(sequence_any(effective, segments)),
        "effective_batch/token_fraction": Mean.fraction(effective, trains),
    }

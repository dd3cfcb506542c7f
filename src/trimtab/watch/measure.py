"""What is measured of one micro-batch: the only place of the watch that makes metrics. They merge over ranks exactly.

Ratios, sample sizes and their names are those of `trimtab.signal`; here they are only asked for.
"""

import numpy as np
import torch

from trimtab.signal.diagnostics import drift
from trimtab.signal.histogram import Histogram
from trimtab.signal.layout import Segments
from trimtab.signal.metric_kind import Extremum, Mean, Metric, Spread, Sum
from trimtab.signal.metrics import Metrics
from trimtab.signal.ratio import Ratio
from trimtab.watch.flat import Flat, Floats

PAIRS = {
    "engine": ("logp_old", "logp_rollout"),
    "update": ("logp_current", "logp_old"),
    "total": ("logp_current", "logp_rollout"),
}
"""Each ratio: the later and the earlier policy."""
WHOLE = 2 * Histogram.LARGE - 1
"""Values up to which a histogram counts every one of them; more are counted in pieces, so that counts merge exactly."""


def measure(flat: Flat) -> Metrics:
    """Everything that is measured of a micro-batch."""
    segments = flat.segments
    pairs = {name: gap for name, pair in PAIRS.items() if (gap := log_ratio(flat, *pair)) is not None}
    drifted = drift({name: _ratio(gap, segments) for name, gap in pairs.items()}, segments)
    histograms = {f"logratio_{name}": _histogram(gap) for name, gap in pairs.items()}
    entries = {
        "watch/tokens": Sum(float(flat.num_tokens)),
        "watch/sequences": Sum(float(flat.num_rows)),
        **_rewards(flat),
        **_tokens(flat),
        **drifted.entries,
    }
    return Metrics(entries, histograms)


def log_ratio(flat: Flat, later: str, earlier: str) -> Floats | None:
    """The log-ratio at every token; None where one side was not given. A token without a number counts as 0."""
    if later not in flat.tokens or earlier not in flat.tokens:
        return None
    return defined(flat.tokens[later] - flat.tokens[earlier])


def defined(values: Floats) -> Floats:
    """The values with 0 for what is not a number; most arrays are looked at once and returned as they are."""
    return values if np.isfinite(values.sum()) else np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _ratio(gap: Floats, segments: Segments) -> Ratio:
    return Ratio(torch.from_numpy(gap), segments)


def _histogram(gap: Floats) -> Histogram:
    found = Histogram.of(torch.from_numpy(gap[:WHOLE]))
    for start in range(WHOLE, gap.size, WHOLE):
        found = found.merge(Histogram.of(torch.from_numpy(gap[start : start + WHOLE])))
    return found


def _rewards(flat: Flat) -> dict[str, Metric]:
    reward = flat.rows.get("reward")
    if reward is None:
        return {}
    scored = np.isfinite(reward)
    values = np.where(scored, reward, 0.0)
    return {"reward/episode_mean": Mean.of(values, scored), "reward/episode_std": Spread.of(values, scored)}


def _tokens(flat: Flat) -> dict[str, Metric]:
    entries: dict[str, Metric] = {}
    advantage = flat.advantage
    kept = np.ones(flat.num_tokens, dtype=np.bool_)
    if "importance" in flat.tokens:
        importance = flat.tokens["importance"]
        kept = importance != 0
        entries["importance/token_mean"] = Mean.of(importance, kept)
        entries["importance/token_max"] = Extremum(float(importance.max(initial=-np.inf)), 1)
    entries["kept/token_fraction"] = Mean.fraction(kept)
    if advantage is not None:
        entries["advantage/token_mean"] = Mean.of(advantage)
        entries["advantage/token_std"] = Spread.of(advantage)
        entries["effective_batch/tokens"] = Sum(float(np.count_nonzero(kept & (advantage != 0))))
        entries["effective_batch/token_fraction"] = Mean.fraction(kept & (advantage != 0))
    if "entropy" in flat.tokens:
        entries["entropy/token_mean"] = Mean.of(flat.tokens["entropy"])
    if "gradient" in flat.tokens and advantage is not None:
        entries["policy_loss.watched/clipped_tokens"] = Mean.fraction(
            flat.tokens["gradient"] == 0, kept & (advantage != 0)
        )
    lengths = flat.counts.astype(np.float64)
    entries["length/sequence_mean"] = Mean.of(lengths)
    entries["length/sequence_max"] = Extremum(float(lengths.max(initial=-np.inf)), 1)
    return entries

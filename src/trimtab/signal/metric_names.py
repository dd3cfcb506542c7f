"""What every metric is called: what its name means, over which population, and the range it can take.

A test holds every recipe to it.
"""

import fnmatch
from dataclasses import dataclass
from functools import cache

from trimtab.errors import SignalError, unknown_name


@dataclass(frozen=True)
class MetricSpec:
    """What a metric's name stands for."""

    name: str
    """The name, with * where a stage or a term stands."""
    means: str
    population: str
    low: float = -float("inf")
    high: float = float("inf")


_INF = float("inf")
_TRAINING = "trainable tokens of sequences that train, before rejection"
_KEPT = "kept tokens"
_BATCH = "before votes and rejection: all trainable tokens (engine), those of sequences that train (update, total)"

_SOURCE = "all trainable tokens of its episodes, before votes and rejection"
_MANY = 'all trainable tokens, with use_metrics("many")'

METRICS = (
    MetricSpec("reward/episode_mean", "task reward before shaping", "scored episodes"),
    MetricSpec("reward/episode_std", "standard deviation (ddof 0) of the task reward", "scored episodes", 0.0),
    MetricSpec("votes/episode_fraction", "episodes whose reward enters baselines, std and filters",
        "all episodes", 0.0, 1.0),
    MetricSpec("trains/sequence_fraction", "sequences whose tokens are in the loss", "all sequences", 0.0, 1.0),
    MetricSpec("ended/sequence_fraction", "sequences that ended by themselves", "all sequences", 0.0, 1.0),
    MetricSpec("groups_without_signal/group_fraction", "groups left with fewer voters than their formula needs",
        "all groups", 0.0, 1.0),
    MetricSpec("constant_groups/group_fraction", "groups whose voters all have the same task reward",
        "groups with voters", 0.0, 1.0),
    MetricSpec("constant_groups/all_right_group_fraction", "those of them whose reward is above 0: too easy",
        "groups with voters", 0.0, 1.0),
    MetricSpec("constant_groups/all_wrong_group_fraction", "those of them whose reward is 0 or below: too hard",
        "groups with voters", 0.0, 1.0),
    MetricSpec("out_of_band_groups/group_fraction", "groups that group_mean_band drops", "all groups", 0.0, 1.0),
    MetricSpec("advantage/token_mean", "advantage as the loss sees it", _TRAINING),
    MetricSpec("advantage/token_std", "standard deviation (ddof 0) of the advantage", _TRAINING, 0.0),
    MetricSpec("kl_ref/token_mean", "raw KL of old (of current, when it acts in the loss) to the reference", _TRAINING),
    MetricSpec("kl_ref/coef", "coefficient of the KL in this batch, where it is steered to a target", "the batch", 0.0),
    MetricSpec("logratio_engine_source_*/token_abs_mean", "mean |log-ratio| of the engine, for each source of episodes",
        _SOURCE, 0.0),
    MetricSpec("k3_engine_source_*/token_mean", "k3_engine for each source of episodes", _SOURCE, 0.0),
    MetricSpec("logratio_*/token_abs_mean", "mean |log-ratio|: how far the two policies are apart", _BATCH, 0.0),
    MetricSpec("logratio_*/token_abs_max", "largest |log-ratio|", _BATCH, 0.0),
    MetricSpec("chi2_engine/token_mean", "mean ratio^2 - 1, an estimate of the chi-square divergence; it can be "
        "negative, and holds as far as ratio_engine/token_mean is 1", _MANY, -1.0),
    MetricSpec("chi2_engine/sequence_mean", "the same of the product of a sequence's ratios, beside "
        "ratio_engine/sequence_mean", "sequences with tokens", -1.0),
    MetricSpec("fold_engine/token_mean", "mean of the ratio or its inverse, whichever is larger: exp |log-ratio|",
        _MANY, 0.0),
    MetricSpec("k3_reverse_engine/token_mean", "k3 with the policies exchanged, on the same tokens", _MANY, 0.0),
    MetricSpec("k3_engine_kept/token_mean", "k3_engine on tokens that the corrections so far keep", _MANY, 0.0),
    MetricSpec("k3_engine_rejected/token_mean", "k3_engine on tokens that they reject", _MANY, 0.0),
    MetricSpec("k3_engine_per_entropy/token", "k3_engine over the sampler's entropy, which its own tokens estimate",
        _MANY, 0.0),
    MetricSpec("js_engine/token_mean", "Jensen-Shannon divergence, by k3 of each policy to the mean of both",
        _MANY, 0.0),
    MetricSpec("probability_gap_engine/token_mean", "mean |p - q| of the sampled token's probabilities", _MANY, 0.0),
    MetricSpec("probability_gap_engine/token_std", "standard deviation (ddof 0) of that gap", _MANY, 0.0),
    MetricSpec("probability_gap_engine/token_max", "largest gap", _MANY, 0.0),
    MetricSpec("probability_engine/token_correlation", "Pearson's correlation of p and q", _MANY, -1.0, 1.0),
    MetricSpec("perplexity_old/sequence_mean", "mean over sequences of exp(-mean logp_old)",
        "sequences with tokens", 0.0),
    MetricSpec("perplexity_rollout/sequence_mean", "the same of logp_rollout", "sequences with tokens", 0.0),
    MetricSpec("perplexity_ratio/sequence_mean", "mean over sequences of the first over the second",
        "sequences with tokens", 0.0),
    MetricSpec("value_old/explained_variance", "1 - var(returns - value_old) / var(returns)", _TRAINING, -_INF, 1.0),
    MetricSpec("drift/engine_token_abs_mean",
        "mean |old - rollout| on tokens sampled by the current version: engine alone", _BATCH, 0.0),
    MetricSpec("drift/staleness_token_abs_mean",
        "mean |old - rollout| on tokens of older versions: engine and staleness", _BATCH, 0.0),
    MetricSpec("drift/stale_token_fraction", "tokens sampled by an older version", _BATCH, 0.0, 1.0),
    MetricSpec("ratio_*/token_mean", "mean ratio before any truncation", _BATCH, 0.0),
    MetricSpec("ratio_*/token_std", "standard deviation (ddof 0) of the ratio before any truncation", _BATCH, 0.0),
    MetricSpec("ratio_*/token_min", "smallest ratio before any truncation", _BATCH, 0.0),
    MetricSpec("ratio_*/token_max", "largest ratio before any truncation", _BATCH, 0.0),
    MetricSpec("ratio_*/sequence_mean", "mean product of a sequence's ratios", "sequences with tokens", 0.0),
    MetricSpec("ratio_*/sequence_std", "standard deviation (ddof 0) of that product", "sequences with tokens", 0.0),
    MetricSpec("ratio_*/sequence_min", "smallest product", "sequences with tokens", 0.0),
    MetricSpec("ratio_*/sequence_max", "largest product", "sequences with tokens", 0.0),
    MetricSpec("ess_*/token", "effective sample size of the token ratios, as a share", _BATCH, 0.0, 1.0),
    MetricSpec("ess_*/sequence", "effective sample size of the sequence products, as a share",
        "sequences with tokens", 0.0, 1.0),
    MetricSpec("k1_*/token_mean", "k1 estimate of the KL from the earlier to the later policy", _BATCH),
    MetricSpec("k3_*/token_mean", "k3 estimate of the same KL", _BATCH, 0.0),
    MetricSpec("*/rejected_tokens", "tokens this stage rejects", _TRAINING, 0.0, 1.0),
    MetricSpec("*/rejected_sequences", "sequences this stage rejects whole", "sequences that train", 0.0, 1.0),
    MetricSpec("*/rejected_positive_tokens", "the same among tokens of positive advantage", _TRAINING, 0.0, 1.0),
    MetricSpec("*/rejected_negative_tokens", "the same among tokens of negative advantage", _TRAINING, 0.0, 1.0),
    MetricSpec("*/over_high_tokens", "tokens above the stage's upper bound", _TRAINING, 0.0, 1.0),
    MetricSpec("*/under_low_tokens", "tokens below the stage's lower bound", _TRAINING, 0.0, 1.0),
    MetricSpec("*/over_high_sequences", "sequences above the stage's upper bound", "sequences that train", 0.0, 1.0),
    MetricSpec("*/under_low_sequences", "sequences below the stage's lower bound", "sequences that train", 0.0, 1.0),
    MetricSpec("*/drifted_sequences", "sequences past delta, whatever the sign of their advantage",
        "sequences that train", 0.0, 1.0),
    MetricSpec("*/over_budget_tokens", "tokens past what those before them left, whatever their advantage's sign",
        _TRAINING, 0.0, 1.0),
    MetricSpec("*/exponent_bounded_tokens", "tokens whose exponent met the ±20 bound", _TRAINING, 0.0, 1.0),
    MetricSpec("*/importance_mean", "mean importance of this stage", _TRAINING, 0.0),
    MetricSpec("*/alone", "effect of this stage by itself: share rejected, or mean |importance - 1|", _TRAINING, 0.0),
    MetricSpec("*/effect", "mean change of the reward by this step of its shaping", "episodes that vote", 0.0),
    MetricSpec("*/on_top", "effect of this stage where all others decided by then keep the token", _TRAINING, 0.0),
    MetricSpec("kept/token_fraction", "tokens every correction keeps", _TRAINING, 0.0, 1.0),
    MetricSpec("kept/sequence_fraction", "sequences with a kept token", "sequences that train", 0.0, 1.0),
    MetricSpec("voted_then_rejected/sequence_fraction", "sequences that voted and were rejected whole later",
        "sequences that train", 0.0, 1.0),
    MetricSpec("effective_batch/tokens", "kept tokens with an advantage other than 0", "the optimiser step", 0.0),
    MetricSpec("effective_batch/sequences", "sequences with such a token", "the optimiser step", 0.0),
    MetricSpec("effective_batch/token_fraction", "share of the tokens that train", _TRAINING, 0.0, 1.0),
    MetricSpec("*/clipped_tokens",
        "tokens whose gradient the clip stops (whose weight it bounds, for a bounded importance)", _KEPT, 0.0, 1.0),
    MetricSpec("*/clipped_positive_tokens", "the same among tokens of positive advantage", _KEPT, 0.0, 1.0),
    MetricSpec("*/clipped_negative_tokens", "the same among tokens of negative advantage", _KEPT, 0.0, 1.0),
    MetricSpec("*/capped_tokens", "tokens at the dual-clip ceiling", _KEPT, 0.0, 1.0),
    MetricSpec("*/selected_tokens", "tokens chosen by the covariance rule", _KEPT, 0.0, 1.0),
    MetricSpec("importance/token_mean", "mean of the product of all importances", _KEPT, 0.0),
    MetricSpec("entropy/token_mean", "entropy of the current policy", _TRAINING, 0.0),
    MetricSpec("loss/*", "the term's share in the loss, coefficient included", "the optimiser steps merged"),
    MetricSpec("weight/*", "sum of the term's weights", "the optimiser steps merged", 0.0),
)  # fmt: skip


WATCH = {
    "reward/episode_mean": "does it learn?",
    "ess_engine/token": "near 1; it falls when sampler and trainer part",
    "logratio_total/token_abs_mean": "how far the current policy is from the one that sampled; below 0.05 is calm",
    "kept/token_fraction": "near 1; what the corrections leave of the batch",
    "effective_batch/token_fraction": "tokens that teach: kept, and with an advantage other than 0",
    "constant_groups/group_fraction": "groups without a comparison; high when the task is too easy or too hard",
    "*/clipped_tokens": "a few percent; more means that steps are too large or data too old",
    "entropy/token_mean": "a fall towards 0 is a collapse",
    "kl_ref/token_mean": "distance to the reference, where the recipe has one",
    "ended/sequence_fraction": "answers that were not cut off",
}
"""The metrics worth watching first, and what to look for; `trimtab catalog` shows them on top."""


@cache
def declared(name: str) -> MetricSpec | None:
    """The declaration behind a metric's name, None for a name that is not ours."""
    return next((spec for spec in METRICS if fnmatch.fnmatchcase(name, spec.name)), None)


def metric_spec(name: str) -> MetricSpec:
    """The same where a name must be ours."""
    spec = declared(name)
    if spec is None:
        raise SignalError(unknown_name("metric", name, [spec.name for spec in METRICS]))
    return spec

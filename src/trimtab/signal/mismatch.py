"""How sampler and trainer differ, in every number that is in use: computed only where `use_metrics("many")` asks.

d = old - rollout at every token, bounded before it is exponentiated; p and q are the probabilities of the sampled token
in trainer and sampler. Tokens were sampled from q.
"""

import torch

from trimtab.signal.agreement import Agreement, Quotient
from trimtab.signal.fields import Field
from trimtab.signal.layout import Keep, PerToken, Segments
from trimtab.signal.metric_kind import Extremum, Mean, Metric, Spread
from trimtab.signal.reduce import bounded_exp, sequence_mean, sequence_sum


def mismatch(logp_old: PerToken, logp_rollout: PerToken, segments: Segments, keep: Keep) -> dict[str, Metric]:
    """Everything about trainer and sampler that `diagnostics.drift` leaves out."""
    old, rollout = logp_old.double(), logp_rollout.double()
    apart = old - rollout
    ratio = bounded_exp(apart)
    filled = segments.token_counts > 0
    k3 = ratio - 1 - apart
    gap = (old.exp() - rollout.exp()).abs()
    perplexity, theirs = (bounded_exp(-sequence_mean(one, segments)) for one in (old, rollout))
    return {
        "chi2_engine/token_mean": Mean.of(ratio.square() - 1),
        "chi2_engine/sequence_mean": Mean.of(bounded_exp(sequence_sum(apart, segments)).square() - 1, filled),
        "fold_engine/token_mean": Mean.of(bounded_exp(apart.abs())),
        "k3_reverse_engine/token_mean": Mean.of(bounded_exp(-apart) - 1 + apart),
        "js_engine/token_mean": Mean.of(_to_the_middle(apart)),
        "probability_gap_engine/token_mean": Mean.of(gap),
        "probability_gap_engine/token_std": Spread.of(gap),
        "probability_gap_engine/token_max": Extremum.of(gap, 1),
        "probability_engine/token_correlation": Agreement.of(old.exp(), rollout.exp(), "correlation"),
        "perplexity_old/sequence_mean": Mean.of(perplexity, filled),
        "perplexity_rollout/sequence_mean": Mean.of(theirs, filled),
        "perplexity_ratio/sequence_mean": Mean.of(perplexity / theirs, filled),
        "k3_engine_kept/token_mean": Mean.of(k3, keep),
        "k3_engine_rejected/token_mean": Mean.of(k3, ~keep),
        "k3_engine_per_entropy/token": Quotient.of(k3, -rollout),
    }


def _to_the_middle(apart: PerToken) -> PerToken:
    """Half of k3 of p and half of k3 of q, each to their mean (p + q) / 2."""
    up, down = (bounded_exp(x) for x in (apart, -apart))
    # log p - log((p + q) / 2) = -log((1 + q/p) / 2)
    from_old, from_rollout = -torch.log1p((down - 1) / 2), -torch.log1p((up - 1) / 2)
    return ((from_old.exp() - 1 - from_old) + (from_rollout.exp() - 1 - from_rollout)) / 2


def explained(returns: Field, value_old: PerToken, training: Field) -> dict[str, Metric]:
    """How much of the returns the critic knew beforehand."""
    return {"value_old/explained_variance": Agreement.of(returns.tokens, value_old, "explained", training.tokens)}

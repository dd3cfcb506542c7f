"""Trust regions with a memory: a token is left out because of how far the tokens before it have drifted already.

Each is a `keep` formula, as in trust_region.py. What an early token changes, every later one builds on; so these look
at a token's place in its sequence and at the sum of what came before.
"""

import torch

from trimtab.signal.catalogue import Positive, Rule, Unit, formula
from trimtab.signal.correction import Observations
from trimtab.signal.layout import Keep, PerToken, Segments
from trimtab.signal.reduce import earlier_sum, sequence_quantile, to_tokens

PROMISES = (
    "mask_content", "nonfinite_isolation", "no_aliasing", "permutation", "equals_definition", "metric_truth", "split",
)  # fmt: skip
"""Not `decision_granularity`: a sequence is measured, and its tokens are decided about."""


@formula(
    source="Mao et al. 2026, Beyond Uniform Token-Level Trust Region (CPPO), arXiv:2606.10968, eq. 8 to 11 and 22",
    stage="keep",
    scope="sequence",
    promises=PROMISES,
    known_as=("CPPO", "cumulative prefix budget"),
    rules=(
        Rule(
            lambda given: given["budget_low"] <= given["budget_high"],
            "the budget lies between budget_low and budget_high, so budget_low must not be above budget_high",
        ),
    ),
)
def prefix_budget(
    logp_later: PerToken,
    logp_earlier: PerToken,
    advantage: PerToken,
    segments: Segments,
    *,
    limit: Positive = 0.15,
    last_weight: Unit = 0.8,
    budget_low: Positive = 0.02,
    budget_high: Positive = 0.04,
    quantile: Unit = 0.9,
) -> tuple[Keep, Observations]:
    """Keep a token unless its move exceeds a limit that shrinks once the tokens before it overspent a budget; by sign.

    rejected iff w_t * |x_t| > limit + min(0, sum_{s<t} w_s * (b - |x_s|)) and advantage_t * x_t > 0
    x_t = exp(logp_later_t) - exp(logp_earlier_t), as in probability_band
    w_t falls evenly from 1 at a sequence's first token to last_weight at its last, so early moves count for more
    b = the quantile of the sequence's |x_t|, held between budget_low and budget_high

    Tokens before t spend whether they are kept or not. What they saved is not lent: the limit never grows.
    Settings in use, on `total`: limit 0.15 for dense models and 0.2 for mixtures of experts, the rest as here.
    """
    moved = torch.exp(logp_later.double().clamp(max=0)) - torch.exp(logp_earlier.double().clamp(max=0))
    budget = sequence_quantile(moved.abs(), segments, quantile).clamp(budget_low, budget_high)
    weight = 1 - (1 - last_weight) * _progress(segments)
    spare = earlier_sum(weight * (to_tokens(budget, segments) - moved.abs()), segments)
    cost = weight * moved.abs()
    over, spent = cost > limit, cost > limit + spare.clamp(max=0)
    outward = advantage * moved > 0
    return ~(spent & outward), {"over_high_tokens": over, "over_budget_tokens": spent}


def _progress(segments: Segments) -> PerToken:
    """0 at the first token of a sequence, 1 at its last; 0 where both are one."""
    place = torch.arange(segments.num_tokens, device=segments.token_counts.device)
    place = (place - to_tokens(segments.first_token, segments)).double()
    return place / to_tokens(segments.token_counts - 1, segments).clamp(min=1)

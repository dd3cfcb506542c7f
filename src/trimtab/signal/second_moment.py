"""Trust regions of a whole update: the farthest tokens are left out until the mean squared log-ratio is small.

Each is a `keep` formula, as in trust_region.py.
"""

import torch
from torch import Tensor

from trimtab.signal.catalogue import Positive, formula
from trimtab.signal.correction import Observations
from trimtab.signal.layout import Keep, PerToken, TokenIndex
from trimtab.signal.reduce import smallest

PROMISES = ("no_aliasing", "permutation", "equals_definition", "metric_truth")


@formula(
    source="AReaL, M2PO mask (m2_threshold), over tokens of both signs",
    stage="keep",
    scope="update",
    promises=PROMISES,
    known_as=("M2PO mask",),
)
def second_moment(logratio: PerToken, token_key: TokenIndex, *, limit: Positive) -> tuple[Keep, Observations]:
    """Reject the farthest tokens of the update, as few as bring the mean squared log-ratio of the rest to the limit.

    keep = the most tokens, nearest first, with mean of logratio_t^2 <= limit; equally far ones by `token_key`

    At least one token stays. Settings in use: AReaL has no default, and its ratio is `engine`.
    Differs from AReaL: over the whole update, not per micro-batch, so the gradient does not depend on the split
    (AReaL #1546); and a mean of exactly the limit is kept. On `engine` it looks at the whole batch.
    """
    every = torch.ones_like(logratio, dtype=torch.bool)
    keep = smallest(logratio.square(), every, _count(logratio.square(), limit).clamp(min=1), token_key)
    return keep, {"over_high_tokens": ~keep}


@formula(
    source="Zheng et al. 2025, M2PO, arXiv:2510.01161, algorithm 1",
    stage="keep",
    scope="update",
    promises=PROMISES,
    known_as=("M2PO",),
)
def second_moment_by_sign(
    logratio: PerToken, advantage: PerToken, token_key: TokenIndex, *, limit: Positive
) -> tuple[Keep, Observations]:
    """As second_moment, among the tokens that have moved to where their advantage pulls; all others stay.

    T = tokens with advantage_t * logratio_t > 0
    rejected = the fewest of T, farthest first, that bring the mean of logratio_t^2 over the rest of T to the limit

    Settings in use: M2PO 0.04, on `total`. Its released code bounds ratios instead and rejects no token.
    """
    squares, outward = logratio.square(), advantage * logratio > 0
    count = _count(torch.where(outward, squares, torch.inf), limit)
    keep = smallest(squares, outward, count, token_key) | ~outward
    return keep, {"over_high_tokens": ~keep}


def _count(squares: PerToken, limit: float) -> Tensor:
    """How many of the smallest squares have a mean of at most the limit."""
    places = torch.arange(1, squares.shape[0] + 1, device=squares.device)
    return (squares.sort().values.double().cumsum(0) / places <= limit).sum()

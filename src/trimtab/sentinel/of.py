"""Sources of metrics: one number per trainable token, computed from a case. For `Result(..., of=..., reduction=...)`.

Result.scalar(clipfrac, "metric", of=is_clipped(0.8, 1.2), reduction="mean", range=(0, 1), agreed=0.0)
Result.scalar(ppo_kl, "metric", of=kl("k1", "logp_old", "logp_current"), reduction="mean")
"""

import torch
from torch import Tensor

from trimtab.errors import TrimtabError, unknown_name
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Values

ESTIMATORS = ("k1", "k2", "k3", "|k1|")


def log_ratio(first: str = "logp_current", second: str = "logp_old") -> Values:
    """Log of the first policy over the second."""
    return lambda case: (case.flat(first) - case.flat(second)).detach()


def ratio(first: str = "logp_current", second: str = "logp_old") -> Values:
    """The first policy over the second."""
    return lambda case: log_ratio(first, second)(case).exp()


def kl(estimator: str = "k1", first: str = "logp_current", second: str = "logp_ref") -> Values:
    """An estimate of the KL of the first policy to the second, sampled from the first."""
    if estimator not in ESTIMATORS:
        raise TrimtabError(unknown_name("estimator", estimator, list(ESTIMATORS)))

    def values(case: Case) -> Tensor:
        gap = log_ratio(first, second)(case)
        return {"k1": gap, "k2": gap**2 / 2, "k3": torch.exp(-gap) + gap - 1, "|k1|": gap.abs()}[estimator]

    return values


def is_clipped(low: float, high: float, *, first: str = "logp_current", second: str = "logp_old") -> Values:
    """1 where the clip binds: above the band for a positive advantage, below it for a negative one."""

    def values(case: Case) -> Tensor:
        size, credit = ratio(first, second)(case), case.flat("advantage").detach()
        return (((credit > 0) & (size > high)) | ((credit < 0) & (size < low))).double()

    return values


def is_dual_clipped(cap: float, *, first: str = "logp_current", second: str = "logp_old") -> Values:
    """1 where a dual clip binds: a negative advantage and a ratio above the cap."""
    return lambda case: ((case.flat("advantage") < 0) & (ratio(first, second)(case) > cap)).double()


def difference(first: str, second: str) -> Values:
    """The absolute difference of the two policies' probabilities of the token."""
    return lambda case: (case.flat(first).exp() - case.flat(second).exp()).abs().detach()

"""Formulas of somebody else's that do what no formula may, for the live guard to see."""

import torch
from torch import Tensor

from trimtab import formula
from trimtab.signal.layout import PerToken


@formula(source="a test", stage="importance", scope="token", consumes="ratio", promises=())
def halves_old(logp_old: PerToken, logratio: PerToken) -> tuple[PerToken, dict[str, Tensor]]:
    """An importance of 1 that writes into the batch on the way."""
    logp_old.mul_(0.5)
    return torch.ones_like(logratio), {}


@formula(source="a test", stage="importance", scope="token", consumes="ratio", promises=())
def halves_late(logp_rollout: PerToken, logratio: PerToken) -> tuple[PerToken, dict[str, Tensor]]:
    """The same for a ratio of the current policy, so it writes into a micro-batch."""
    logp_rollout.mul_(0.5)
    return torch.ones_like(logratio), {}


@formula(source="a test", stage="importance", scope="token", consumes="ratio", promises=())
def looks_around(logratio: PerToken) -> tuple[PerToken, dict[str, Tensor]]:
    """A weight that depends on who else is in the micro-batch, which scope `token` forbids."""
    return torch.full_like(logratio, float(len(logratio))), {}


@formula(source="a test", stage="importance", scope="update", consumes="ratio", promises=())
def halves_in_decide(logp_rollout: PerToken, logratio: PerToken) -> tuple[PerToken, dict[str, Tensor]]:
    """Scope update, so `decide` runs it, once for the whole step; it writes to what it was given."""
    logp_rollout.mul_(0.5)
    return logratio.detach().exp(), {}

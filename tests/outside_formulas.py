"""Formulas that live outside the package, as a user's would."""

from typing import Any

from torch import Tensor

from trimtab import formula
from trimtab.signal.layout import PerToken


@formula(source="a test", stage="importance", scope="token", consumes="ratio", promises=("no_aliasing",))
def halved(logratio: PerToken, *, factor: float, **ignored: Any) -> tuple[PerToken, dict[str, Tensor]]:
    """The raw ratio times a constant; accepts and ignores other keyword arguments, as slime's hooks do."""
    return factor * logratio.detach().exp(), {}


def undecorated(logratio: PerToken) -> PerToken:
    """Not a formula."""
    return logratio


@formula(source="a test", stage="keep", scope="token", promises=("no_aliasing",))
def wants_too_much(logratio: PerToken, temperature_field: PerToken) -> tuple[Tensor, dict[str, Tensor]]:
    """Asks for an input that nobody provides."""
    return logratio > temperature_field, {}


@formula(
    source="a test", stage="policy_loss", scope="token", consumes="ratio", promises=("split", "on_policy_identity")
)
def leaky(logp_current: PerToken, logp_anchor: PerToken, advantage: PerToken) -> tuple[PerToken, dict[str, Tensor]]:
    """A surrogate with a planted bug: it forgets the sign of the advantage."""
    return -(logp_current - logp_anchor.detach()).exp() * advantage.abs(), {}


@formula(source="a test", stage="policy_loss", scope="token", promises=("split",))
def averaged(logp_current: PerToken, advantage: PerToken) -> tuple[Tensor, dict[str, Tensor]]:
    """Takes the mean inside, which a formula never does."""
    return (-advantage * logp_current).mean(), {}


@formula(source="a test", stage="policy_loss", scope="token", promises=("split",))
def bare(logp_current: PerToken, advantage: PerToken) -> PerToken:
    """Forgets its observations."""
    return -advantage * logp_current

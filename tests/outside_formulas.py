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

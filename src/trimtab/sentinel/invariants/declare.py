"""What an invariant is, and the register of all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.subject import Subject


@dataclass(frozen=True)
class Violation:
    """What went wrong on one case: in words, with what was seen and what was owed."""

    what: str
    observed: object
    expected: object
    positions: tuple[int, ...] = ()
    """Trainable tokens (or sequences, for a sequence result) at which it shows."""


def numbers(values: Tensor) -> object:
    """A result as plain numbers, for a violation."""
    return cast("object", values.tolist())


Check = Callable[[Subject, Case], Violation | None]


@dataclass(frozen=True)
class Invariant:
    """One law, with what a person needs to act on it."""

    name: str
    statement: str
    why: str
    bug: str
    """A real bug of this kind."""
    repair: str
    check: Check


INVARIANTS: dict[str, Invariant] = {}


def invariant(*, statement: str, why: str, bug: str, repair: str) -> Callable[[Check], Check]:
    """Declare a check; its function name is the invariant's name."""

    def declare(check: Check) -> Check:
        INVARIANTS[check.__name__] = Invariant(check.__name__, statement, why, bug, repair, check)
        return check

    return declare

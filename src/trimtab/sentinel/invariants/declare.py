"""The definition of an invariant, and the register of all invariants."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Subject

Grade = Literal["bug", "suspect", "latent", "hygiene", "convention"]
"""suspect: wrong if it was meant as its names and numbers suggest.
latent: wrong only where a run meets a condition that most runs never meet; the condition is named.
hygiene: harmless as long as callers are careful. convention: one of several correct ways, named."""
GRADES: tuple[Grade, ...] = ("bug", "suspect", "latent", "hygiene", "convention")
"""The worst first."""


@dataclass(frozen=True)
class Compared:
    """Which numbers should be equal: a result (or its gradient at a leaf) on one case, and another one or a number."""

    result: str
    leaf: str | None
    case: Case
    other: Case | None = None
    index: tuple[int, ...] | None = None
    other_index: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Effect:
    """How much of the training signal is affected, for the severity of a finding."""

    on: Literal["gradient", "value", "decision", "metric"] = "value"
    leaked_positions: tuple[int, ...] = ()
    relative_change: float | None = None

    @property
    def severity(self) -> Literal["high", "medium", "low"]:
        """A wrong metric misleads people but not the update. A change above a tenth of the signal is high."""
        if self.on == "metric":
            return "low"
        change = self.relative_change
        if change is None or self.on == "decision" or not change < 0.1:
            return "high"
        return "medium" if change > 1e-3 else "low"


@dataclass(frozen=True)
class Violation:
    """What went wrong on one case: a sentence, the observed values and the expected ones."""

    what: str
    observed: object
    expected: object
    positions: tuple[int, ...] = ()
    """Trainable tokens (or sequences, for a sequence result) that are affected."""
    grade: Grade = "bug"
    effect: Effect = field(default_factory=Effect)
    compared: Compared | None = None
    condition: str = ""
    """For a latent violation: what a real run must meet."""


def numbers(values: Tensor) -> object:
    """A result as plain numbers, for a violation."""
    return cast("object", values.tolist())


Check = Callable[[Subject, Case], Violation | tuple[Violation, ...] | None]


@dataclass(frozen=True)
class Invariant:
    """One invariant, with the explanations that a person needs to act on it."""

    name: str
    statement: str
    why: str
    bug: str
    """A real bug of this kind."""
    repair: str
    check: Check
    family: str
    """Its number in the catalogue of bug families."""
    some: bool = False
    """It must hold on some case, not on all. It is a finding only if it holds on no case."""
    alone: bool = False
    """It looks at one call at a time, so it also applies to a function that draws random numbers."""
    whole: bool = False
    """It is about the function and not about one case, so one case is enough and none is made smaller."""


INVARIANTS: dict[str, Invariant] = {}


def invariant(
    *,
    statement: str,
    why: str,
    bug: str,
    repair: str,
    family: str,
    some: bool = False,
    alone: bool = False,
    whole: bool = False,
) -> Callable[[Check], Check]:
    """Declare a check. The name of the function is the name of the invariant."""

    def declare(check: Check) -> Check:
        INVARIANTS[check.__name__] = Invariant(
            check.__name__, statement, why, bug, repair, check, family, some, alone, whole
        )
        return check

    return declare

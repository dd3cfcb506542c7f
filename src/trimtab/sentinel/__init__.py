"""The sentinel: checks any function of the training signal against invariants and returns the smallest counter-example.

    verdict = check(Subject("my_loss", call), "mask_content")

`check` searches with hypothesis (the extra `sentinel`). Everything else needs only torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from trimtab.errors import MissingExtra
from trimtab.sentinel.batch.case import CannotRepresent, Case
from trimtab.sentinel.binding.bind import ROLES, after, at, bind, subject
from trimtab.sentinel.binding.built import built
from trimtab.sentinel.binding.calling import run
from trimtab.sentinel.binding.like import average, divergence, like, reward_at_end, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.invariants import INVARIANTS, Invariant, Violation
from trimtab.sentinel.invariants.conventions import detected

if TYPE_CHECKING:
    from trimtab.sentinel.search import Verdict, check, examine

__all__ = [
    "INVARIANTS",
    "ROLES",
    "CannotRepresent",
    "Case",
    "Invariant",
    "Out",
    "Result",
    "Subject",
    "Verdict",
    "Violation",
    "after",
    "at",
    "average",
    "bind",
    "built",
    "check",
    "detected",
    "divergence",
    "examine",
    "like",
    "reward_at_end",
    "run",
    "scored",
    "subject",
]


def __getattr__(name: str) -> Any:
    """Import the search on first use, because it needs hypothesis."""
    if name not in ("check", "examine", "Verdict"):
        raise AttributeError(f"module 'trimtab.sentinel' has no attribute {name!r}")
    try:
        importlib.import_module("hypothesis")
        from trimtab.sentinel import search
    except ImportError as error:
        raise MissingExtra('the sentinel needs hypothesis: pip install "trimtab[sentinel]"') from error
    return getattr(search, name)

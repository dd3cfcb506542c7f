"""The sentinel: holds any function of the training signal to invariants, and hands back the smallest counter-example."""

from trimtab.sentinel.case import CannotRepresent, Case
from trimtab.sentinel.invariants import INVARIANTS, Invariant, Violation
from trimtab.sentinel.search import Verdict, check
from trimtab.sentinel.subject import Out, Result, Subject, run

__all__ = [
    "INVARIANTS", "CannotRepresent", "Case", "Invariant", "Out", "Result", "Subject", "Verdict", "Violation", "check", "run",
]  # fmt: skip

"""The invariants: properties that every function of the training signal must have, in every framework.

Each is one function `check(subject, case) -> Violation | None`. It carries its statement, the reason for it, a real bug
that it catches and the way to repair one. Invariants attach to facts (inputs, levels, kinds), never to a function's
name.
"""

from trimtab.sentinel.invariants import (
    alignment,
    bounded,
    content,
    contract,
    credit,
    definition,
    expectation,
    isolation,
    known,
    layout,
    logits,
    metrics,
    options,
    parallel,
    precision,
    scale,
    surrogate,
)
from trimtab.sentinel.invariants.declare import INVARIANTS, Invariant, Violation

# Importing a file declares the invariants in it.
__all__ = [
    "INVARIANTS",
    "Invariant",
    "Violation",
    "alignment",
    "bounded",
    "content",
    "contract",
    "credit",
    "definition",
    "expectation",
    "isolation",
    "known",
    "layout",
    "logits",
    "metrics",
    "options",
    "parallel",
    "precision",
    "scale",
    "surrogate",
]

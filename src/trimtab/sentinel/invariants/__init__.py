"""The invariants: what every function of the training signal owes, whoever wrote it.

Each is one function `check(subject, case) -> Violation | None` with its statement, the reason, a real bug of its kind
and the way to repair it. They attach to facts (inputs, levels, kinds), never to a function's name.
"""

from trimtab.sentinel.declare import INVARIANTS, Invariant, Violation
from trimtab.sentinel.invariants import (
    alignment,
    bounded,
    content,
    contract,
    credit,
    definition,
    expectation,
    isolation,
    layout,
    logits,
    metrics,
    options,
    parallel,
    precision,
    scale,
    surrogate,
)

# Importing a file of invariants is what declares them.
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
    "layout",
    "logits",
    "metrics",
    "options",
    "parallel",
    "precision",
    "scale",
    "surrogate",
]

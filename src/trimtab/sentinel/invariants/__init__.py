"""The invariants: what every function of the training signal owes, whoever wrote it.

Each is one function `check(subject, case) -> Violation | None` with its statement, the reason, a real bug of its kind
and the way to repair it. They attach to facts (inputs, levels, kinds), never to a function's name.
"""

from trimtab.sentinel.invariants import content, contract, definition, layout, vote
from trimtab.sentinel.invariants.declare import INVARIANTS, Invariant, Violation

# Importing a file of invariants is what declares them.
__all__ = ["INVARIANTS", "Invariant", "Violation", "content", "contract", "definition", "layout", "vote"]

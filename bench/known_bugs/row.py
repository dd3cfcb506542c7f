"""One known bug: the commit that has it, the commit that repaired it, and what must find it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.sentinel.targets.target import Binding


@dataclass(frozen=True)
class Row:
    """`Row("SLIME-DUALCLIP", "slime", "THUDM/slime", "e7a118711", "2b10784d8", ("clip_geometry",), binding)`.

    fixed       None if the head still has the bug
    invariants  one of these must be violated at `buggy`; those violated there must hold at `fixed`
    binding     of the ready target, or one for this row alone (statements cut out of an old commit)
    """

    id: str
    framework: str
    repository: str
    buggy: str
    fixed: str | None
    invariants: tuple[str, ...]
    binding: Binding
    note: str = ""
    real: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other invariants that are violated at the fix and were judged real: the caller's file and line, and an input."""

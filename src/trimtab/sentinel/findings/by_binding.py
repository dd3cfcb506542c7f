"""Replay through the binding: check the invariant itself again on the recorded case."""

from trimtab.errors import TrimtabError
from trimtab.sentinel.batch.case import CannotRepresent, WrongShape
from trimtab.sentinel.batch.directed import completed
from trimtab.sentinel.binding.calling import resolve_inputs
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.invariants.declare import INVARIANTS


def replay_with_binding(recipe: Data, subject: Subject) -> str:
    """`reproduced`, `fixed`, or `could not run: why`."""
    binding = recipe.get("binding")
    if not binding:
        return "could not run: the reproduction file names no binding and no case"
    law = INVARIANTS.get(binding["invariant"])
    if law is None:
        return f"could not run: there is no invariant {binding['invariant']!r}"
    try:
        case = subject.adapt(completed(binding["case"]))
        found = law.check(resolve_inputs(subject, case), case)
    except (CannotRepresent, TrimtabError, WrongShape) as error:
        return f"could not run: {error}"
    except Exception as error:  # foreign code may raise anything
        return f"could not run: {type(error).__name__}: {error}"
    return "reproduced" if found else "fixed"

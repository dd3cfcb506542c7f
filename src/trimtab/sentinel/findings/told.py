"""Whether a function is told which tokens are tool output: the only place that asks this of its arguments.

If it is not, its arguments are the same whether these tokens train or not. Then no repair of this function alone can
give both answers, and a test that asks for one of them could never pass.
"""

from dataclasses import replace

from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.findings.trace import record
from trimtab.sentinel.invariants.declare import Violation
from trimtab.sentinel.reports.causes import OF_INVARIANT

WHY = (
    "the arguments of the function are the same whether tool output trains or not, so no repair of this function alone "
    "can pass a test: its caller has to tell it which tokens train"
)


def why_no_test(subject: Subject, invariant: str, violation: Violation) -> str:
    """Why a regression test could never pass; empty if it can."""
    compared, boundary = violation.compared, subject.boundary
    if compared is None or boundary is None or OF_INVARIANT.get(invariant) != ("content",):
        return ""
    case = compared.case
    trained = replace(case, kinds=tuple(tuple("a" if kind == "o" else kind for kind in row) for row in case.kinds))
    if trained.kinds == case.kinds:
        return ""
    try:
        return WHY if record(subject, boundary, case).calls == record(subject, boundary, trained).calls else ""
    except Exception:  # it refuses the other case, so it can tell them apart
        return ""

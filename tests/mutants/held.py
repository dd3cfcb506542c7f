"""A subject held to invariants on given cases, without making counter-examples small: quick, for many mutants."""

from collections.abc import Iterable, Sequence

from trimtab.sentinel import INVARIANTS, Case, Subject
from trimtab.sentinel.batch.rest import at_rest
from trimtab.sentinel.invariants.parallel import close_pools
from trimtab.sentinel.search.prepare import ready
from trimtab.sentinel.search.trial import Trial, shown

FINDING = ("bug", "suspect", "latent", "hygiene")


def findings(subject: Subject, cases: Sequence[Case], names: Iterable[str] | None = None) -> dict[str, str]:
    """The invariants that find something, each with what it found; the first error under "could not run"."""
    try:
        # Two cases tell what a subject reads; only one that raises on both is tried on all.
        known, why = ready(subject, list(cases[:2]))
        known, why = ready(subject, list(cases)) if why else (known, why)
        if why:
            return {"could not run": why}
        cases = [at_rest(case, known.fields) for case in cases]
        held = [n for n in (INVARIANTS if names is None else names) if n not in subject.waived]
        held = [n for n in held if not known.varies or INVARIANTS[n].alone]
        return {name: what for name in held if (what := _finding(known, name, cases))}
    finally:
        close_pools()


def _finding(subject: Subject, name: str, cases: Sequence[Case]) -> str:
    trial = Trial(subject, name)
    if INVARIANTS[name].some:
        verdict = shown(subject, name, trial, list(cases))
        return verdict.violation.what if verdict.status in FINDING and verdict.violation else ""
    # What a function is as a whole, any case can ask.
    for case in cases[:1] if INVARIANTS[name].whole else cases:
        found = trial.attempt(case)
        if found is not None and found.grade in FINDING:
            return found.what
    return ""

"""What a violation is worth: a bug, a suspect, latent, a convention, or the consequence of another one."""

from dataclasses import replace

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import SHAPES, ordinary
from trimtab.sentinel.batch.rest import at_rest
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.bounded import EMPTY_ROW
from trimtab.sentinel.invariants.declare import INVARIANTS
from trimtab.sentinel.search.consequence import OWN, REPORTS_NONFINITE, condition_of_sources, passes_on
from trimtab.sentinel.search.corner import corner_of
from trimtab.sentinel.search.declared import COMPARISONS, as_subject
from trimtab.sentinel.search.prepare import ready
from trimtab.sentinel.search.trial import Trial, Verdict, held


def graded(subject: Subject, verdict: Verdict, cases: list[Case]) -> Verdict:
    """A bug under a guessed binding is a suspect, unless every other plausible binding shows it as well.

    A formula with a mistake is nothing at all, if it is a published one under another plausible binding.
    """
    is_formula = verdict.invariant == "known_mistake" and verdict.status == "suspect"
    if not subject.guessed or (verdict.status != "bug" and not is_formula):
        return verdict
    if subject.by_use and verdict.invariant in MEANT:
        why = "what its arguments mean was told by nothing but their use"
        return replace(verdict, status="could not exercise", violation=None, case=None, reason=why)
    others = [ready(one, cases[: len(SHAPES)])[0] for one in subject.alternatives]
    if is_formula:
        as_published = [one for one in (held(o, "known_mistake", cases) for o in others) if one.status == "holds"]
        return replace(as_published[0], subject=verdict.subject) if as_published else verdict
    sure = (
        bool(others)
        and not subject.invented
        and not subject.by_use
        and verdict.invariant not in ASSUMED
        and all(held(one, verdict.invariant, cases).status == "bug" for one in others)
    )
    return verdict if sure else replace(verdict, status="suspect")


MEANT = ("expected_gradient", "credit_flows_back", "penalty_direction", "options_take_sides", "degenerate_bounded")
"""Laws about what an input stands for."""


ASSUMED = ("options_live", "sample_isolation", "group_isolation", "split")
"""Laws about what nobody said of a function that nobody bound: the values of its settings, and which samples may move
one another. Many advantages are whitened over the batch, on purpose."""


def judged(subject: Subject, verdict: Verdict, cases: list[Case]) -> Verdict:
    """A law that the declared definition breaks as well, on the same case, is a choice of whoever declared it."""
    asked = verdict.status == "bug" and verdict.invariant not in COMPARISONS and subject.definition is not None
    if not asked or verdict.case is None or verdict.violation is None:
        return verdict
    if verdict.invariant in ADDED_UP and subject.combine is not None:
        return verdict  # how parts are combined is declared too, and does not fit a mean over one call
    if held(subject, "equals_definition", cases).status not in ("holds", "convention"):
        return verdict
    broken = Trial(as_subject(subject), verdict.invariant).claims(verdict.case)
    if not broken or broken[0].grade != "bug":
        return verdict
    what = f"{verdict.violation.what}; so does the definition that its binding declares"
    return replace(verdict, status="convention", violation=replace(verdict.violation, what=what, grade="convention"))


ADDED_UP = ("split", "parallel_layout")
"""Laws about several calls. A definition says what one call gives."""


def on_its_own(subject: Subject, verdict: Verdict, cases: list[Case]) -> Verdict:
    """A violation with NaN or infinity in it must also show without them, if another law reports those.

    If it does, it is reported as it shows there. If it vanishes, it is a consequence, and no worse than its cause.
    """
    found = verdict.violation
    if verdict.invariant in OWN or found is None or verdict.case is None or not passes_on(found):
        return verdict
    without = held(subject, verdict.invariant, cases, finite=True)
    if without.violation is not None:
        return without
    case, name = verdict.case, verdict.invariant
    condition = condition_of_sources(subject, lambda watched: Trial(watched, name).claims(case))
    cause = held(subject, REPORTS_NONFINITE, cases)
    if not condition or cause.violation is None:
        return verdict
    violation = replace(found, grade="latent", condition=condition)
    return replace(verdict, status="latent", violation=violation, consequence_of=REPORTS_NONFINITE)


def in_corners(subject: Subject, verdict: Verdict, cases: list[Case]) -> Verdict:
    """A bug that no ordinary batch shows is latent, if all batches that show it have one thing in common."""
    known = INVARIANTS[verdict.invariant]
    found = verdict.violation
    if verdict.status != "bug" or found is None or known.some or known.whole or verdict.case is None:
        return verdict
    trial = Trial(subject, verdict.invariant)

    def shown(case: Case) -> bool | None:
        claims = trial.claims(case)
        return None if claims is None else any(claim.grade == "bug" for claim in claims)

    at_work = (at_rest(case, subject.fields) for case in ordinary())
    # A function that is told which samples count is there for samples that do not.
    usual = (EMPTY_ROW,) if subject.reading("in_use", "chosen", "votes") else ()
    condition = corner_of(shown, [*cases, verdict.case], at_work, usual=usual)
    if not condition:
        return verdict
    return replace(verdict, status="latent", violation=replace(found, grade="latent", condition=condition))

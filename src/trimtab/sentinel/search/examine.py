"""The search for a counter-example: directed cases first, then those of hypothesis. Counter-examples are shrunk.

The search is deterministic for a seed. A counter-example has few sequences, few tokens and round numbers.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trimtab.errors import TrimtabError, unknown_name
from trimtab.sentinel.batch.case import CannotRepresent, Case, WrongBinding, WrongShape
from trimtab.sentinel.batch.directed import SHAPES, directed, ordinary, random_cases
from trimtab.sentinel.batch.rest import at_rest
from trimtab.sentinel.binding.calling import Memory, resolve_inputs, run
from trimtab.sentinel.binding.settings import modes
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.bounded import EMPTY_ROW
from trimtab.sentinel.invariants.declare import GRADES, INVARIANTS, Effect, Violation
from trimtab.sentinel.invariants.parallel import close_pools
from trimtab.sentinel.search.consequence import OWN, REPORTS_NONFINITE, condition_of_sources, passes_on
from trimtab.sentinel.search.corner import corner_of
from trimtab.sentinel.search.declared import COMPARISONS, as_subject
from trimtab.sentinel.search.measure import measured
from trimtab.sentinel.search.shrink import smallest

Status = Literal[
    "holds", "bug", "suspect", "latent", "hygiene", "convention", "waived", "could not exercise", "could not run"
]  # fmt: skip
Severity = Literal["high", "medium", "low", "none"]

ENOUGH = 3
"""Number of cases that a subject must accept before an invariant counts as exercised."""
EXAMPLES = 12
"""Default number of random cases in addition to the directed ones."""


ADDED_UP = ("split", "parallel_layout")
"""Laws about several calls. A definition says what one call gives."""


@dataclass(frozen=True)
class Verdict:
    """One invariant checked on one subject."""

    subject: str
    invariant: str
    status: Status
    exercised: int
    violation: Violation | None = None
    case: Case | None = None
    reason: str = ""
    seconds: float = 0.0
    consequence_of: str = ""
    """The invariant whose violation causes this one; then this one is no finding of its own."""

    @property
    def severity(self) -> Severity:
        """Severity from the effect on the training signal; a convention has none."""
        if self.violation is None or self.status == "convention":
            return "none"
        return self.violation.effect.severity if self.status == "bug" else "low"


def check(subject: Subject, name: str, *, seed: int = 0, examples: int = EXAMPLES) -> Verdict:
    """Check one invariant on a subject, with the directed cases and `examples` random ones."""
    return next(examine(subject, only=(name,), seed=seed, examples=examples))


def examine(
    subject: Subject, *, only: Sequence[str] | None = None, seed: int = 0, examples: int = EXAMPLES
) -> Iterator[Verdict]:
    """Check every invariant (or the named ones) on a subject, one verdict after the other."""
    subject, why = ready(subject, list(directed()))
    yield from hold(subject, why, only=only, seed=seed, examples=examples)


def hold(
    subject: Subject, why: str, *, only: Sequence[str] | None = None, seed: int = 0, examples: int = EXAMPLES
) -> Iterator[Verdict]:
    """Hold what `ready` returned to the invariants."""
    names = list(only if only is not None else subject.promises or INVARIANTS)
    for name in names:
        if name not in INVARIANTS:
            raise TrimtabError(unknown_name("invariant", name, sorted(INVARIANTS)))
    cases = [*directed(), *(() if why else random_cases(subject.reads, seed=seed, examples=examples))]
    cases = [at_rest(case, subject.fields) for case in cases]
    try:
        for name in names:
            started = time.perf_counter()
            if name in subject.waived:
                yield Verdict(subject.label, name, "waived", 0, reason=subject.waived[name])
            elif why:  # once: it is about the function, and no invariant adds anything
                yield Verdict(subject.label, name, "could not run", 0, reason=why)
                return
            elif subject.varies and not INVARIANTS[name].alone:
                why_not = f"not deterministic: {subject.varies}"
                yield Verdict(subject.label, name, "could not exercise", 0, reason=why_not)
            else:
                held = _in_corners(subject, _on_its_own(subject, _on_every_path(subject, name, cases), cases), cases)
                verdict = _graded(subject, _judged(subject, held, cases), cases)
                yield replace(verdict, seconds=time.perf_counter() - started)
    finally:
        close_pools()


def ready(subject: Subject, cases: list[Case]) -> tuple[Subject, str]:
    """The subject with known inputs, or the reason why it cannot run: no call returns, or the boundary never ran."""
    boundary = subject.boundary
    why, ran = "", False
    subject = found = replace(subject, memory=Memory())
    for case in cases:
        try:
            with boundary.trace() if boundary is not None else nullcontext():
                found = resolve_inputs(found, subject.adapt(case))
                run(found, subject.adapt(case))
        except (WrongShape, CannotRepresent):
            ran = True
        except WrongBinding as error:
            return subject, str(error)
        except Exception as error:
            why = why or told(error)
        else:
            ran = True
    if not ran:
        return subject, why
    if boundary is not None and not boundary.body_ran:
        return subject, f"the body of {boundary.spec.name} did not run"
    return measured(_with_other_paths(found, cases), cases), ""


def _with_other_paths(subject: Subject, cases: list[Case]) -> Subject:
    """The subject, with the fields that it reads on other paths among those that vary."""
    if subject.reads is None:
        return subject
    reads = subject.reads
    for _, other in modes(subject):
        for case in cases[:2]:
            with suppress(Exception):  # a path that cannot be taken reads nothing
                known = resolve_inputs(replace(other, inputs=frozenset(), reads=None), subject.adapt(case))
                reads = reads | (known.reads or frozenset())
    return replace(subject, reads=reads)


def told(error: Exception) -> str:
    """An error of foreign code in one line: its kind, its words, and where it was raised if it has none."""
    words = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if not words:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        words = f"raised by {frame.line!r} in {Path(frame.filename).name}, line {frame.lineno}"
    if "Double" in words or "float64" in words:
        words += " (it refuses double precision: bind it with dtype=torch.float32)"
    return f"{type(error).__name__}: {words}"


def _graded(subject: Subject, verdict: Verdict, cases: list[Case]) -> Verdict:
    """A bug under a guessed binding is a suspect, unless every other plausible binding shows it as well.

    A formula with a mistake is nothing at all, if it is a published one under another plausible binding.
    """
    is_formula = verdict.invariant == "known_mistake" and verdict.status == "suspect"
    if not subject.guessed or (verdict.status != "bug" and not is_formula):
        return verdict
    others = [ready(one, cases[: len(SHAPES)])[0] for one in subject.alternatives]
    if is_formula:
        as_published = [one for one in (_held(o, "known_mistake", cases) for o in others) if one.status == "holds"]
        return replace(as_published[0], subject=verdict.subject) if as_published else verdict
    sure = (
        bool(others)
        and not subject.invented
        and not subject.by_use
        and verdict.invariant not in ASSUMED
        and all(_held(one, verdict.invariant, cases).status == "bug" for one in others)
    )
    return verdict if sure else replace(verdict, status="suspect")


ASSUMED = ("options_live", "sample_isolation", "group_isolation", "split")
"""Laws about what nobody said of a function that nobody bound: the values of its settings, and which samples may move
one another. Many advantages are whitened over the batch, on purpose."""


def _judged(subject: Subject, verdict: Verdict, cases: list[Case]) -> Verdict:
    """A law that the declared definition breaks as well, on the same case, is a choice of whoever declared it."""
    asked = verdict.status == "bug" and verdict.invariant not in COMPARISONS and subject.definition is not None
    if not asked or verdict.case is None or verdict.violation is None:
        return verdict
    if verdict.invariant in ADDED_UP and subject.combine is not None:
        return verdict  # how parts are combined is declared too, and does not fit a mean over one call
    if _held(subject, "equals_definition", cases).status not in ("holds", "convention"):
        return verdict
    broken = Trial(as_subject(subject), verdict.invariant).claims(verdict.case)
    if not broken or broken[0].grade != "bug":
        return verdict
    what = f"{verdict.violation.what}; so does the definition that its binding declares"
    return replace(verdict, status="convention", violation=replace(verdict.violation, what=what, grade="convention"))


def _on_its_own(subject: Subject, verdict: Verdict, cases: list[Case]) -> Verdict:
    """A violation with NaN or infinity in it must also show without them, if another law reports those.

    If it does, it is reported as it shows there. If it vanishes, it is a consequence, and no worse than its cause.
    """
    found = verdict.violation
    if verdict.invariant in OWN or found is None or verdict.case is None or not passes_on(found):
        return verdict
    without = _held(subject, verdict.invariant, cases, finite=True)
    if without.violation is not None:
        return without
    case, name = verdict.case, verdict.invariant
    condition = condition_of_sources(subject, lambda watched: Trial(watched, name).claims(case))
    cause = _held(subject, REPORTS_NONFINITE, cases)
    if not condition or cause.violation is None:
        return verdict
    violation = replace(found, grade="latent", condition=condition)
    return replace(verdict, status="latent", violation=violation, consequence_of=REPORTS_NONFINITE)


def _in_corners(subject: Subject, verdict: Verdict, cases: list[Case]) -> Verdict:
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


def _held(subject: Subject, name: str, cases: list[Case], *, finite: bool = False) -> Verdict:
    """The worst violation, shrunk; with `finite`, only violations whose numbers are all finite."""
    trial = Trial(subject, name)

    def attempt(case: Case) -> Violation | None:
        violation = trial.attempt(case)
        return None if finite and violation is not None and passes_on(violation) else violation

    if INVARIANTS[name].some:
        return _shown(subject, name, trial, cases)
    if INVARIANTS[name].whole:
        return _of_the_whole(subject, name, trial, cases)
    found: tuple[Case, Violation] | None = None
    for case in cases:
        violation = attempt(case)
        if violation is None:
            continue
        if found is None or GRADES.index(violation.grade) < GRADES.index(found[1].grade):
            found = (case, violation)
        if violation.grade == "bug":
            break
    if found is None:
        return trial.unviolated()
    taken = trial.taken
    if trial.crashes > taken and _mostly_raises(trial, cases):
        return trial.unviolated()
    case, violation = smallest(*found, attempt)
    return Verdict(subject.label, name, violation.grade, taken, violation, case)


def _on_every_path(subject: Subject, name: str, cases: list[Case]) -> Verdict:
    """The verdict under the options of the binding; or, if it finds nothing, under another text or switch.

    What samples may move one another, and how parts add up, is said for the options of the binding. So only laws that
    hold for every choice are tried with another one.
    """
    found = _held(subject, name, cases)
    if name not in ON_EVERY_PATH or found.status in ("bug", "suspect", "latent"):
        return found
    for told, other in modes(subject, numbers=name == "no_aliasing"):
        there = _held(other, name, cases[: len(SHAPES)])
        if there.status in ("bug", "latent") and there.violation is not None:
            violation = replace(there.violation, what=f"{there.violation.what}, {told}")
            return replace(there, subject=subject.label, violation=violation)
    return found


ON_EVERY_PATH = (
    "mask_content", "credit_over_trainable", "permutation", "no_aliasing", "clip_geometry", "on_policy_identity",
    "mean_is_a_mean", "connected",
)  # fmt: skip


def _mostly_raises(trial: "Trial", cases: list[Case]) -> bool:
    """Whether it raises on most cases. Then what it returns on the others says little, and the error says more."""
    again = Trial(trial.subject, trial.name)
    for case in cases:
        _ = again.claims(case)
    return again.crashes > again.taken


def _of_the_whole(subject: Subject, name: str, trial: "Trial", cases: list[Case]) -> Verdict:
    """For an invariant about the function itself: any case will do, and the violation names the one it speaks of."""
    violation = trial.attempt(cases[0])
    if not trial.taken:
        return trial.unviolated()
    case = violation.compared.case if violation is not None and violation.compared is not None else cases[0]
    return (
        trial.unviolated(enough=1)
        if violation is None
        else Verdict(subject.label, name, violation.grade, trial.taken, violation, case)
    )


def _shown(subject: Subject, name: str, trial: "Trial", cases: list[Case]) -> Verdict:
    """For an invariant that must hold on some case: it is a finding if it holds on no case."""
    open_claims: dict[str, tuple[Case, Violation]] | None = None
    for case in cases:
        claims = trial.claims(case)
        if claims is None:
            continue
        named = {claim.what: (case, claim) for claim in claims}
        open_claims = named if open_claims is None else {k: v for k, v in open_claims.items() if k in named}
        if not open_claims:
            break
    if not open_claims:
        return trial.unviolated(enough=1)
    if trial.taken < ENOUGH:
        return trial.unviolated()
    case, violation = next(iter(open_claims.values()))
    return Verdict(subject.label, name, violation.grade, trial.taken, violation, case)


class Trial:
    """One invariant tried on cases, with a count of accepted cases and the reason why others were not."""

    def __init__(self, subject: Subject, name: str) -> None:
        self.subject, self.name = subject, name
        self.taken = self.crashes = 0
        self.why = self.crash = ""

    def attempt(self, case: Case) -> Violation | None:
        claims = self.claims(case)
        return claims[0] if claims else None

    def claims(self, case: Case) -> tuple[Violation, ...] | None:
        """Violations on the case: () if there is none, None if the subject did not accept the case."""
        try:
            found = INVARIANTS[self.name].check(self.subject, self.subject.adapt(case))
        except WrongShape as error:
            if self.name != "sample_isolation":
                self.crash = self.crash or str(error)
                return None
            found = Violation("a result has another shape than its inputs", error.observed, error.expected,
                              effect=Effect("value"))  # fmt: skip
        except (CannotRepresent, TrimtabError) as error:
            self.why = str(error)
            return None
        except Exception as error:  # foreign code may raise anything; its first error is reported
            self.crashes += 1
            self.crash = self.crash or (str(error) if isinstance(error, WrongBinding) else told(error))
            return None
        self.taken += 1
        return found if isinstance(found, tuple) else () if found is None else (found,)

    def unviolated(self, enough: int = ENOUGH) -> Verdict:
        held = self.taken >= enough and self.crashes <= self.taken
        status: Status = "holds" if held else "could not run" if self.crash else "could not exercise"
        reason = (
            f"raised on some cases: {self.crash}" if held and self.crash else "" if held else self.crash or self.why
        )
        return Verdict(self.subject.label, self.name, status, self.taken, reason=reason)


Attempt = Callable[[Case], Violation | None]

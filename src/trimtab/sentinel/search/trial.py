"""One invariant tried on cases, and the verdict that comes out of it: the worst violation, shrunk."""

import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trimtab.errors import TrimtabError
from trimtab.sentinel.batch.case import CannotRepresent, Case, WrongBinding, WrongShape
from trimtab.sentinel.batch.directed import SHAPES
from trimtab.sentinel.binding.settings import modes
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.declare import GRADES, INVARIANTS, Effect, Violation
from trimtab.sentinel.search.consequence import passes_on
from trimtab.sentinel.search.shrink import smallest

Status = Literal[
    "holds", "bug", "suspect", "latent", "hygiene", "convention", "waived", "could not exercise", "could not run"
]  # fmt: skip


Severity = Literal["high", "medium", "low", "none"]


ENOUGH = 3
"""Number of cases that a subject must accept before an invariant counts as exercised."""


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
        is_fine = self.taken >= enough and self.crashes <= self.taken
        status: Status = "holds" if is_fine else "could not run" if self.crash else "could not exercise"
        reason = f"raised on some cases: {self.crash}" if self.crash else ""
        reason = reason if is_fine else self.crash or self.why
        return Verdict(self.subject.label, self.name, status, self.taken, reason=reason)


def told(error: Exception) -> str:
    """An error of foreign code in one line: its kind, its words, and where it was raised if it has none."""
    words = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if not words:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        words = f"raised by {frame.line!r} in {Path(frame.filename).name}, line {frame.lineno}"
    if "Double" in words or "float64" in words:
        words += " (it refuses double precision: bind it with dtype=torch.float32)"
    return f"{type(error).__name__}: {words}"


def held(subject: Subject, name: str, cases: list[Case], *, finite: bool = False) -> Verdict:
    """The worst violation, shrunk; with `finite`, only violations whose numbers are all finite."""
    trial = Trial(subject, name)

    def attempt(case: Case) -> Violation | None:
        violation = trial.attempt(case)
        return None if finite and violation is not None and passes_on(violation) else violation

    if INVARIANTS[name].some:
        return shown(subject, name, trial, cases)
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


def on_every_path(subject: Subject, name: str, cases: list[Case]) -> Verdict:
    """The verdict under the options of the binding; or, if it finds nothing, under another text or switch.

    What samples may move one another, and how parts add up, is said for the options of the binding. So only laws that
    hold for every choice are tried with another one.
    """
    found = held(subject, name, cases)
    if name not in ON_EVERY_PATH or found.status in ("bug", "suspect", "latent"):
        return found
    for told, other in modes(subject, numbers=name == "no_aliasing"):
        there = held(other, name, cases[: len(SHAPES)])
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


def shown(subject: Subject, name: str, trial: "Trial", cases: list[Case]) -> Verdict:
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

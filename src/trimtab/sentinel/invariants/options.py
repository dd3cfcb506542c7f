"""Options do what they say: they are live, and impossible ones are refused."""

from dataclasses import replace

import torch

from trimtab.sentinel.case import CannotRepresent, Case
from trimtab.sentinel.declare import Violation, invariant
from trimtab.sentinel.perturb import doubled
from trimtab.sentinel.subject import Seen, Subject, run, same


@invariant(
    family="I21",
    statement="Every option changes something: another value gives another result on some batch; "
    "and so do the counts of the whole batch that a summed loss is handed.",
    why="An option that is accepted and never read is a setting people believe in.",
    bug="slime 351e559f1: --eps-clip-c was accepted and never passed to the loss.",
    repair="Follow the option from the command line to the formula; test that it moves the result.",
    some=True,
)
def options_live(subject: Subject, case: Case) -> tuple[Violation, ...] | None:
    if not subject.variants and not _owes_counts(subject):
        raise case.cannot("its binding names no other values of its options")
    base = run(subject, case)
    inert: list[Violation] = _dead_counts(subject, case, base) if _owes_counts(subject) else []
    for option, values in subject.variants.items():
        for value in values:
            other = run(subject, case, {**subject.options, option: value})
            if alike(base, other):
                what = f"{option} = {value!r} gives what {option} = {subject.options.get(option)!r} gives"
                inert.append(Violation(what, "the same on every case", "a difference on some case"))
    return tuple(inert) or None


def _owes_counts(subject: Subject) -> bool:
    """A loss whose parts are summed as they are and that is handed counts of the whole, so it must divide by one.

    Where its average is declared, that is compared instead.
    """
    said = subject.definition is not None or "denominator" in subject.conventions
    return subject.combine == "sum" and subject.reading("whole") and not said


def _dead_counts(subject: Subject, case: Case, base: Seen) -> list[Violation]:
    """The same sequences as a part of twice as many: a divisor that does not notice divides by something else."""
    part = run(subject, replace(case, within=doubled(case)))
    losses = [n for n, r in base.results.items() if r.kind == "loss" and r.level == "scalar"]
    return [
        Violation(f"the counts of the whole batch change nothing in {n}", "the same on every case", "a smaller share")
        for n in losses
        if same(base.values[n], part.values[n], tolerance=1e-12)
    ]


def alike(first: Seen, second: Seen) -> bool:
    """No value and no gradient differs."""
    for name, value in first.values.items():
        if name not in second.values or not same(value, second.values[name], tolerance=1e-12):
            return False
        for leaf, gradient in first.gradients.get(name, {}).items():
            found = second.gradients.get(name, {}).get(leaf, torch.zeros_like(gradient))
            if not same(gradient, found, tolerance=1e-12):
                return False
    return True


@invariant(
    family="I21",
    statement="An option value that means nothing is refused with an error.",
    why="A misspelt mode that falls back to another one trains a method nobody chose.",
    bug="An unknown aggregation mode that quietly became the token mean.",
    repair="Raise on what is not known, and list what is.",
)
def impossible_options_refused(subject: Subject, case: Case) -> Violation | None:
    if not subject.impossible:
        raise case.cannot("its binding names no impossible values")
    for option, values in subject.impossible.items():
        for value in values:
            try:
                run(subject, case, {**subject.options, option: value})
            except CannotRepresent:
                raise
            except Exception:  # any error is a refusal, and a refusal is what is asked for
                continue
            return Violation(f"{option} = {value!r} is accepted", "a result", "an error")
    return None

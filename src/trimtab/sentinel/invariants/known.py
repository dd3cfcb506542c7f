"""What a function is as a whole: does it draw random numbers, and is it a formula that everybody knows?"""

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import ordinary
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.invariants.declare import Compared, Effect, Violation, invariant
from trimtab.sentinel.known import paths, repaired


@invariant(
    family="I24",
    statement="A function that equals a published formula but for one known mistake, or for one small change of its "
    "source, number for number on every batch, has that mistake.",
    why="A reversed log-ratio, a smaller instead of a larger error or a sum over n instead of n - 1 breaks no law of "
    "masks and batches. It is only another formula than the one that was meant.",
    bug="Several frameworks: k3 from the reversed log-ratio, which estimates the KL of the other policy.",
    repair="Compare with the formula in the paper at three numbers. If another formula was meant, say so: "
    "bind it with a definition.",
    whole=True,
)
def known_mistake(subject: Subject, case: Case) -> tuple[Violation, ...] | None:
    if subject.definition is not None:
        raise case.cannot("its binding says what it computes")
    walked = paths(subject, ordinary())
    repairs = repaired(subject, ordinary(), walked)
    fits = [fit for path in walked for fit in path.fits]
    if not fits and not repairs:
        raise case.cannot("it equals no formula that is known here")
    told = [(fit, f"{fit.result}{fit.said} is the {fit.formula}: {fit.mistake}") for fit in fits if fit.mistake]
    told += [
        (one, f"{one.result}{one.said} would be the {one.formula} if {one.change} ({one.place})") for one in repairs
    ]
    return tuple(
        Violation(
            what,
            one.observed,
            "the published formula",
            grade="suspect",
            effect=Effect("value", (), 1.0),
            compared=Compared(one.result, None, one.case),
        )
        for one, what in told
    )


@invariant(
    family="I17",
    statement="Equal inputs give equal results. A function that draws random numbers says so.",
    why="A result that changes from call to call cannot be compared with anything, and a resumed run is another run.",
    bug="Minibatches in random order, of which the last one is dropped: another sample is left out each time.",
    repair="Pass a generator, or draw outside. If the function draws on purpose, keep this finding as a note.",
    alone=True,
    whole=True,
)
def deterministic(subject: Subject, case: Case) -> Violation | None:
    if not subject.varies:
        return None
    return Violation(subject.varies, "different numbers", "the same numbers", grade="hygiene")

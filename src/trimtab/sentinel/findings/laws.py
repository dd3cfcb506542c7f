"""Invariants that compare more than two numbers: the only place with hand-written checks for them."""

from collections.abc import Callable, Iterator

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import parts
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.places import place, places, runs
from trimtab.sentinel.findings.trace import Recorded, elements, record
from trimtab.sentinel.invariants.layout import combined
from trimtab.sentinel.loading import Boundary

Draft = tuple[list[Data], list[Data]]
"""Calls, and the checks on them."""


def drafts_of_law(subject: Subject, boundary: Boundary, invariant: str, case: Case) -> Iterator[Draft]:
    """Drafts for an invariant with hand-written checks."""
    if invariant in LAWS:
        yield from LAWS[invariant](subject, boundary, subject.adapt(case))


def _one_decision(subject: Subject, boundary: Boundary, case: Case) -> Iterator[Draft]:
    """All tokens of a sequence have the same answer."""
    run = record(subject, boundary, case)
    owner = case.segments.sequence_of_token
    for name, result in run.out.items():
        if result.kind != "keep" or result.level != "token" or result.scope != "sequence":
            continue
        for sequence in range(case.num_sequences):
            index = [int(i) for i in (owner == sequence).nonzero().reshape(-1)]
            for found in places(subject, boundary, name, None, case, index, run, 0):
                yield run.calls, [{"op": "constant", "of": found}]


def _parts_add_up(subject: Subject, boundary: Boundary, case: Case) -> Iterator[Draft]:
    """Values of the parts sum to the value of the whole. Gradients equal those of the whole at the same tokens."""
    whole = record(subject, boundary, case)
    for groups in parts(case, by_group=subject.couples == "group" and not subject.reading("whole")):
        pieces = [case.taken(chosen, as_part=True) for chosen in groups]
        taken = [record(subject, boundary, piece) for piece in pieces]
        calls = [*whole.calls, *[call for one in taken for call in one.calls]]
        for name, result in whole.out.items():
            if result.level == "scalar" and result.adds_up:
                values = [one.out[name].value for one in taken]
                _, factors = combined(subject, values, pieces)
                yield calls, _summed(subject, boundary, name, case, whole, pieces, taken, factors)
                for leaf in sorted(subject.inputs & set(case.tokens)):
                    yield calls, _same_slopes(subject, boundary, name, leaf, case, whole, groups, taken, factors)


def _summed(
    subject: Subject,
    boundary: Boundary,
    name: str,
    case: Case,
    whole: Recorded,
    pieces: list[Case],
    taken: list[Recorded],
    factors: list[float],
) -> list[Data]:
    owed = places(subject, boundary, name, None, case, None, whole, 0)
    offset, found = len(whole.calls), list[Data]()
    for piece, one in zip(pieces, taken, strict=True):
        found += places(subject, boundary, name, None, piece, None, one, offset)
        offset += len(one.calls)
    if len(owed) != 1 or len(found) != len(pieces):
        return []
    return [{"op": "equal", "of": {"sum": found, "factors": factors}, "with": owed[0], "tolerance": _near(whole, name)}]


def _same_slopes(
    subject: Subject,
    boundary: Boundary,
    name: str,
    leaf: str,
    case: Case,
    whole: Recorded,
    groups: list[list[int]],
    taken: list[Recorded],
    factors: list[float],
) -> list[Data]:
    offset, checks = len(whole.calls), list[Data]()
    for chosen, one, factor in zip(groups, taken, factors, strict=True):
        inside = [int(i) for row in chosen for i in (case.owner == row).nonzero().reshape(-1)]
        owed = places(subject, boundary, name, leaf, case, inside, whole, 0)
        found = places(subject, boundary, name, leaf, case.taken(chosen, as_part=True), None, one, offset)
        offset += len(one.calls)
        if len(owed) != 1 or len(found) != 1:
            return []
        weighted = {"sum": found, "factors": [factor]}
        checks.append({"op": "equal", "of": weighted, "with": owed[0], "tolerance": _near(whole, name)})
    return checks


def _nothing_where_nothing_trains(subject: Subject, boundary: Boundary, case: Case) -> Iterator[Draft]:
    """Untrainable cells hold 0 and get no gradient."""
    filled = case.refilled(-0.75)
    run = record(subject, boundary, filled)
    idle = [int(i) for i in (~case.trainable).nonzero().reshape(-1)]
    for name, result in run.out.items():
        if result.outside is not None and result.kind in ("keep", "mask", "loss", "weight", "advantage"):
            found = elements(subject, boundary, filled, name, outside=True) or []
            yield run.calls, [{"op": "zero", "of": place(part, run, 0)} for part in runs(found)]
        for leaf in sorted(subject.inputs & set(case.tokens)):
            where = places(subject, boundary, name, leaf, filled, idle, run, 0)
            yield run.calls, [{"op": "zero", "of": one} for one in where]


def _near(run: Recorded, name: str) -> float:
    return 1e-9 if run.out[name].value.dtype == torch.float64 else 1e-5


LAWS: dict[str, Callable[[Subject, Boundary, Case], Iterator[Draft]]] = {
    "decision_granularity": _one_decision,
    "split": _parts_add_up,
    "mask_content": _nothing_where_nothing_trains,
}

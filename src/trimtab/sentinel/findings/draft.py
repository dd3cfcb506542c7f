"""From a violation to a reproduction file: the only place that decides what a maintainer's machine will check."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.record import case_data
from trimtab.sentinel.findings.decode import Data, finite_or_word
from trimtab.sentinel.findings.encode import CannotEncode, Encoder
from trimtab.sentinel.findings.laws import drafts_of_law
from trimtab.sentinel.findings.places import places
from trimtab.sentinel.findings.replay import make_calls, read, recorded, replay
from trimtab.sentinel.findings.trace import Recorded, record
from trimtab.sentinel.findings.walk import numbers_in
from trimtab.sentinel.invariants.declare import INVARIANTS, Compared, Violation
from trimtab.sentinel.loading import Boundary, Tree


@dataclass(frozen=True)
class Target:
    """The code that is checked: `Target("slime", "THUDM/slime", Tree.folder("slime"))`."""

    name: str
    repository: str
    tree: Tree


def recipe_of(subject: Subject, invariant: str, case: Case, violation: Violation, target: Target, bug_id: str) -> Data:
    """The finding as data, with the sharpest check that reproduces it on the target."""
    recipe = _frame(subject, invariant, case, violation, target, bug_id)
    boundary = subject.boundary
    if boundary is None:
        return _by_binding(recipe, "the subject names no boundary of the target")
    try:
        recipe["boundary"] |= _given(boundary)
        for calls, checks in _drafts(subject, boundary, invariant, case, violation, recipe):
            tried = {**recipe, "checks": checks, "scenario": {**recipe["scenario"], "calls": calls}}
            tried = _faithful(tried, violation, target.tree) if checks else None
            if tried and replay(tried, target.tree)["status"] == "reproduced":
                return tried
        if not recipe["scenario"]["calls"]:
            return _by_binding(recipe, "the boundary was not called")
    except CannotEncode as error:
        return _by_binding(recipe, str(error))
    return _by_numbers(recipe, target)


def _frame(subject: Subject, invariant: str, case: Case, violation: Violation, target: Target, bug_id: str) -> Data:
    boundary = subject.boundary
    return {
        "kind": "trimtab_recipe",
        "version": 1,
        "bug_id": bug_id,
        "validation_mode": "boundary_calls",
        "target": {"name": target.name, "repository": target.repository},
        "boundary": place_of(boundary) if boundary else {"name": subject.name},
        "scenario": {"words": violation.what, "calls": []},
        "expected_invariant": INVARIANTS[invariant].statement,
        "invariant": invariant,
        "checks": [],
        "observed": None,
        "binding": {
            "target": target.name,
            "subject": subject.name,
            "options": plain(subject.options),
            "invariant": invariant,
            "case": plain(case_data(case, subject)),
        },
    }


def plain(value: Any) -> Any:
    """Data that JSON can hold, with strings for non-finite numbers and for objects that are not data."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in cast("Sequence[Any]", value)]
    if isinstance(value, float):
        return finite_or_word(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def place_of(boundary: Boundary) -> Data:
    """The spec with the file in which the function was found: one of several, or that of an imported module."""
    spec = boundary.spec
    is_known = boundary.file in spec.places or not spec.places
    return spec.as_data() | ({"file": boundary.file} if is_known else {})


def _given(boundary: Boundary) -> Data:
    given = boundary.record.given
    return {"given": {name: Encoder().value(value) for name, value in given.items()}} if given else {}


def _by_binding(recipe: Data, why: str) -> Data:
    said = f"{why}, so this finding is replayed through its binding: trimtab check --recipe recipe.json --path CHECKOUT"
    bare: Data = {"words": recipe["scenario"]["words"], "calls": []}
    return {**recipe, "validation_mode": "binding", "scenario": bare, "checks": [], "cannot_replay": said}


def _by_numbers(recipe: Data, target: Target) -> Data:
    """No check on the boundary's own numbers expresses the invariant, so their current values stand for the bug."""
    try:
        calls = make_calls(recipe, target.tree)
    except Exception as error:
        return _by_binding(recipe, f"the recorded calls could not be repeated ({type(error).__name__}: {error})")
    return {**recipe, "validation_mode": "boundary_numbers", "observed": recorded(calls)}


def _drafts(
    subject: Subject, boundary: Boundary, invariant: str, case: Case, violation: Violation, recipe: Data
) -> Iterator[tuple[list[Data], list[Data]]]:
    """Candidates (calls, checks), the sharpest first. The calls are kept in case none reproduces the finding."""
    compared = violation.compared
    first = record(subject, boundary, compared.case if compared else case)
    again = compared is not None and compared.other is not None and compared.other is not compared.case
    second = record(subject, boundary, cast("Case", cast("Compared", compared).other)) if again else None
    calls = [*first.calls, *(second.calls if second else [])]
    recipe["scenario"] = {**recipe["scenario"], "calls": calls}
    yield from drafts_of_law(subject, boundary, invariant, case)
    if compared is not None:
        yield calls, _compared(subject, boundary, compared, first, second, violation)
    elif flat_numbers(violation.expected):
        yield from _stated(subject, boundary, subject.adapt(case), violation)
    if violation.expected == "finite":
        yield calls, [_of_returned("finite", i) for i in range(len(first.returned))]
    yield first.calls, _unchanged(subject, boundary, compared.case if compared else case)


def _stated(
    subject: Subject, boundary: Boundary, case: Case, violation: Violation
) -> Iterator[tuple[list[Data], list[Data]]]:
    """Results whose numbers the violation states, against the numbers that it expects: those of a definition."""
    ran = record(subject, boundary, case)
    for name, result in ran.out.items():
        found = places(subject, boundary, name, None, case, None, ran, 0)
        tolerance = 1e-9 if result.value.dtype == torch.float64 else 1e-5
        yield ran.calls, _against_number(found, violation.expected, tolerance)


def _of_returned(op: str, call: int) -> Data:
    return {"op": op, "of": {"call": call, "of": "returned", "path": []}}


def _unchanged(subject: Subject, boundary: Boundary, case: Case) -> list[Data]:
    """Arguments that the boundary has written to."""
    with boundary.record_calls() as calls, torch.no_grad():
        subject.call(case.with_tokens(**{n: v.clone() for n, v in case.tokens.items()}), subject.options)
    checks: list[Data] = []
    for number, call in enumerate(calls):
        before = dict(numbers_in({**dict(enumerate(call.args_before)), **call.kwargs_before}))
        for path, now in numbers_in({**dict(enumerate(call.args)), **call.kwargs}):
            was = before.get(path)
            if was is not None and was.shape == now.shape and not bool(torch.isclose(was, now, equal_nan=True).all()):
                checks.append({"op": "unchanged", "of": {"call": number, "of": "argument", "path": list(path)}})
    return checks


def _faithful(recipe: Data, violation: Violation, tree: Tree) -> Data | None:
    """The reproduction file if its places hold the values that the violation observed, with a factor where needed."""
    try:
        calls = make_calls(recipe, tree)
        checks = [check for check in recipe["checks"] if check["op"] == "equal"]
        seen = torch.cat([read(check["of"], calls) for check in checks]) if checks else torch.zeros(0)
        owed = [read(check["with"], calls) for check in checks if "with" in check]
    except Exception:  # the recorded calls cannot be repeated; the caller falls back and reports it
        return None
    index = violation.compared.index if violation.compared else None
    if not _agrees(seen, violation.observed, index):
        return None
    if not owed or _agrees(torch.cat(owed), violation.expected, index):
        return recipe
    base, wanted = torch.cat(owed), torch.tensor([float(one) for one in flat_numbers(violation.expected)]).double()
    factors = (wanted / base)[base != 0]
    if not factors.numel() or not bool(torch.allclose(factors, factors[:1].expand_as(factors), rtol=1e-5)):
        return None
    return {**recipe, "checks": [{**check, "factor": float(factors[0])} for check in recipe["checks"]]}


def _agrees(values: Tensor, told: object, index: Sequence[int] | None) -> bool:
    """Whether numbers equal those of a violation, which may state a whole row. Text in a violation is not compared."""
    numbers = torch.tensor([float(one) for one in flat_numbers(told)], dtype=torch.float64)
    if index and numbers.shape != values.shape and max(index) < numbers.numel():
        numbers = numbers[list(index)]
    if not numbers.numel() or not values.numel():
        return True
    return numbers.shape == values.shape and torch.allclose(values, numbers, rtol=1e-4, atol=1e-7, equal_nan=True)


# --- checks on what was compared ---------------------------------------------------------------------------------


def _compared(
    subject: Subject,
    boundary: Boundary,
    compared: Compared,
    first: Recorded,
    second: Recorded | None,
    violation: Violation,
) -> list[Data]:
    left = places(subject, boundary, compared.result, compared.leaf, compared.case, compared.index, first, 0)
    if not left:
        return []
    tolerance = 1e-9 if first.out[compared.result].value.dtype == torch.float64 else 1e-5
    if compared.other is None:
        return _against_number(left, violation.expected, tolerance)
    offset = len(first.calls) if second else 0
    right = places(
        subject, boundary, compared.result, compared.leaf, compared.other, compared.other_index, second or first, offset
    )
    if not right or len(left) != len(right):
        return []
    pairs = zip(left, right, strict=True)
    return [{"op": "equal", "of": of, "with": owed, "tolerance": tolerance} for of, owed in pairs]


def _against_number(left: list[Data], expected: object, tolerance: float) -> list[Data]:
    if expected == "finite":
        return [{"op": "finite", "of": place} for place in left]
    flat = [float(one) for one in flat_numbers(expected)] if flat_numbers(expected) else []
    if len(left) != 1 or not flat:
        return []
    return [{"op": "equal", "of": left[0], "value": flat, "tolerance": tolerance}]


def flat_numbers(value: object) -> list[Any]:
    """The numbers of nested lists, in order; empty for anything else."""
    if isinstance(value, (list, tuple)):
        return [one for part in cast("Sequence[object]", value) for one in flat_numbers(part)]
    return [value] if isinstance(value, (bool, int, float)) else []

"""The corpus itself: right functions equal their definitions, wrong twins do not, and every kind is represented."""

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.right.entry import CORPORA, DIALECTS, Entry, entries

from trimtab.sentinel.batch.case import CannotRepresent, Case, WrongShape
from trimtab.sentinel.batch.directed import directed, random_cases
from trimtab.sentinel.binding.calling import TRAINED, Seen, resolve_inputs, run
from trimtab.sentinel.binding.subject import Subject

ENTRIES = [entry for corpus in CORPORA for entry in entries(corpus)]
EACH = [
    pytest.param(entry, marks=pytest.mark.slow) if i % (12 if entry.corpus == "corpus" else 24) else entry
    for i, entry in enumerate(ENTRIES)
]
"""A twelfth of our own entries and half as many of the others are looked at by default."""
ALL = pytest.mark.parametrize(
    "entry", EACH, ids=lambda e: f"{'' if e.corpus == 'corpus' else e.corpus + '-'}{e.dialect}-{e.name}"
)
STEP = 1e-6
DRAWS = 1500


def cases() -> list[Case]:
    """Batches as training meets them: ragged, with tool output, empty rows, single samples, and content in padding."""
    told = list(directed())
    told += [case for case in random_cases(None, seed=3, examples=6) if bool(case.trainable.any())]
    return [*told, told[0].refilled(7.0, extra_columns=2), told[1].refilled(-3.0)]


CASES = cases()
HOLLOW = [CASES[1].refilled(math.nan, extra_columns=1)]
"""Padding and tool output that hold NaN."""


def settings(subject: Subject) -> Iterator[dict[str, Any]]:
    """The options, and each with one of them at another value."""
    yield dict(subject.options)
    for name, values in subject.variants.items():
        yield from ({**subject.options, name: value} for value in values)


def compared(
    entry: Entry, subject: Subject, cases: list[Case]
) -> Iterator[tuple[Case, Mapping[str, Any], Seen | None]]:
    """Every case that the binding accepts, with the outcome of the call; None if the case has another shape."""
    for case in cases:
        for options in settings(subject):
            try:
                yield case, options, run(subject, case, options)
            except CannotRepresent:
                continue
            except WrongShape:
                yield case, options, None


def values_apart(entry: Entry, case: Case, options: Mapping[str, Any], seen: Seen) -> str | None:
    """The name of the first result that differs from the definition."""
    tolerance = 1e-5 if entry.single else 1e-9
    expected = entry.definition(case, options)
    assert set(expected) == set(seen.values), f"{entry.name}: {set(expected)} is defined, {set(seen.values)} is bound"
    for name, result in expected.items():
        found = seen.values[name].double()
        size = result.value.double().abs().clamp(min=1.0)
        if found.shape != result.value.shape or not bool(((found - result.value).abs() <= tolerance * size).all()):
            return name
    return None


def slopes_apart(entry: Entry, case: Case, options: Mapping[str, Any], seen: Seen) -> str | None:
    """The first gradient into a trained input that is not the slope of the definition, away from kinks."""
    if getattr(entry.definition, "stops_gradient", False):
        return None
    allowed = 1e-3 if entry.single else 1e-4
    for name, result in entry.definition(case, options).items():
        if result.kind not in ("loss", "term", "kl", "logp", "entropy"):
            continue
        for leaf in TRAINED:
            if case.tokens[leaf].ndim > 1:
                continue
            told = seen.gradients.get(name, {}).get(leaf, torch.zeros_like(case.tokens[leaf]))
            for place in case.trainable.nonzero().flatten().tolist()[:4]:
                left, middle, right = (_moved(entry, case, options, name, leaf, place, s) for s in (-STEP, 0.0, STEP))
                before, after = (middle - left) / STEP, (right - middle) / STEP
                room = allowed * max(1.0, abs(after))
                if abs(before - after) < room and abs(float(told[place]) - (before + after) / 2) > room:
                    return f"d {name} / d {leaf}"
    return None


def _moved(
    entry: Entry, case: Case, options: Mapping[str, Any], name: str, leaf: str, place: int, step: float
) -> float:
    moved = case.tokens[leaf].clone()
    moved[place] += step
    return float(entry.definition(case.with_tokens(**{leaf: moved}), options)[name].value.sum())


def poisoned(seen: Seen) -> str | None:
    """The first gradient of a loss that NaN in padding reaches."""
    losses = [name for name, result in seen.results.items() if result.kind == "loss" and name in seen.gradients]
    found = ((name, leaf) for name in losses for leaf in TRAINED if bool(seen.gradients[name][leaf].isnan().any()))
    return next((f"NaN in d {name} / d {leaf}" for name, leaf in found), None)


def apart(entry: Entry, fn: Any) -> str | None:
    """The first disagreement of a function with its definition."""
    subject = entry.bound(fn)
    taken = 0
    for which, found in enumerate((CASES, [] if entry.pads_finite else HOLLOW)):
        for case, options, seen in compared(entry, subject, found):
            told = "shape" if seen is None else values_apart(entry, case, options, seen)
            if told is None and seen is not None:
                told = poisoned(seen) if which else slopes_apart(entry, case, options, seen) if taken < 3 else None
            taken += 1
            if told:
                return f"{told} with {dict(options)} on {[''.join(k) for k in case.kinds]}, filled with {case.fill}"
    assert taken >= 3, f"{entry.name} accepted only {taken} cases"
    return None


def expected(entry: Entry, fn: Any) -> float:
    """The mean of a random result over many draws, minus its definition, in standard errors."""
    subject, case = entry.bound(fn), CASES[0]
    torch.manual_seed(0)
    draws = [float(subject.call(case, subject.options)["loss"].value) for _ in range(DRAWS)]
    centre = sum(draws) / DRAWS
    error = math.sqrt(sum((d - centre) ** 2 for d in draws) / DRAWS / DRAWS)
    return abs(centre - float(entry.definition(case, subject.options)["loss"].value)) / error


@ALL
def test_a_right_function_equals_its_definition(entry: Entry) -> None:
    if entry.random == "result":
        assert expected(entry, entry.right) < 4
        return
    assert apart(entry, entry.right) is None


@ALL
def test_a_wrong_twin_differs(entry: Entry) -> None:
    if entry.random == "result":
        assert expected(entry, entry.wrong) > 8
    elif entry.differs is not None:
        assert entry.differs(entry.right, entry.wrong)
        assert not entry.differs(entry.right, entry.right)
    else:
        assert apart(entry, entry.wrong) is not None


@ALL
def test_twins_have_one_signature(entry: Entry) -> None:
    right, wrong = (inspect.signature(fn).parameters for fn in (entry.right, entry.wrong))
    assert [(p.name, p.default, p.kind) for p in right.values()] == [
        (p.name, p.default, p.kind) for p in wrong.values()
    ]
    assert inspect.getsource(entry.right) != inspect.getsource(entry.wrong)


def _inputs(subject: Subject) -> Any:
    """The fields that a binding reads; pairs need different rewards, which the first case has."""
    try:
        return resolve_inputs(subject, CASES[3]).inputs
    except CannotRepresent:
        return resolve_inputs(subject, CASES[0]).inputs


def test_a_binding_names_its_role_and_finds_its_inputs() -> None:
    for entry in ENTRIES:
        subject = entry.bound(entry.right)
        assert subject.role == entry.role
        assert replace(subject, definition=entry.definition).definition is not None
        assert _inputs(subject)


@pytest.mark.parametrize("corpus", CORPORA)
def test_the_corpus_has_every_kind_of_function(corpus: str) -> None:
    found = entries(corpus)
    per_dialect = {d: sum(e.dialect == d for e in found) for d in DIALECTS}
    least, each = {
        "corpus": (66, 6), "held": (60, 5), "second": (66, 6), "third": (44, 4), "fourth": (66, 6), "fifth": (33, 3),
        "sixth": (44, 4),
    }[corpus]  # fmt: skip
    assert len({(e.dialect, e.name) for e in found}) == len(found) >= least
    assert min(per_dialect.values()) >= each, per_dialect
    share = {"third": 2 / 3, "fifth": 1 / 3, "sixth": 2 / 3}.get(corpus, 1.0)
    wanted = {
        "modules": (sum(e.is_module for e in found), 5),
        "config objects": (sum(e.takes_config for e in found), 5),
        "methods": (sum(e.is_method for e in found), 5),
        "several results": (sum(e.several for e in found), 6),
        "random": (sum(bool(e.random) for e in found), 3 if corpus == "corpus" else 0),
        "random result": (sum(e.random == "result" for e in found), 1 if corpus == "corpus" else 0),
        "float32 inside": (sum(e.single for e in found), 6),
        "keyword defaults": (sum(e.has_options for e in found), 8),
        "unusual arguments": (sum(e.unusual for e in found), 8),
    }
    assert all(count >= least * share for count, least in wanted.values()), wanted
    assert abs(sum(e.neutral for e in found) - len(found) / 2) <= 0.08 * len(found)

"""Every planted bug is found, by the invariant it was planted for; the functions it was planted in are clean."""

from collections import Counter

import pytest

from mutants.edit import MUTANTS, Mutant
from mutants.held import FINDING, findings
from mutants.planted import content  # noqa: F401  importing the package plants the bugs
from trimtab.sentinel import INVARIANTS, Case, Subject, check, examine
from trimtab.sentinel.batch.directed import directed, random_cases
from trimtab.signal.catalogue import PROMISES, STAGES

CASES: tuple[Case, ...] = tuple(directed())
ORIGINALS: dict[object, Subject] = {
    (m.original.label, m.original.definition is None, *m.original.conventions, *m.original.variants): m.original
    for m in MUTANTS
}
"""What bugs were planted in, each once."""


def test_promises_and_invariants_are_the_same_names() -> None:
    assert set(PROMISES) <= set(INVARIANTS)


def test_there_are_enough_planted_bugs_of_every_kind() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 120
    by_invariant = Counter(m.invariant for m in MUTANTS)
    assert {name: by_invariant[name] for name in INVARIANTS if by_invariant[name] < 2} == {}
    by_family = Counter(INVARIANTS[m.invariant].family for m in MUTANTS)
    assert {f: by_family[f] for f in (f"I{n:02}" for n in range(1, 27)) if by_family[f] < 3} == {}


def test_every_bug_finds_the_text_it_is_planted_in() -> None:
    """Also those that only `make test-all` looks for: a function that has changed shows here."""
    for mutant in MUTANTS:
        for edit in mutant.edits:
            assert edit.spots, mutant.name


def first_of_each(most: int) -> list[Mutant]:
    """So many planted bugs of every invariant."""
    by_invariant: dict[str, list[Mutant]] = {}
    for mutant in MUTANTS:
        by_invariant.setdefault(mutant.invariant, []).append(mutant)
    return [mutant for planted in by_invariant.values() for mutant in planted[:most]]


OFTEN = first_of_each(1)
"""All the others are slow tests."""


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(m, id=f"{m.invariant}-{m.name}", marks=() if m in OFTEN else pytest.mark.slow) for m in MUTANTS],
)
def test_the_planted_bug_is_found_by_its_invariant(mutant: Mutant) -> None:
    few = {"parallel_layout": 2, "metric_reach": 3}
    cases = CASES[: few.get(mutant.invariant, len(CASES))]
    found = findings(mutant.subject, cases, [mutant.invariant])
    assert mutant.invariant in found, found


@pytest.mark.slow
def test_nearly_every_planted_bug_is_found_by_an_examination() -> None:
    """About ten minutes on two cores."""
    missed = [
        m.name for m in MUTANTS if not any(v.status in FINDING for v in examine(m.subject, examples=4))
    ]  # fmt: skip
    assert len(missed) <= 0.03 * len(MUTANTS), missed


SMALL = ("mask_content", "degenerate_bounded", "suppressed_do_not_vote", "split", "equals_definition")


@pytest.mark.parametrize("invariant", SMALL)
def test_counter_examples_are_small(invariant: str) -> None:
    assert_small(next(m for m in MUTANTS if m.invariant == invariant))


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_every_counter_exampleassert_small(mutant: Mutant) -> None:
    """About two minutes on two cores."""
    assert_small(mutant)


def assert_small(mutant: Mutant) -> None:
    verdict = check(mutant.subject, mutant.invariant, examples=4)
    assert verdict.status in FINDING, verdict
    assert verdict.case is not None
    assert verdict.case.num_sequences <= 4


ELSEWHERE = ("recipe.", "loss(", "ranked(", *STAGES)
"""Formulas and recipes are held to everything in tests/sentinel/test_invariants.py, all of them by slow tests here."""


HERE = {one.name: one for one in ORIGINALS.values() if not one.name.startswith(ELSEWHERE)}


@pytest.mark.parametrize(
    "original",
    [pytest.param(s, id=s.label, marks=() if i % 4 == 1 else pytest.mark.slow) for i, s in enumerate(HERE.values())],
)
def test_what_a_bug_was_planted_in_is_clean(original: Subject) -> None:
    assert findings(original, random_cases(None, seed=0, examples=1)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("original", ORIGINALS.values(), ids=lambda s: s.label)
def test_what_a_bug_was_planted_in_is_clean_on_directed_cases(original: Subject) -> None:
    """About four minutes on two cores."""
    assert findings(original, [*CASES, *random_cases(None, seed=1, examples=6)]) == {}

"""Every invariant catches the bugs planted for it, and there are at least two of them."""

import pytest

from mutants.planted import PLANTED
from trimtab.sentinel import INVARIANTS, Subject, check
from trimtab.signal.formula import PROMISES


def test_promises_and_invariants_are_the_same_names() -> None:
    assert set(PROMISES) <= set(INVARIANTS)


@pytest.mark.parametrize("invariant", sorted(INVARIANTS))
def test_every_invariant_has_two_planted_bugs(invariant: str) -> None:
    assert len(PLANTED[invariant]) >= 2


@pytest.mark.parametrize(
    ("invariant", "subject"), [pytest.param(i, s, id=f"{i}-{s.name}") for i, found in PLANTED.items() for s in found]
)
def test_the_planted_bug_is_caught_with_a_small_counter_example(invariant: str, subject: Subject) -> None:
    verdict = check(subject, invariant, seed=0, examples=30)
    assert verdict.status in ("bug", "hygiene")
    assert verdict.violation is not None
    assert verdict.case is not None
    assert verdict.case.num_sequences <= 4

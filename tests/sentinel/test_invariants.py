"""Our own formulas and recipes, held to every invariant whether they promise it or not: nothing is found."""

from dataclasses import replace

import pytest
from mutants.held import findings

from trimtab.sentinel import INVARIANTS, Subject
from trimtab.sentinel.batch.directed import directed, random_cases
from trimtab.sentinel.search import ready
from trimtab.sentinel.targets.trimtab import formula_subjects, recipe_subjects

FORMULAS = [replace(subject, promises=None) for subject in formula_subjects()]
RECIPES = [replace(subject, promises=None) for subject in recipe_subjects()]


def test_families_are_numbered_as_in_the_catalogue() -> None:
    assert {one.family for one in INVARIANTS.values()} == {f"I{n:02}" for n in range(1, 27)}


@pytest.mark.parametrize(
    "subject",
    [pytest.param(s, id=s.label, marks=pytest.mark.slow if i % 2 else ()) for i, s in enumerate(FORMULAS)],
)
def test_nothing_is_found_in_a_formula(subject: Subject) -> None:
    assert findings(subject, random_cases(subject.reads, seed=0, examples=1)) == {}


@pytest.mark.parametrize("subject", RECIPES[1:2], ids=lambda s: s.label)
def test_nothing_is_found_in_a_recipe(subject: Subject) -> None:
    assert findings(subject, random_cases(None, seed=0, examples=1)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("subject", [*FORMULAS, *RECIPES], ids=lambda s: s.label)
def test_nothing_is_found_over_twenty_seeds(subject: Subject) -> None:
    """About twenty minutes on two cores."""
    cases = [*directed(), *(case for seed in range(20) for case in random_cases(subject.reads, seed=seed, examples=3))]
    assert findings(subject, cases) == {}


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(s, id=s.label, marks=() if s.name in ("recipe.ppo", "recipe.start_async") else pytest.mark.slow)
        for s in RECIPES
    ],
)
def test_every_recipe_of_ours_can_be_held(subject: Subject) -> None:
    _, why = ready(subject, list(directed())[:1])
    assert why == ""

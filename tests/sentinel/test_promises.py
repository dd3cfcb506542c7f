"""Every promise of every formula, and of every recipe, through the sentinel."""

import pytest

from trimtab.sentinel import Subject, examine
from trimtab.sentinel.binding.definitions import DEFINITIONS
from trimtab.sentinel.targets.trimtab import VARIANTS, formula_subjects, recipe_subjects
from trimtab.signal import catalog


def test_every_formula_has_a_definition_and_its_settings_are_exercised() -> None:
    assert set(DEFINITIONS) == set(catalog())
    with_settings = {name for name, entry in catalog().items() if entry.settings}
    assert with_settings <= set(VARIANTS)


@pytest.mark.parametrize(
    "subject",
    [pytest.param(s, id=s.label, marks=pytest.mark.slow if i % 4 else ()) for i, s in enumerate(formula_subjects())],
)
def test_every_promise_of_every_formula_holds(subject: Subject) -> None:
    check_promises(subject, examples=0)


@pytest.mark.slow
@pytest.mark.parametrize("subject", recipe_subjects(), ids=lambda s: s.label)
def test_every_recipe_holds_on_the_directed_cases(subject: Subject) -> None:
    check_promises(subject, examples=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("subject", [*formula_subjects(), *recipe_subjects()], ids=lambda s: s.label)
def test_every_promise_holds_on_many_random_cases(subject: Subject, seed: int) -> None:
    """About ten minutes on two cores."""
    check_promises(subject, examples=40, seed=seed)


def check_promises(subject: Subject, *, examples: int, seed: int = 0) -> None:
    assert subject.promises
    for verdict in examine(subject, seed=seed, examples=examples):
        assert verdict.status == "holds", f"{verdict.invariant}: {verdict.violation or verdict.reason}"

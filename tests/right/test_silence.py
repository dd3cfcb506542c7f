"""Right code is silent: a seeded slice of all corpora in `make test-all`, every entry in `make right`."""

import random

import pytest
from tests.right.entry import CORPORA, Entry, entries
from tests.right.measure import measure

SEED = 4
SLICE = 12
EVERY = [entry for corpus in CORPORA for entry in entries(corpus)]
CHOSEN = random.Random(SEED).sample(EVERY, SLICE)


@pytest.mark.slow
@pytest.mark.parametrize("entry", CHOSEN, ids=lambda e: f"{e.corpus}-{e.dialect}-{e.name}")
def test_a_right_function_that_nobody_bound_gets_no_bug_verdict(entry: Entry) -> None:
    found = measure(entry.dialect, entry.name, "right", "unbound", corpus=entry.corpus)
    assert found.bugs == [], found.text()
    assert found.problem or found.exercised >= 5, found.text()

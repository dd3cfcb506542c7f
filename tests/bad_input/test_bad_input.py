"""The bad-input suite: nothing is silent, nothing is raw. `python -m tests.bad_input` prints the same counts."""

import json
from functools import cache

import pytest
from tests.bad_input import KINDS
from tests.bad_input.row import Row, outcome

from trimtab.errors import SignalError

SHARES = 12
"""The rows are dealt out to so many tests, which run beside each other."""


def raising(error: Exception) -> object:
    raise error


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (Row("refused", lambda: raising(SignalError("door: mask is 3. Give 0 or 1.")), says="mask"), "refused"),
        (Row("vague", lambda: raising(SignalError("door: something. Mend it.")), says="mask"), "vague"),
        (Row("raw", lambda: raising(TypeError("no len()")), says="mask"), "raw"),
        (Row("accepted", lambda: 1, says="mask"), "silent"),
        (Row("right", lambda: 1, means=1), "right"),
        (Row("another meaning", lambda: 1, means=2), "silent"),
        (Row("refused for nothing", lambda: raising(SignalError("door: no. Go.")), means=1), "silent"),
    ],
    ids=lambda value: value.name if isinstance(value, Row) else value,
)
def test_a_row_is_judged(row: Row, what: str) -> None:
    assert outcome(row)[0] == what


@cache
def rows(kind: str) -> list[Row]:
    return KINDS[kind].rows()


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("kind", KINDS)
def test_every_bad_input_is_refused_with_a_sentence_and_every_odd_one_means_what_it_says(kind: str, share: int) -> None:
    found = {row.name: outcome(row) for row in rows(kind)[share::SHARES]}
    wrong = {name: result for name, result in found.items() if result[0] not in ("refused", "right")}
    assert not wrong, json.dumps(dict(list(wrong.items())[:20]), indent=1)[:5000]


@pytest.mark.parametrize(("kind", "tried", "right"), [("library", 300, 100), ("configuration", 200, 30)])
def test_there_are_many_kinds_of_bad_input_each_once(kind: str, tried: int, right: int) -> None:
    names = [row.name for row in rows(kind)]
    assert len(set(names)) == len(names) >= tried
    assert sum(row.says is None for row in rows(kind)) >= right

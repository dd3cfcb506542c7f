"""The bad-input suite: nothing is silent, nothing is raw. `python -m tests.bad_input` prints the same counts."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.bad_input.row import Row, outcome

from trimtab.errors import SignalError


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


def test_every_bad_input_is_refused_with_a_sentence_and_every_odd_one_means_what_it_says() -> None:
    """In a plain interpreter: no type checker stands before our own messages."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.bad_input", "--json"],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    wrong = {
        f"{kind}: {name}": result
        for kind, rows in found.items()
        for name, result in rows.items()
        if result[0] not in ("refused", "right")
    }
    assert not wrong, json.dumps(dict(list(wrong.items())[:20]), indent=1)
    counts = {kind: Counter(result[0] for result in rows.values()) for kind, rows in found.items()}
    assert sum(counts["library"].values()) >= 300
    assert sum(counts["configuration"].values()) >= 200
    assert counts["library"]["right"] >= 100
    assert counts["configuration"]["right"] >= 30

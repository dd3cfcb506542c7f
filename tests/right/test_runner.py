"""The runner: a bug verdict on right code is a false alarm, a wrong twin is told only by a verdict of its own."""

import time

import pytest
from tests.right.__main__ import Found, key, told, totals
from tests.right.entry import Entry, entries
from tests.right.measure import Measured, OutOfTime, limited


def found(entry: Entry, right: Measured, wrong: Measured) -> Found:
    return {key(entry, "right", "bound"): right, key(entry, "wrong", "bound"): wrong}


def test_a_verdict_that_both_twins_get_tells_nothing() -> None:
    entry = entries()[0]
    right = Measured({"bug": ["split"], "holds": ["permutation"]})
    wrong = Measured({"bug": ["split", "equals_definition"]})
    assert told(entry, "bound", found(entry, right, wrong)) == ["equals_definition"]
    assert told(entry, "bound", found(entry, right, right)) == []


def test_a_bug_tells_where_the_right_twin_is_latent_and_a_suspect_does_not() -> None:
    entry = entries()[0]
    right = Measured({"latent": ["eos_semantics"]})
    assert told(entry, "bound", found(entry, right, Measured({"bug": ["eos_semantics"]}))) == ["eos_semantics"]
    assert told(entry, "bound", found(entry, right, Measured({"suspect": ["eos_semantics"]}))) == []


def test_totals_count_false_alarms_and_subjects_that_were_never_exercised() -> None:
    entry = entries()[0]
    alarmed = totals([entry], ["bound"], found(entry, Measured({"bug": ["split"]}), Measured()))["bound"]
    assert alarmed["right: with a bug verdict (false alarm)"] == 1
    assert alarmed["wrong: missed"] == 1
    idle = totals([entry], ["bound"], found(entry, Measured({"could not exercise": ["split"]}), Measured()))["bound"]
    assert idle["right: not bound or nothing exercised"] == 1


def test_a_subject_that_does_not_end_is_stopped() -> None:
    with pytest.raises(OutOfTime, match="more than 1 s"), limited(1):
        time.sleep(30)

"""The runner: a bug verdict on right code is a false alarm, a wrong twin is told only by a verdict of its own."""

import time

import pytest
from tests.right.__main__ import Found, told, totals
from tests.right.entry import Entry, entries
from tests.right.measure import Measured, OutOfTime, limited


def found(entry: Entry, right: Measured, wrong: Measured) -> Found:
    return {(entry.dialect, entry.name, version, "bound"): m for version, m in (("right", right), ("wrong", wrong))}


def test_a_verdict_that_both_twins_get_tells_nothing() -> None:
    entry = entries()[0]
    right = Measured({"bug": ["split"], "holds": ["permutation"]})
    wrong = Measured({"bug": ["split", "equals_definition"]})
    assert told(entry, "bound", found(entry, right, wrong)) == ["equals_definition"]
    assert told(entry, "bound", found(entry, right, right)) == []


def test_totals_keep_finite_padding_apart_from_other_false_alarms() -> None:
    entry = next(e for e in entries() if e.pads_finite)
    right = Measured({"bug": ["nonfinite_isolation"]})
    counted = totals([entry], ["bound"], found(entry, right, Measured({"bug": ["split"]})))["bound"]
    assert counted["right: functions with a false alarm"] == 1
    assert counted["right: … besides NaN in padding"] == 0
    assert counted["wrong: told apart, right one silent"] == 1


def test_a_subject_that_was_never_exercised_is_not_silent() -> None:
    entry = entries()[0]
    counted = totals([entry], ["bound"], found(entry, Measured({"could not exercise": ["split"]}), Measured()))["bound"]
    assert counted["right: nothing exercised"] == 1
    assert counted["right: silent and exercised"] == 0
    assert counted["wrong: missed"] == 1


def test_a_subject_that_does_not_end_is_stopped() -> None:
    with pytest.raises(OutOfTime), limited(1):
        time.sleep(5)

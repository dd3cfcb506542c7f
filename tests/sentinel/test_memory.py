"""Calls are remembered within one search: the same call is made once, and a call that differs in anything is made."""

from dataclasses import replace
from typing import Any

import torch

from trimtab.sentinel import Result, Subject
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.binding.calling import Memory, run

CASE = next(iter(directed()))


def counted(size: int = 512) -> tuple[Subject, list[Case]]:
    calls: list[Case] = []

    def call(case: Case, options: Any) -> Any:
        calls.append(case)
        return {"loss": Result.scalar(options["scale"] * case.flat("logp_current").sum(), "loss")}

    return Subject("counted", call, options={"scale": 2.0}, memory=Memory(size)), calls


def test_the_same_call_is_made_once() -> None:
    subject, calls = counted()
    first = run(subject, CASE)
    copy = CASE.with_tokens(**{name: values.clone() for name, values in CASE.tokens.items()})
    again = run(subject, copy, {"scale": 2.0})
    assert len(calls) == 1
    assert again.values["loss"] == first.values["loss"]


def test_a_call_that_differs_in_anything_is_made() -> None:
    subject, calls = counted()
    nudged = CASE.tokens["logp_current"].clone()
    nudged[-1] += 1e-12
    part = CASE.taken([0, 1], as_part=True)
    others = [
        CASE.with_tokens(logp_current=nudged),
        CASE.with_tokens(logp_current=CASE.tokens["logp_current"].float()),
        CASE.with_sequences(reward=CASE.sequences["reward"] + 1),
        replace(CASE, fill=float("nan")),
        replace(CASE, extra_columns=1),
        replace(CASE, side="left"),
        replace(CASE, mask_dtype=torch.bool),
        replace(CASE, eos_ids=(1, 2)),
        replace(CASE, pad_id=3),
        replace(CASE, rank=1, world=2),
        CASE.taken([0, 1], as_part=False),
        part,
        CASE.with_sequences(reward=CASE.sequences["reward"] + 2).taken([0, 1], as_part=True),
    ]
    for case in (CASE, *others):
        _ = run(subject, case)
    assert len(calls) == 1 + len(others)
    _ = run(subject, CASE, {"scale": 3.0})
    _ = run(replace(subject, single=True), CASE)
    assert len(calls) == 3 + len(others)


def test_calls_that_somebody_watches_are_made() -> None:
    subject, calls = counted()
    for _ in range(2):
        _ = run(subject, replace(CASE, touched=set()))
        _ = run(subject, replace(CASE, written=set()))
    assert len(calls) == 4


def test_old_calls_are_forgotten() -> None:
    subject, calls = counted(size=1)
    for case in (CASE, replace(CASE, pad_id=3), CASE):
        _ = run(subject, case)
    assert len(calls) == 3

"""The live guard: what it notices in a running trainer, and what it leaves alone."""

import math

import pytest
import torch

from trimtab.errors import SignalError
from trimtab.sentinel.live import Guard


def test_a_step_that_writes_to_its_batch_is_told_once() -> None:
    guard = Guard(every=0)
    batch = {"kl": torch.tensor([0.1, 0.2])}
    for _ in range(2):
        with guard.step(batch=batch):
            batch["kl"].mul_(-1)
    assert [alarm.invariant for alarm in guard.alarms] == ["no_aliasing"]
    assert "step 1: the step wrote to its input kl in place" in guard.alarms[0].text


def test_a_write_through_a_view_is_seen() -> None:
    guard = Guard(every=0)
    whole = torch.zeros(4)
    with guard.step(batch={"whole": whole}):
        whole[1:2].add_(1)
    assert len(guard.alarms) == 1


def test_reading_the_batch_raises_no_alarm() -> None:
    guard = Guard(every=0)
    values = torch.ones(3)
    with guard.step(batch={"values": values}):
        (values * 2).sum()
    assert guard.alarms == []


def test_inference_tensors_are_watched_by_content() -> None:
    guard = Guard(every=0)
    with torch.inference_mode():
        values = torch.ones(3)
        with guard.step(batch={"values": values}):
            values[0] = 5.0
    assert len(guard.alarms) == 1


def test_a_mean_per_call_does_not_split_and_a_sum_does() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0, 8.0])
    guard = Guard(every=1)
    with guard.step(loss=lambda rows: losses[rows].mean(), rows=4):
        pass
    assert guard.alarms[0].invariant == "split"
    fine = Guard(every=1)
    with fine.step(loss=lambda rows: losses[rows].sum() / 4, rows=4):
        pass
    assert fine.alarms == []


def test_the_split_is_looked_at_every_so_often() -> None:
    asked: list[int] = []
    guard = Guard(every=3)
    for number in range(7):
        with guard.step(loss=lambda rows, number=number: asked.append(number) or torch.tensor(0.0), rows=2):
            pass
    assert sorted(set(asked)) == [0, 3, 6]


@pytest.mark.parametrize(("value", "alarmed"), [(0.5, False), (1.5, True), (math.nan, True), (-0.1, True)])
def test_metrics_stay_finite_and_in_range(value: float, alarmed: bool) -> None:
    guard = Guard(every=0)
    with guard.step() as seen:
        seen.metrics({"clipfrac": value}, ranges={"clipfrac": (0.0, 1.0)})
    assert bool(guard.alarms) is alarmed


def test_a_correction_that_never_acts_is_inert_after_a_window() -> None:
    guard = Guard(every=0, window=4)
    for step in range(8):
        with guard.step() as seen:
            seen.effects({"tis": 0.0, "veto": 0.1 if step == 2 else 0.0})
    told = [alarm.text for alarm in guard.alarms]
    assert told[0] == "step 4: tis is switched on and did nothing for 4 steps. trimtab explain options_live"


def test_weights_that_do_not_add_up_are_an_alarm() -> None:
    def check() -> None:
        raise SignalError("weights add up to 0.5")

    guard = Guard(every=0)
    with guard.step() as seen:
        seen.spent(check)
    assert "weights add up to 0.5" in guard.alarms[0].text


def test_a_strict_guard_raises() -> None:
    guard = Guard(every=0, strict=True)
    with pytest.raises(SignalError, match="metric_truth"), guard.step() as seen:
        seen.metrics({"loss": math.inf})

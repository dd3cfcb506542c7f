"""`trimtab plan`: recorded runs come out as they went, and plans change as they must when rates change."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.train.conftest import SMALL
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.cli.plan import predicted, replayed
from trimtab.errors import ConfigError
from trimtab.train import train
from trimtab.train.plan.choose import Rates, Workload, candidate, candidates, choose
from trimtab.train.plan.recorded import Recorded, recorded
from trimtab.train.plan.simulate import simulate
from trimtab.train.runtimes.schedule import SCHEDULE_FILE, read_schedule
from trimtab.train.show.progress import Silent

SCHEDULES = Path(__file__).parent / "schedules"
WORK = Workload(groups_per_batch=8, tokens_per_group=100, engine=1000, learner=2000, publish=0.01)


def run_of(name: str, tmp_path: Path) -> Recorded:
    (tmp_path / SCHEDULE_FILE).write_text((SCHEDULES / f"{name}.jsonl").read_text())
    return recorded(read_schedule(tmp_path))


@pytest.mark.parametrize("name", ["two_samplers", "one_sampler"])
def test_a_recorded_run_comes_out_in_the_same_order_and_as_stale(name: str, tmp_path: Path) -> None:
    """Sampler processes on two busy cores, staleness 2, 24 batches of 8 prompts.

    When an answer began is not recorded, so now and then one is drawn with a version before or after its own.
    """
    found = replayed(run_of(name, tmp_path), 8, 2)
    assert (found.batches, found.same_order) == (24, 24)
    assert found.same_staleness >= 23
    assert 0.7 < found.ratio < 1.3


@pytest.mark.parametrize("name", ["two_samplers", "one_sampler"])
def test_the_rates_of_a_recorded_run_predict_its_time(name: str, tmp_path: Path) -> None:
    run = run_of(name, tmp_path)
    assert 0.7 < predicted(run, 8, 2) / run.step_seconds < 1.3


@pytest.mark.slow
def test_a_real_run_writes_a_schedule_that_can_be_replayed(tmp_path: Path, undrawn_here: None) -> None:
    changed = {"runtime": "processes", "run_dir": tmp_path / "run", "warm_start_steps": 0, "steps": 4, "staleness": 0}
    _ = train(SMALL.model_copy(update=changed), progress=Silent())
    found = replayed(recorded(read_schedule(tmp_path / "run")), SMALL.prompts_per_step, 0)
    assert (found.batches, found.same_order, found.same_staleness) == (4, 4, 4)


def test_batches_are_the_tickets_in_their_order_and_never_too_stale() -> None:
    for samplers, staleness in [(1, 0), (3, 2), (5, 8)]:
        course = candidate(WORK, samplers, 1, staleness).course
        tickets = [ticket for batch in course.batches for ticket in batch.tickets]
        assert tickets == list(range(len(tickets)))
        assert all(0 <= batch.staleness <= staleness for batch in course.batches)


def test_without_staleness_a_step_is_sampling_and_then_learning() -> None:
    one = candidate(Workload(8, 100, engine=1000, learner=2000), 1, 1, 0)
    assert one.step_seconds == pytest.approx(0.8 + 0.4)
    assert one.course.waited == pytest.approx(24 * 0.8)


def test_with_staleness_a_step_takes_what_the_slower_side_takes() -> None:
    assert candidate(Workload(8, 100, 1000, 2000), 1, 1, 4).step_seconds == pytest.approx(0.8, rel=0.02)
    assert candidate(Workload(8, 100, 9000, 2000), 1, 1, 4).step_seconds == pytest.approx(0.4, rel=0.02)


def test_faster_parts_never_make_a_plan_slower() -> None:
    def seconds(work: Workload) -> float:
        return choose(candidates(work, 3, (0, 2))).step_seconds

    slow = seconds(WORK)
    assert seconds(Workload(8, 100, 2000, 2000, 0.01)) <= slow * 1.03
    assert seconds(Workload(8, 100, 1000, 4000, 0.01)) <= slow * 1.03
    assert seconds(Workload(8, 200, 1000, 2000, 0.01)) > slow


def test_of_two_that_are_as_fast_the_fresher_one_is_chosen() -> None:
    found = candidates(Workload(8, 100, engine=100_000, learner=1000), 2)
    assert choose(found).staleness <= 1
    assert choose(found).step_seconds <= 1.03 * min(one.step_seconds for one in found)


def test_the_events_of_a_simulated_run_are_those_of_a_real_one() -> None:
    seen: list[Mapping[str, Any]] = []
    rates = Rates(1000, 2000, 100, 8, 0.01)
    _ = simulate(rates, steps=4, groups_per_batch=8, staleness=1, samplers=2, room=32, slots=8, note=seen.append)
    real = {json.loads(line)["kind"] for line in (SCHEDULES / "two_samplers.jsonl").read_text().splitlines()}
    assert {event["kind"] for event in seen} == real


def test_the_command_recommends(tmp_path: Path) -> None:
    rates = ["--engine-tokens-per-second", "1000", "--learner-tokens-per-second", "2000"]
    said = CliRunner().invoke(app, ["plan", *rates, "--gpus", "3"])
    assert said.exit_code == 0, said.output
    assert "Of 3 devices give" in said.stdout
    assert "train.staleness=" in said.stdout
    alone = CliRunner().invoke(app, ["plan", *rates, "--gpus", "1"])
    assert 'runtime = "inline"' in alone.stdout.replace("\n", " ")


def test_a_plan_without_rates_is_refused() -> None:
    said = CliRunner().invoke(app, ["plan"])
    assert isinstance(said.exception, ConfigError)
    assert "rates of a sampler and of a learner are not known" in str(said.exception)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "holds no schedule.jsonl"), ("{}x\n", "line 1 cannot be read"), ("", "holds 0 batches")],
)
def test_a_schedule_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / SCHEDULE_FILE).write_text(text)
    with pytest.raises(ConfigError, match=said):
        recorded(read_schedule(tmp_path))

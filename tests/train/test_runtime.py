"""Both runtimes keep their promises: staleness within the limit, versions true, no batch lost, processes that end."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch
from tests.train.conftest import lines, timeless

from trimtab.config.train import TrainSettings
from trimtab.errors import EngineError
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.engine import Greedy
from trimtab.rollout.publication import Publication
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.weights import digest
from trimtab.signal import recipe
from trimtab.train import train
from trimtab.train.interrupt import LISTENED
from trimtab.train.learner import Learner
from trimtab.train.opening import cautions
from trimtab.train.policy import published, save
from trimtab.train.runtimes.inline import Inline, Runtime, Wait
from trimtab.train.setup import new_buffer, new_collector, new_workers, open_runtime, task_and_policy
from trimtab.train.show.progress import Lines, Silent
from trimtab.train.warmstart import warm_start

pytestmark = pytest.mark.usefixtures("undrawn")


def as_it_is(rollouts: Rollouts) -> Rollouts:
    return rollouts


def test_staleness_zero_is_the_synchronous_loop_bit_for_bit(small: TrainSettings, tmp_path: Path) -> None:
    """The loop written out: sample, learn, publish. No buffer, no runtime."""
    settings = small.model_copy(update={"staleness": 0, "run_dir": tmp_path / "run"})
    _ = train(settings, "start_async", progress=Silent())
    _, policy = task_and_policy(settings)
    _ = warm_start(policy, settings)
    collector = new_collector(policy, settings)
    learner = Learner(policy, recipe("start_async"), settings)
    losses: list[float] = []
    for step in range(settings.steps):
        state = published(policy.model)
        collector.engine.load(state, step, digest(state))
        size = settings.prompts_per_step
        rollouts = collector.collect(list(range(step * size, (step + 1) * size)))
        learned = learner.learn(rollouts, version=step)
        losses.append(learned.metrics["train/loss"])
    assert [line["train/loss"] for line in lines(tmp_path / "run")[:-1]] == losses
    assert len(set(losses)) == len(losses)
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(tensor, saved[name]) for name, tensor in policy.model.state_dict().items())


@pytest.mark.slow
def test_processes_without_staleness_give_the_numbers_of_inline(small: TrainSettings, tmp_path: Path) -> None:
    settings = small.model_copy(update={"staleness": 0, "steps": 3})
    for runtime in ("inline", "processes"):
        changed = {"runtime": runtime, "run_dir": tmp_path / runtime}
        _ = train(settings.model_copy(update=changed), "start_async", progress=Silent())
    assert timeless(tmp_path / "inline") == timeless(tmp_path / "processes")
    assert not (tmp_path / "processes" / ".sampler").exists()
    for runtime in ("inline", "processes"):
        told = json.loads((tmp_path / runtime / "summary.json").read_text())
        assert (told["decode"], told["learn"]) == ("lean Qwen3", "lean Qwen3")


@pytest.mark.slow
def test_processes_keep_within_the_limit_and_count_what_they_did(small: TrainSettings, tmp_path: Path) -> None:
    changed = {"runtime": "processes", "run_dir": tmp_path / "run", "steps": 6, "staleness": 2}
    summary = train(small.model_copy(update=changed), "start_async", progress=Silent())
    metrics = lines(tmp_path / "run")[:-1]
    assert len(metrics) == 6
    assert max(line["staleness/max"] for line in metrics) <= 2
    assert summary.staleness["max"] <= 2
    assert all(line["publish/lag_seconds"] >= 0 and line["time/wait_seconds"] >= 0 for line in metrics)
    assert sum(line["time/sample_seconds"] for line in metrics) > 0
    assert "drift/engine_abs_mean" in metrics[0]  # version 0 is probed, and int4 differs
    assert metrics[0]["drift/engine_abs_mean"] > 1e-3


@pytest.mark.parametrize(("runtime", "threads", "cores", "said"), [
    ("processes", 2, 2, "Set train.threads=1"), ("processes", 5, 8, "Set train.threads=4"),
    ("processes", 2, 3, "Set train.threads=1"), ("processes", 4, 8, ""), ("processes", 1, 1, ""), ("inline", 2, 2, ""),
])  # fmt: skip
def test_more_threads_than_cores_are_cautioned_against(
    runtime: str, threads: int, cores: int, said: str, small: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    text = "".join(cautions(small.model_copy(update={"runtime": runtime, "threads": threads})))
    assert said in text
    assert bool(said) == bool(text)


def test_a_caution_is_said_at_the_start_and_in_the_summary(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("opening", "finish"):
        monkeypatch.setattr(f"trimtab.train.{place}.cautions", lambda *_: ("be careful",))
    summary = train(small.model_copy(update={"run_dir": tmp_path / "run", "steps": 1}), "grpo", progress=Lines())
    assert "be careful" in summary.warnings  # and not "of 1 steps": it is not a matter of steps
    assert "warning: be careful\n" in capsys.readouterr().out


def children() -> list[int]:
    # -ww: ps cuts lines at COLUMNS, and a checkout may lie deep.
    found = subprocess.run(["ps", "-wweo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in found.splitlines()[1:]]
    return [
        int(pid)
        for pid, parent, args in rows
        if int(parent) == os.getpid() and "trimtab.train.runtimes.sampler" in args
    ]


def opened(settings: TrainSettings, folder: Path):
    _, policy = task_and_policy(settings)
    save(policy, folder)
    workers = new_workers(policy, settings, folder)
    return policy, open_runtime(workers, settings, new_buffer(settings, recipe("grpo")))


def _drain(runtime: Runtime, state: dict[str, torch.Tensor]) -> None:
    """Take what is left in the buffer, and then one more."""
    for version in range(1, 9):
        runtime.publish(Publication(version, state))
        _ = runtime.batch(as_it_is)


def test_a_sampler_that_dies_too_often_is_one_clear_error_and_leaves_nothing_behind(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.train.runtimes.beside.RESTARTS", 0)
    policy, runtime = opened(small, tmp_path / "sampler")
    try:
        runtime.publish(Publication(0, published(policy.model)))
        _ = runtime.batch(as_it_is)
        (child,) = children()
        os.kill(child, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"the sampler ended with exit code -9, so no batch can come"):
            _drain(runtime, published(policy.model))
    finally:
        runtime.close()
    assert children() == []


@pytest.mark.slow
def test_of_two_samplers_one_is_killed_and_no_prompt_is_lost_or_trained_twice(
    small: TrainSettings, tmp_path: Path
) -> None:
    engine = small.engine.model_copy(update={"processes": 2})
    policy, runtime = opened(small.model_copy(update={"engine": engine}), tmp_path / "sampler")
    tickets: list[int] = []
    told: list[str] = []
    try:
        for version in range(12):
            runtime.publish(Publication(version, published(policy.model)))
            if version in (2, 6):
                os.kill(children()[0], signal.SIGKILL)
            delivered = runtime.batch(as_it_is, Wait(say=told.append))
            assert delivered is not None
            assert version - delivered.rollouts.oldest_version <= small.staleness
            tickets += delivered.rollouts.tickets
    finally:
        runtime.close()
    assert tickets == list(range(12 * small.prompts_per_step))
    assert len([text for text in told if "exit code -9; it is started again" in text]) == 2
    assert children() == []


@pytest.mark.slow
def test_a_sampler_ends_in_the_middle_of_sampling_when_its_pipe_does(small: TrainSettings, tmp_path: Path) -> None:
    """As when the learner is killed: nobody is left to close it."""
    settings = small.model_copy(update={"prompts_per_step": 512, "samples_per_prompt": 16, "max_new_tokens": 64})
    policy, runtime = opened(settings, tmp_path / "sampler")
    try:
        runtime.publish(Publication(0, published(policy.model)))
        _ = runtime.batch(as_it_is, Wait(lambda: "is sampling" in runtime._doing()))  # type: ignore[attr-defined]
        (post,) = runtime._posts.values()  # type: ignore[attr-defined]
        post.worker._is_closing = True
        post.worker._process.stdin.close()
        assert post.worker._process.wait(timeout=30) == 0
    finally:
        runtime.close()


@pytest.mark.slow
def test_a_sampler_that_hangs_is_told_of_can_be_left_and_is_given_up(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process: it is alive, and never says a word again."""
    monkeypatch.setattr("trimtab.train.runtimes.beside.NOTICE_SECONDS", 0.05)
    monkeypatch.setattr("trimtab.train.runtimes.beside.POLL_SECONDS", 0.01)
    monkeypatch.setattr("trimtab.train.runtimes.beside.CLOSE_SECONDS", 0.1)
    policy, runtime = opened(small, tmp_path / "sampler")
    told: list[str] = []
    try:
        runtime.publish(Publication(0, published(policy.model)))
        assert runtime.batch(as_it_is) is not None
        for number in LISTENED:  # a scheduler signals every process of a job; stopping is the learner's affair
            os.kill(children()[0], number)
        runtime.publish(Publication(1, published(policy.model)))
        assert runtime.batch(as_it_is) is not None
        os.kill(children()[0], signal.SIGSTOP)
        for version in range(2, 6):
            runtime.publish(Publication(version, published(policy.model)))
            if runtime.batch(as_it_is, Wait(lambda: len(told) > 1, told.append)) is None:
                break
        else:
            pytest.fail("the wait never ended")
        # Where the stop hits it is chance: at work on an order, or between two.
        at = r"(it is sampling prompts \d+ to \d+ with .*|it has version \d+ and nothing to sample .*)"
        assert re.fullmatch(rf"no batch from the sampler for \d+ s; {at}", told[0]), told
        monkeypatch.setenv("TRIMTAB_SAMPLER_SECONDS", "0.1")
        with pytest.raises(EngineError, match=rf"has been silent for 0.1 s, so it seems to hang; {at}"):
            _ = runtime.batch(as_it_is)
    finally:
        runtime.close()
    assert children() == []


@pytest.mark.slow
def test_a_run_whose_sampler_hangs_still_stops_when_its_time_is_up(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`max_minutes` is looked at while the learner waits, and a checkpoint is there afterwards."""
    monkeypatch.setattr("trimtab.train.runtimes.beside.POLL_SECONDS", 0.01)
    monkeypatch.setattr("trimtab.train.runtimes.beside.CLOSE_SECONDS", 0.1)

    class Stopper(Silent):
        def step(self, line: object) -> None:
            os.kill(children()[0], signal.SIGSTOP)

    changed = {"runtime": "processes", "run_dir": tmp_path / "run", "max_minutes": 0.15, "steps": 50}
    summary = train(small.model_copy(update=changed), "start_async", progress=Stopper())
    assert summary.outcome == "time_limit"
    assert (tmp_path / "run" / "checkpoints" / f"step_{summary.steps:06d}").is_dir()
    assert children() == []


@pytest.mark.slow
def test_an_error_of_the_sampler_is_told_in_its_own_words(small: TrainSettings, tmp_path: Path) -> None:
    policy, runtime = opened(small, tmp_path / "sampler")
    state = published(policy.model)
    first = next(iter(state))
    try:
        runtime.publish(Publication(0, {name: tensor for name, tensor in state.items() if name != first}))
        with pytest.raises(EngineError, match=first.replace(".", r"\.")):
            _ = runtime.batch(as_it_is)
    finally:
        runtime.close()


def test_parameters_that_are_damaged_on_the_way_never_get_a_version(small: TrainSettings, tmp_path: Path) -> None:
    """The checksum is of what was published; one changed value, and the engine refuses the version."""
    _, policy = task_and_policy(small)
    engine = new_collector(policy, small).engine
    state = published(policy.model)
    checksum = digest(state)
    name, tensor = next(iter(state.items()))
    changed = tensor.clone()
    changed.view(-1)[0] += 1e-6
    with pytest.raises(EngineError):
        engine.load({**state, name: changed}, 0, checksum)
    assert engine.version == -1
    engine.load(state, 0, checksum)
    assert engine.version == 0


def test_tickets_lost_on_the_way_are_sampled_again_after_a_resume(small: TrainSettings) -> None:
    _, policy = task_and_policy(small)
    buffer = Buffer(groups_per_batch=2, staleness=1)
    assert buffer.admit(0) == [0, 1, 2, 3]  # and then the process died
    again = Buffer(groups_per_batch=2, staleness=1)
    again.restore(buffer.state(), None)
    runtime = Inline(new_collector(policy, small), again)
    runtime.publish(Publication(0, published(policy.model)))
    assert runtime.batch(as_it_is).rollouts.tickets == [0, 1]
    runtime.close()


def test_inline_samples_in_the_thread_of_its_caller(small: TrainSettings) -> None:
    """A second thread would have a second team of OpenMP threads, which spin while the learner computes."""
    _, policy = task_and_policy(small)
    collector, seen, before = new_collector(policy, small), set[str](), set(threading.enumerate())
    loaded = collector.engine.load

    def load(*given: object) -> object:
        seen.add(threading.current_thread().name)
        return loaded(*given)

    collector.engine.load = load
    runtime = Inline(collector, Buffer(groups_per_batch=2, staleness=0))
    runtime.publish(Publication(0, published(policy.model)))
    assert runtime.batch(as_it_is).rollouts.tickets == [0, 1]
    assert "episodes" not in {one.name for one in set(threading.enumerate()) - before}
    runtime.close()
    assert seen == {threading.current_thread().name}


@pytest.mark.slow
def test_closing_while_the_sampler_is_busy_does_not_hang(small: TrainSettings, tmp_path: Path) -> None:
    settings = small.model_copy(update={"prompts_per_step": 64, "samples_per_prompt": 16, "staleness": 4})
    policy, runtime = opened(settings, tmp_path / "sampler")
    runtime.publish(Publication(0, published(policy.model)))
    time.sleep(0.2)
    runtime.close()  # if it waited for all 1024 answers, the sampler would have ended by itself
    assert children() == []


def test_an_evaluation_runs_in_the_thread_of_its_caller(small: TrainSettings) -> None:
    """Its thread would stay beside the run, and OpenMP lets its threads sleep early where there are too many."""
    _, policy = task_and_policy(small)
    before, judge = set(threading.enumerate()), new_collector(policy, small)
    judge.load(Publication(0, published(policy.model)))
    _ = judge.play([judge.task.train(0)], [0], Greedy(4))
    assert "episodes" not in {one.name for one in set(threading.enumerate()) - before}
    judge.close()

"""Every process of a run is killed once, slowed down or starved: the run goes on, or says why it stops and can go on.

Counted each time: every prompt trained on once, in order, and no process left on any node.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.cluster.conftest import MARK, Driver, Nodes, each_once, nothing_left, resume, start, start_nodes, stop_nodes

pytestmark = pytest.mark.cluster

STEPS = 40
REWARD = """
def judged(prompts, completions, answer, ended, **_):
    return [float(said.strip() == right and end) for said, right, end in zip(completions, answer, ended)]
"""


def whole(driver: Driver, steps: int = STEPS) -> None:
    """It came to its end with every prompt once, and left nothing behind."""
    said = driver.end()
    assert driver.process.returncode == 0, said
    assert each_once(driver.run, steps)
    assert [line["step"] for line in driver.lines()] == list(range(steps + 1))
    assert not nothing_left(driver.nodes)


def test_a_killed_sampler_is_replaced(nodes: Nodes) -> None:
    driver = start(nodes, "sampler", {"train.engine.processes": 2, "train.steps": 150})
    driver.wait_for_step(10)
    os.kill(driver.pid_of("sampler 0"), signal.SIGKILL)
    driver.wait_for(lambda: driver.events().count("sampler 0 is on") == 2)
    whole(driver, 150)
    assert "(its process was killed or ended); it is started again" in driver.said


def test_a_killed_reward_worker_is_replaced_and_asked_again(nodes: Nodes) -> None:
    _ = (nodes.folder / "my_reward.py").write_text(REWARD)
    changed = {"train.task.reward": "my_reward.py:judged", "train.steps": 80}
    driver = start(nodes, "reward", changed)
    driver.wait_for_step(5)
    driver.wait_for(lambda: "reward 0 is on" in driver.events())
    os.kill(driver.pid_of("reward 0"), signal.SIGKILL)
    whole(driver, 80)
    assert driver.events().count("reward 0 was lost, and is now") == 1
    counted = json.loads((driver.run / "summary.json").read_text())["reward_status"]
    assert counted == {"ok": 80 * 16, **{status: 0 for status in counted if status != "ok"}}


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint(nodes: Nodes) -> None:
    driver = start(nodes, "rank", {}, "--ranks", "2")
    driver.wait_for_step(12)
    os.kill(driver.pid_of("rank 1"), signal.SIGKILL)
    whole(driver)
    assert "the learner group is lost and started again (2 restarts left)" in driver.said
    assert "going on from step" in driver.said


def test_a_rank_that_hangs_is_found_by_the_health_check(nodes: Nodes) -> None:
    driver = start(nodes, "rank_hangs", {"train.cluster.health_seconds": 6}, "--ranks", "2")
    driver.wait_for_step(12)
    pid = driver.pid_of("rank 1")
    os.kill(pid, signal.SIGSTOP)
    whole(driver)
    assert "the learner group is lost and started again (2 restarts left)" in driver.said
    assert not Path(f"/proc/{pid}").exists()


def test_without_a_budget_a_killed_rank_ends_the_run_with_a_sentence(nodes: Nodes) -> None:
    driver = start(nodes, "rank_once", {"train.cluster.restarts": 0}, "--ranks", "2")
    driver.wait_for_step(12)
    os.kill(driver.pid_of("rank 1"), signal.SIGKILL)
    said = driver.end()
    assert driver.process.returncode == 2
    assert "rank 0 lost another of the 2 ranks" in said
    assert "resumed from its last checkpoint" in said
    assert not nothing_left(nodes)
    whole(resume(driver))  # on two ranks, as it was told


def test_a_killed_raylet_takes_its_samplers_and_no_prompt(nodes: Nodes) -> None:
    nodes.add("doomed", CPU=1, place=1)
    nodes.add("safe", CPU=2, place=2)
    changed = {"train.cluster.sampler": "{CPU = 0.5, place = 1}", "train.engine.processes": 3, "train.steps": 150}
    driver = start(nodes, "raylet", changed)
    driver.wait_for(lambda: driver.events().count("samples, first with") == 3)
    driver.wait_for_step(10)
    os.kill(nodes.raylet("doomed"), signal.SIGKILL)
    whole(driver, 150)
    nodes.remove("doomed")
    nodes.remove("safe")
    # Ray may still place it on the dead node once before it notices.
    assert 1 <= driver.said.count("it is started again") <= 2


def test_a_killed_driver_takes_every_role_with_it(nodes: Nodes) -> None:
    _ = (nodes.folder / "my_reward.py").write_text(REWARD)
    changed = {"train.task.reward": "my_reward.py:judged", "train.engine.processes": 2}
    driver = start(nodes, "driver", changed, "--ranks", "2")
    driver.wait_for_step(12)
    assert len(nodes.roles()) >= 4
    driver.process.kill()
    assert driver.process.wait() == -signal.SIGKILL
    assert not nothing_left(nodes)
    assert driver.lines()[-1]["step"] < STEPS
    whole(resume(driver))


def test_sigterm_finishes_the_step_and_can_go_on(nodes: Nodes) -> None:
    driver = start(nodes, "sigterm", {"train.engine.processes": 2}, "--ranks", "2")
    driver.wait_for_step(12)
    driver.process.terminate()
    said = driver.end()
    assert driver.process.returncode == 143, said
    assert "trimtab train --resume" in said
    assert not nothing_left(nodes)
    again = resume(driver, "--ranks", "1")
    whole(again)


def test_a_slow_sampler_holds_nobody_up_for_long_and_loses_nothing(nodes: Nodes) -> None:
    driver = start(nodes, "slow", {"train.engine.processes": 2})
    driver.wait_for_step(5)
    pid, over = driver.pid_of("sampler 1"), threading.Event()

    def slow_down() -> None:
        while not over.wait(0.1):
            for number in (signal.SIGSTOP, signal.SIGCONT):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    return
                time.sleep(0.9 if number == signal.SIGSTOP else 0.1)

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        whole(driver)
    finally:
        over.set()
        thread.join()
    assert "started again" not in driver.said


def test_a_sampler_that_hangs_is_found_by_the_health_check(nodes: Nodes) -> None:
    changed = {"train.engine.processes": 2, "train.cluster.health_seconds": 4, "train.steps": 200}
    driver = start(nodes, "hang", changed)
    driver.wait_for(lambda: driver.events().count("samples, first with") == 2)
    driver.wait_for_step(5)
    pid = driver.pid_of("sampler 1")
    os.kill(pid, signal.SIGSTOP)
    driver.wait_for(lambda: "has not answered" in driver.events())
    whole(driver, 200)
    assert "has not answered for 4 s; it is started again" in driver.said
    assert not Path(f"/proc/{pid}").exists()


def test_a_full_object_store_slows_the_run_down_and_loses_nothing(tmp_path: Path) -> None:
    """Nothing is spilled here, so Ray makes every message wait, and then puts it on the disk."""
    small = {"object_store_memory": 80_000_000, "_system_config": {"automatic_object_spilling_enabled": False}}
    nodes = start_nodes(tmp_path / "own", small)
    try:
        nodes.add("first", CPU=2, sampler=2)
        driver = start(nodes, "full", {"train.steps": 50, "train.checkpoint_every": 0})
        driver.wait_for_step(5)
        ballast = fill(nodes)
        try:
            assert ballast.stdout is not None
            assert ballast.stdout.readline() == "full\n"
            whole(driver, 50)
        finally:
            ballast.kill()
    finally:
        stop_nodes(nodes)


def fill(nodes: Nodes) -> "subprocess.Popen[str]":
    """A process that puts more into the object store of its node than it holds, and keeps it until it is killed."""
    script = (
        "import os, sys, time; os.environ['RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER'] = '0'\n"
        "import ray; ray.init(address=sys.argv[1], logging_level='ERROR')\n"
        "kept = [ray.put(os.urandom(1 << 20)) for _ in range(90)]\n"
        "print('full', flush=True); time.sleep(600)\n"
    )
    words = [sys.executable, "-c", script, nodes.address]
    return subprocess.Popen(words, env={**os.environ, MARK: nodes.mark}, text=True, stdout=subprocess.PIPE)


@pytest.fixture
def alone(tmp_path: Path) -> Driver:
    """A run with a cluster of its own; its processes carry the mark of the test."""
    nodes = Nodes(tmp_path, False, os.urandom(8).hex(), None, "local")
    return start(nodes, "local", {"train.cluster.sampler": "{CPU = 1}"})


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_cluster_of_the_runs_own_ends_with_it(alone: Driver, number: signal.Signals) -> None:
    """Ctrl-C reaches every process of the terminal's group, kill -9 the driver alone."""
    from tests.cluster.conftest import marked

    alone.wait_for_step(5)
    assert any("raylet" in title for title in marked(alone.nodes.mark))
    if number == signal.SIGINT:
        os.killpg(alone.process.pid, signal.SIGINT)
    else:
        alone.process.kill()
    said = alone.end()
    assert alone.process.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130}[number], said
    until = time.monotonic() + 30
    while marked(alone.nodes.mark) and time.monotonic() < until:
        time.sleep(0.2)
    assert not marked(alone.nodes.mark)
    assert not list(Path("/tmp").glob("trimtab-ray-*"))
    whole(resume(alone))

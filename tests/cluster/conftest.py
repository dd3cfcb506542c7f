"""A cluster of three nodes and more, and drivers that run on it as people start them: with the command."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.host import hidden

MARK = "TRIMTAB_TEST_CLUSTER"
ROLES = ("ray::SamplerRole", "ray::RankRole", "ray::RewardRole", "ray::RunRole", "ray::Examined")


@dataclass
class Nodes:
    """The cluster, from the driver's side."""

    folder: Path
    """The driver's own: nodes see it empty."""
    is_hidden: bool
    mark: str
    process: "subprocess.Popen[str] | None"
    """The one that holds it; none for a cluster that a run starts for itself."""
    address: str = ""

    def ask(self, **order: object) -> Any:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(order), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        assert line, "the cluster ended"
        return json.loads(line)

    def add(self, name: str, **resources: float) -> None:
        self.ask(do="add", name=name, resources=resources)

    def remove(self, name: str) -> None:
        self.ask(do="remove", name=name)

    def raylet(self, name: str) -> int:
        return int(self.ask(do="raylet", name=name))

    def roles(self) -> list[str]:
        """Processes of ours on its nodes: roles, and what they have started."""
        return [title for title in marked(self.mark) if title.startswith(ROLES) or "trimtab" in title]


def marked(mark: str) -> list[str]:
    """Titles of the processes that carry a mark in their environment."""
    found: list[str] = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                title = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                found += [title] if title else []
    return found


def start_nodes(folder: Path, head: dict[str, object] | None = None) -> Nodes:
    folder.mkdir(parents=True, exist_ok=True)
    words, mark = hidden(str(folder)), uuid.uuid4().hex
    process = subprocess.Popen(
        [*words, sys.executable, "-m", "tests.cluster.host", str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        env={**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    nodes = Nodes(folder, bool(words), mark, process)
    nodes.address = nodes.ask(do="start", head=head or {})
    return nodes


def stop_nodes(nodes: Nodes) -> None:
    assert nodes.process is not None
    with contextlib.suppress(BrokenPipeError, OSError):
        assert nodes.process.stdin is not None
        print(json.dumps({"do": "end"}), file=nodes.process.stdin, flush=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        _ = nodes.process.wait(60)
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={nodes.mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                os.kill(int(place.name), signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The head, where drivers are, and two nodes: each may hold two samplers and a reward worker, or a rank."""
    made = start_nodes(tmp_path_factory.mktemp("driver") / "own")
    try:
        for name in ("first", "second"):
            made.add(name, CPU=2, sampler=2, reward=1, rank=1)
        yield made
    finally:
        stop_nodes(made)


SMALL = {
    "train.task.name": "reverse", "train.task.size": 3, "train.model.hidden_size": 32, "train.model.num_layers": 1,
    "train.model.num_heads": 2, "train.model.mlp_size": 64, "train.engine.format": "int4", "train.staleness": 2,
    "train.warm_start_steps": 60, "train.warm_start_lr": 1e-2, "train.steps": 40, "train.prompts_per_step": 4,
    "train.samples_per_prompt": 4, "train.max_new_tokens": 5, "train.lr": 2e-3, "train.eval_every": 20,
    "train.eval_prompts": 40, "train.checkpoint_every": 5, "train.early_stop": "never", "train.dump_batches": "true",
    "train.cluster.sampler": '{CPU = 0.5, sampler = 1}', "train.cluster.rank": '{CPU = 0.5, rank = 1}',
    "train.cluster.reward": '{CPU = 0.1, reward = 1}', "train.cluster.health_seconds": 20,
}  # fmt: skip
"""Learns to turn two digits round, in seconds."""


@dataclass
class Driver:
    """A command that runs, and its run folder."""

    nodes: Nodes
    run: Path
    process: "subprocess.Popen[str]"
    said: str = field(default="")

    def lines(self) -> list[dict[str, Any]]:
        path = self.run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def wait_for(self, seen: Callable[[], object], seconds: float = 120.0) -> Any:
        """Wait until something is there. A run that ends first fails the test."""
        until = time.monotonic() + seconds
        while not (found := seen()):
            assert self.process.poll() is None, f"the run ended first: {self.end()}"
            assert time.monotonic() < until, f"nothing within {seconds} s; {self.events()}"
            time.sleep(0.05)
        return found

    def wait_for_step(self, step: int) -> None:
        self.wait_for(lambda: any(line["step"] >= step for line in self.lines()))

    def events(self) -> str:
        path = self.run / "logs" / "cluster.log"
        return path.read_text() if path.is_file() else ""

    def pid_of(self, role: str) -> int:
        """The process that has a role now. (Nobody asks for 0: a signal to that is one to the test.)"""
        found = re.findall(rf"{role} .*pid (\d+)", self.events())
        assert found, self.events()
        return int(found[-1])

    def log(self, role: str) -> str:
        path = self.run / "logs" / f"{role.replace(' ', '_')}.log"
        return path.read_text() if path.is_file() else ""

    def end(self, seconds: float = 180.0) -> str:
        """Wait for the end, and return all that it said."""
        said, _ = self.process.communicate(timeout=seconds)
        self.said += said or ""
        return self.said


def start(nodes: Nodes, run: str, overrides: dict[str, object], *words: str) -> Driver:
    """Start `trimtab train` on the cluster, in the driver's own folder."""
    settings = [f"{key}={value}" for key, value in {**SMALL, **overrides}.items()]
    folder = nodes.folder / run
    shutil.rmtree(folder, ignore_errors=True)
    return Driver(nodes, folder, command(nodes, "train", *settings, *words, "--run-dir", str(folder)))


def resume(driver: Driver, *words: str) -> Driver:
    return Driver(driver.nodes, driver.run, command(driver.nodes, "train", "--resume", str(driver.run), *words))


STARTED: "list[subprocess.Popen[str]]" = []


@pytest.fixture(autouse=True)
def _no_driver_stays() -> Iterator[None]:
    """A test that failed leaves no run behind: it would hold the nodes' resources, and every later test would fail."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            _ = process.wait()


def command(nodes: Nodes, *words: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab", *words, "--cluster", nodes.address],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=nodes.folder, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", MARK: nodes.mark},
    )  # fmt: skip
    STARTED.append(process)
    return process


def tickets(run: Path) -> list[int]:
    """The prompts that were trained on, step by step."""
    from safetensors.torch import load_file

    batches = [load_file(path)["ticket"].tolist() for path in sorted((run / "batches").glob("step_*.safetensors"))]
    return [ticket for batch in batches for ticket in dict.fromkeys(batch)]


def each_once(run: Path, steps: int, prompts: int = 4) -> bool:
    """Whether every prompt was trained on once, in order: none lost, none twice."""
    return tickets(run) == list(range(steps * prompts))


def nothing_left(nodes: Nodes, seconds: float = 30.0) -> list[str]:
    """Processes of ours that are still there after a while, and folders on nodes."""
    until = time.monotonic() + seconds
    while (left := [*nodes.roles(), *map(str, Path("/tmp").glob("trimtab-node-*"))]) and time.monotonic() < until:
        time.sleep(0.2)
    return left

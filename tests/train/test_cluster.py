"""What can be said of the Ray runtime without Ray: settings, messages, parcels, placement, the launch pages."""

import json
import os
import queue
import re
import shlex
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from tests.docs.test_docs import ROOT
from tests.fork import run_in_fork
from typer.main import get_command
from typer.testing import CliRunner

from trimtab.cli import app
from trimtab.config.cluster import ClusterSettings
from trimtab.config.train import TaskSettings, TrainSettings
from trimtab.errors import ConfigError, EngineError, MissingExtra
from trimtab.rollout.publication import Publication
from trimtab.rollout.wire import pack, unpack
from trimtab.train import train
from trimtab.train.cluster.crew import Crew
from trimtab.train.cluster.parcel import model_bytes, settings_bytes, settings_here, write_parcel
from trimtab.train.cluster.placement import Role, fit, placement_lines, roles, wanted_resources
from trimtab.train.cluster.server import OwnServer
from trimtab.train.cluster.session import find_address
from trimtab.train.runtimes.message import load_message, read_publication, read_said, said_message
from trimtab.train.runtimes.worker import Failed, Gone, Loaded, Noted, Said

PAGES = sorted((ROOT / "examples" / "cluster").glob("*.sh"))


def ray_settings(small: TrainSettings, **changed: object) -> TrainSettings:
    return TrainSettings(**{**small.model_dump(), "runtime": "ray", **changed})


# ------------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:", ":6379", "http://head:6379", "head:port"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="neither auto, local nor HOST:PORT"):
        _ = ClusterSettings(address=address)


@pytest.mark.parametrize("address", ["auto", "local", "10.0.0.1:6379", "head.example:6379"])
def test_an_address_is_taken_as_it_is(address: str) -> None:
    assert ClusterSettings(address=address).address == address


def test_auto_is_what_the_environment_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("trimtab.train.cluster.session.RUNNING", str(tmp_path / "none"))
    assert find_address(ClusterSettings()) == "local"
    _ = (tmp_path / "none").write_text("10.0.0.2:6379\n")
    assert find_address(ClusterSettings()) == "10.0.0.2:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.3:6379")
    assert find_address(ClusterSettings()) == "10.0.0.3:6379"
    assert find_address(ClusterSettings(address="local")) == "local"


def test_without_ray_a_run_says_what_to_install(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.train.cluster.session.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r'pip install "trimtab\[cluster\]", on every node'):
        _ = train(ray_settings(small, run_dir=tmp_path / "run"), "start_async")
    assert not (tmp_path / "run").exists()


def test_a_vllm_engine_without_servers_is_for_ray_only(small: TrainSettings) -> None:
    assert ray_settings(small, engine={"name": "vllm"}).engine.servers == ()
    with pytest.raises(ConfigError, match="not clear who samples"):
        _ = ray_settings(small, engine={"name": "vllm"}, runtime="processes")


@pytest.mark.usefixtures("undrawn_here")
def test_a_run_of_one_machine_is_not_resumed_on_a_cluster(small: TrainSettings, tmp_path: Path) -> None:
    _ = train(small.model_copy(update={"steps": 1, "run_dir": tmp_path / "run"}), "start_async", quiet=True)
    said = CliRunner().invoke(app, ["train", "--resume", str(tmp_path / "run"), "--cluster", "local"])
    assert isinstance(said.exception, ConfigError)
    assert "was started with runtime 'inline'" in str(said.exception)


# -------------------------------------------------------------------------------------------------------------- imports


def test_nothing_imports_ray_but_the_session() -> None:
    files = [path for path in (ROOT / "src").rglob("*.py") if path.name != "session.py"]
    found = [
        path.name
        for path in files
        if re.search(r"^\s*(import ray\b|from ray\b)|import_module\(.ray", path.read_text(), re.M)
    ]
    assert not found


def test_every_module_of_the_runtime_is_there_without_ray() -> None:
    names = [f"trimtab.train.cluster.{path.stem}" for path in (ROOT / "src/trimtab/train/cluster").glob("[a-z]*.py")]
    assert len(names) > 10
    script = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\nprint('ray' in sys.modules)"
    assert run_in_fork(f"import trimtab, trimtab.cli\n{script}", ["ray"]) == "False\n"


# ------------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    "said", [Loaded(3, "lean"), Gone("it died", "Traceback"), Failed("no"), Noted("it waits")], ids=lambda one: str(one)
)
def test_what_a_worker_says_comes_through_bytes_as_it_was(said: Said) -> None:
    head, tensors = unpack(pack(*said_message(said)))
    assert read_said(head, tensors) == said


def test_a_version_comes_through_bytes_with_the_checksum_of_its_publisher() -> None:
    sent = Publication(7, {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1], dtype=torch.int32)})
    got = read_publication(*unpack(pack(*load_message(sent))))
    assert (got.version, got.digest) == (7, sent.digest)
    assert all(torch.equal(got.state[name], tensor) for name, tensor in sent.state.items())


def test_files_of_a_run_reach_a_node_and_settings_name_the_copies(small: TrainSettings, tmp_path: Path) -> None:
    own, node = tmp_path / "own", tmp_path / "node"
    (own / "model" / "deep").mkdir(parents=True)
    _ = (own / "model" / "deep" / "config.json").write_text("{}")
    _ = (own / "model" / "empty").write_text("")
    _ = (own / "rows.jsonl").write_text('{"prompt": "1"}\n')
    _ = (own / "judge.py").write_text("def score(): ...\n")
    task = TaskSettings(name="file", file=own / "rows.jsonl", reward=f"{own / 'judge.py'}:score")
    settings = ray_settings(small, task=task, model={"path": own / "model"})
    head, parcel = unpack(pack({}, {**settings_bytes(settings), **model_bytes(settings)}))
    write_parcel(parcel, node)
    here = settings_here(settings, node)
    assert head == {}
    assert here.task.file == node / "task.file" / "rows.jsonl"
    assert here.task.file.read_text() == '{"prompt": "1"}\n'
    assert here.task.reward == f"{node / 'task.reward' / 'judge.py'}:score"
    assert here.model.path == node / "model"
    assert (node / "model" / "deep" / "config.json").read_text() == "{}"
    assert (node / "model" / "empty").read_text() == ""
    assert here.model_copy(update={"task": settings.task, "model": settings.model}) == settings


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "a/../../outside"])
def test_a_parcel_writes_nothing_outside_of_its_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outside"):
        write_parcel({name: torch.zeros(1, dtype=torch.uint8)}, tmp_path / "node")
    assert not list(tmp_path.glob("outside"))


class Full:
    """What stands for Ray where a message finds no room: it waits for ever."""

    class exceptions:  # noqa: N801 - as Ray names it
        RayError = RuntimeError

    def __init__(self) -> None:
        self.over = threading.Event()

    def put(self, _message: bytes) -> None:
        _ = self.over.wait(60)

    def cluster_resources(self) -> dict[str, float]:
        return {"object_store_memory": 80e6}


def test_a_message_that_finds_no_room_is_given_up_with_a_sentence() -> None:
    crew, ray = Crew.__new__(Crew), Full()
    crew.ray, crew.health_seconds = ray, 0.05
    with pytest.raises(EngineError, match=r"the object store is full \(80 MB over all nodes\).*resumed.*3 bytes found"):
        _ = crew.put(b"abc")
    ray.over.set()


# ------------------------------------------------------------------------------------------------------------ placement


def test_a_cluster_of_its_own_has_what_all_roles_ask_for(small: TrainSettings) -> None:
    task = TaskSettings(name="reverse", size=2, reward="judge.py:score", reward_workers=2)
    cluster = ClusterSettings(ranks=3, sampler={"CPU": 0.5, "GPU": 1}, rank={"GPU": 1}, reward={"CPU": 1})
    settings = ray_settings(small, task=task, cluster=cluster, engine={"processes": 4})
    assert {role.name: role.count for role in roles(settings)} == {"rank": 2, "sampler": 4, "reward": 2}
    assert wanted_resources(settings) == {"GPU": 6.0, "CPU": 4.0}


@pytest.mark.parametrize(("reward", "placed"), [("task", False), ("exact", False), ("numeric", False), ("a:b", True)])
def test_only_a_reward_of_your_own_gets_workers(reward: str, placed: bool, small: TrainSettings) -> None:
    settings = ray_settings(small, task=TaskSettings(name="reverse", size=2, reward=reward))
    assert any(role.name == "reward" for role in roles(settings)) == placed


def test_what_fits_is_counted_by_the_scarcest_resource() -> None:
    role = Role("sampler", 2, {"CPU": 0.5, "slot": 1, "unused": 0}, "")
    assert fit(role, [{"CPU": 4}, {"CPU": 4, "slot": 3}, {"CPU": 1, "slot": 9}]) == [0, 3, 2]


def test_a_role_that_fits_nowhere_is_told_before_the_run(small: TrainSettings) -> None:
    settings = ray_settings(small, cluster=ClusterSettings(sampler={"GPU": 1}))
    nodes = [{"name": "a", "resources": {"CPU": 2.0}}]
    assert any("no node has room, so they wait until one is added" in line for line in placement_lines(settings, nodes))
    assert placement_lines(settings, None)[0] == "rank 0: this process; it writes the run folder"


def test_a_dry_run_says_what_would_be_placed_where(tmp_path: Path) -> None:
    words = [
        "train",
        "train.engine.processes=2",
        "train.warm_start_steps=0",
        "train.prompts_per_step=2",
        "--ranks",
        "2",
    ]
    said = CliRunner().invoke(app, [*words, "--cluster", "local", "--dry-run", "--run-dir", str(tmp_path / "run")])
    assert said.exit_code == 0, said.output
    assert "local: would be started for this run, on loopback, with CPU 3, without a dashboard" in said.output
    assert "2 x samplers, embedded engine; each asks for CPU 1" in said.output
    assert "1 x learner ranks beside this process" in said.output
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------------------------------------- launch pages


def test_there_is_a_page_for_ray_jobs_and_one_for_slurm() -> None:
    assert [page.name for page in PAGES] == ["ray_job.sh", "slurm_torchrun.sh"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("again", ["", "1"])
def test_a_launch_page_runs_dry_and_its_command_is_one_of_ours(page: Path, again: str, tmp_path: Path) -> None:
    """The page itself runs, with the shell that people have; what it would start is read by our own command line."""
    run = tmp_path / "run"
    if again:
        run.mkdir()
        _ = (run / "manifest.json").write_text("{}")
    _ = subprocess.run(["bash", "-n", str(page)], check=True)
    environment = {**os.environ, "DRY_RUN": "1", "RESUME": again, "RUN_DIR": str(run)}
    said = subprocess.run(["bash", str(page)], cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    words = shlex.split(said.stdout.removeprefix("would run: "))
    command = words[words.index("trimtab") + 1 :]
    parsed = get_command(app).commands["train"].make_context("train", command[1:])  # pyright: ignore
    assert command[0] == "train"
    assert (parsed.params["resume"] == run) == bool(again)
    if not again:
        assert (ROOT / parsed.params["run_file"]).is_file()
        assert parsed.params["run_dir"] == run
        from trimtab.config import load_run

        settings = load_run(ROOT / parsed.params["run_file"], list(parsed.params["overrides"] or [])).train
        assert json.loads(settings.model_dump_json())["runtime"] in ("processes", "ray")


# ------------------------------------------------------------------------------------------------ a server of one's own


def test_a_server_that_ends_by_itself_is_told_and_one_that_is_closed_is_not(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("env/bin", "model"):
        (tmp_path / folder).mkdir(parents=True)
    _ = (tmp_path / "model" / "config.json").write_text("{}")
    python = tmp_path / "env" / "bin" / "python"
    _ = python.write_text("#!/bin/sh\nexit ${ENDS_WITH}\n")
    python.chmod(0o755)
    monkeypatch.setenv("VLLM_ENV", str(tmp_path / "env"))
    monkeypatch.setenv("ENDS_WITH", "3")
    said: queue.SimpleQueue[str] = queue.SimpleQueue()
    server = OwnServer(tmp_path, ray_settings(small, engine={"name": "vllm"}), mark="none")
    server.watch(said.put)
    assert "ended with exit code 3, so it has no engine" in said.get(timeout=30)

    closed = OwnServer(tmp_path, ray_settings(small, engine={"name": "vllm"}), mark="none")
    closed.close()
    closed.watch(said.put)
    assert closed._process.wait(30) == 3
    for thread in threading.enumerate():
        if thread.name == "vLLM server":
            thread.join(30)
    assert said.empty()

"""Sinks run for real, against local storage: what was logged is read back with each package's own reader."""

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import ConfigError, MissingExtra
from trimtab.train.record import sink
from trimtab.train.record.sink import Sinks, open_sinks

CONFIG = {"seed": 0, "task": {"name": "sort"}}


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    known = name in read.Tags()["scalars"]
    return [(event.step, event.value) for event in read.Scalars(name)] if known else []


def test_tensorboard_holds_what_was_logged(tmp_path: Path) -> None:
    sinks = open_sinks(["tensorboard"], tmp_path, config=CONFIG)
    for step in range(3):
        sinks.log(step, {"step": step, "train/loss": 0.5 * step, "eval/accuracy": float("nan")})
    sinks.close()
    assert scalars(tmp_path, "train/loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert scalars(tmp_path, "eval/accuracy") == []  # nan is no measurement
    assert sinks.said == []


def test_a_resumed_run_has_no_point_twice_in_tensorboard(tmp_path: Path) -> None:
    """Killed after step 5, resumed from the checkpoint before step 3: steps 3 to 5 are trained, and shown, again."""
    first = open_sinks(["tensorboard"], tmp_path, config=CONFIG)
    for step in range(6):
        first.log(step, {"train/loss": 1.0})
    first.close()
    second = open_sinks(["tensorboard"], tmp_path, resumed_step=3, config=CONFIG)
    for step in range(3, 8):
        second.log(step, {"train/loss": 2.0})
    second.close()
    assert scalars(tmp_path, "train/loss") == [(step, 1.0 if step < 3 else 2.0) for step in range(8)]


def run_child(code: str, folder: Path, **environment: str) -> str:
    """A process of its own: wandb and trackio keep state for a whole process and read their folders at import."""
    child = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, env=child)
    assert done.returncode == 0, done.stderr
    return done.stdout


LOGGED_AND_RESUMED = """
import sys
import warnings
from pathlib import Path
from trimtab.train.record.sink import open_sinks
folder = Path(sys.argv[1])
first = open_sinks(["NAME"], folder, config={"seed": 0})
for step in range(4):
    first.log(step, {"train/loss": 1.0})
first.close()
second = open_sinks(["NAME"], folder, resumed_step=2, config={"seed": 0})
for step in range(2, 6):
    second.log(step, {"train/loss": 2.0})
second.close()
assert first.said == second.said == [], (first.said, second.said)
"""


def test_trackio_holds_each_step_once_also_after_resume(tmp_path: Path) -> None:
    _ = pytest.importorskip("trackio", reason="make test-all installs it")
    folder, storage = tmp_path / "run", tmp_path / "trackio"
    folder.mkdir()
    read = """
import json
from trackio.sqlite_storage import SQLiteStorage
runs = SQLiteStorage.get_runs("trimtab")
logs = SQLiteStorage.get_logs("trimtab", runs[0])
print("READ", json.dumps([[log["step"], log["train/loss"]] for log in logs]), len(runs))
"""
    code = LOGGED_AND_RESUMED.replace("NAME", "trackio") + read
    out = run_child(code, folder, TRACKIO_DIR=str(storage))
    assert out == "READ [[0, 1.0], [1, 1.0], [2, 1.0], [3, 1.0], [4, 2.0], [5, 2.0]] 1\n"  # and no greetings


@pytest.mark.slow
def test_wandb_writes_offline_files_when_nobody_is_logged_in(tmp_path: Path) -> None:
    _ = pytest.importorskip("wandb", reason="make test-all installs it")
    folder = tmp_path / "run"
    folder.mkdir()
    home = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "WANDB_API_KEY": "", "WANDB_MODE": "offline"}
    _ = run_child(LOGGED_AND_RESUMED.replace("NAME", "wandb"), folder, **home)
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))
    assert json.loads((folder / "sinks.json").read_text())["steps"] == {"wandb": 5}


def test_a_step_is_sent_once_whatever_is_resumed(tmp_path: Path) -> None:
    sent = sink.Sent.read(tmp_path, fresh=True)
    assert [sent.claim_step("wandb", step) for step in (0, 1, 2)] == [True, True, True]
    again = sink.Sent.read(tmp_path, fresh=False)
    assert again.name == sent.name
    assert [again.claim_step("wandb", step) for step in (1, 2, 3)] == [False, False, True]
    assert again.claim_step("trackio", 0)
    assert sink.Sent.read(tmp_path, fresh=True).name != sent.name


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_said_with_the_line_that_installs_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf'log_to: {name} is not installed.*pip install "trimtab\[{name}\]"'):
        _ = open_sinks([name], tmp_path, config=CONFIG)


def test_an_unknown_sink_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no entry is called 'tensorbord'; did you mean 'tensorboard'"):
        _ = open_sinks(["tensorbord"], tmp_path, config=CONFIG)


class Failing:
    """A dashboard whose disk is full from its third step on."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def log(self, step: int, metrics: Any) -> None:
        if step == 2:
            raise OSError("disk full")
        self.seen.append(step)

    def close(self) -> None:
        raise RuntimeError("never reached: a lost sink is not closed")


def test_a_sink_that_fails_warns_once_and_the_others_go_on() -> None:
    class Kept(Failing):
        def log(self, step: int, metrics: Any) -> None:
            self.seen.append(step)

        def close(self) -> None:
            self.seen.append(-1)

    bad, good = Failing(), Kept()
    sinks = Sinks({"wandb": bad, "tensorboard": good})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            sinks.log(step, {"train/loss": 0.0})
        sinks.close()
        sinks.close()
    assert "log_to: wandb failed to log (OSError: disk full), so it gets no more metrics" in str(caught[0].message)
    assert (len(caught), len(sinks.said)) == (1, 1)
    assert (bad.seen, good.seen) == ([0, 1], [0, 1, 2, 3, 4, -1])


def test_a_sink_that_cannot_open_does_not_stop_the_run(tmp_path: Path) -> None:
    _ = (tmp_path / "tensorboard").write_text("a file where its folder should be")
    with pytest.warns(UserWarning, match="tensorboard failed to open"):
        sinks = open_sinks(["tensorboard"], tmp_path, config=CONFIG)
    sinks.log(0, {"train/loss": 0.0})
    sinks.close()
    assert sinks.open == {}

"""A run goes on with what it began with: settings, data, code. What differs is refused by name, or accepted aloud."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.train.conftest import timeless

from trimtab.config.train import TaskSettings, TrainSettings
from trimtab.errors import CheckpointError, ConfigError
from trimtab.train import resume, train
from trimtab.train.record.identity import read_identity
from trimtab.train.record.inputs import hash_inputs, named_code, source_of
from trimtab.train.show.progress import Silent

pytestmark = pytest.mark.usefixtures("undrawn")
REWARD = "def score(completions, answer, **_):\n    return [float(a == b) for a, b in zip(completions, answer)]\n"


@pytest.fixture(scope="module")
def stopped(undrawn: None, small: TrainSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one's own data and reward, one step short."""
    place = tmp_path_factory.mktemp("own")
    rows = [{"prompt": f"{n}=", "answer": str(n)[::-1]} for n in range(10, 99)]
    _ = (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _ = (place / "reward.py").write_text(REWARD)
    task = TaskSettings(name="file", file=place / "rows.jsonl", reward=f"{place / 'reward.py'}:score")
    settings = small.model_copy(update={"task": task, "steps": 1, "run_dir": place / "run", "warm_start_steps": 1})
    _ = train(settings, "grpo", progress=Silent())
    return place


@pytest.fixture
def place(stopped: Path, tmp_path: Path) -> Path:
    """The same run again, with files that may be changed."""
    before = {path: path.read_bytes() for path in (stopped / "rows.jsonl", stopped / "reward.py")}
    run = tmp_path / "run"
    _ = shutil.copytree(stopped / "run", run)
    yield stopped
    for path, content in before.items():
        _ = path.write_bytes(content)


def go_on(run: Path, **leave: bool):
    return resume(run, changes={"steps": 2}, progress=Silent(), **leave)


@pytest.mark.parametrize(
    ("file", "key"),
    [
        pytest.param("rows.jsonl", "train.task.file", marks=pytest.mark.slow),
        ("reward.py", "train.task.reward"),
    ],
)
def test_a_changed_file_is_refused_by_name_or_accepted_and_recorded(
    file: str, key: str, place: Path, tmp_path: Path
) -> None:
    _ = (place / file).write_bytes((place / file).read_bytes() + b"\n")
    logs = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=rf"{file}.*\({key}\) is not what the run was started with.*--accept"):
        _ = go_on(tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == logs
    assert go_on(tmp_path / "run", accept_changes=True).steps == 2
    (entry,) = read_identity(tmp_path / "run").manifest["accepted"]
    assert list(entry["changed"]) == [key]
    assert resume(tmp_path / "run", changes={"steps": 3}, progress=Silent()).steps == 3  # accepted once is known


def test_ones_own_run_goes_on_without_being_asked(place: Path, tmp_path: Path) -> None:
    assert go_on(tmp_path / "run").steps == 2


def test_code_named_by_a_run_from_elsewhere_is_not_imported_unless_trusted(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.node", lambda: "another machine")
    with pytest.raises(ConfigError, match=r"names code that would run .* with your rights: .*reward.py:score.*--trust"):
        _ = go_on(tmp_path / "run")
    assert go_on(tmp_path / "run", trust=True).steps == 2


def test_changed_settings_are_noticed(place: Path, tmp_path: Path) -> None:
    config = tmp_path / "run" / "config.json"
    content = json.loads(config.read_text())
    _ = config.write_text(json.dumps({**content, "lr": 1.0}))
    with pytest.raises(CheckpointError, match=r"config.json is not what the run was started with"):
        _ = go_on(tmp_path / "run")


@pytest.mark.parametrize(("change", "said"), [
    ({"config_sha256": None}, "does not match its own run_id"), ({"seed": 5}, "does not match its own run_id"),
    ({"inputs": {}}, "does not match its own run_id"), ({"run_id": "mine"}, "does not match its own run_id"),
])  # fmt: skip
def test_a_changed_manifest_is_noticed(change: dict[str, object], said: str, place: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / "manifest.json"
    _ = path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CheckpointError, match=said):
        _ = go_on(tmp_path / "run")


@pytest.mark.parametrize("key", ["config_sha256", "inputs", "run_id", "versions"])
def test_a_manifest_that_lacks_a_part_is_one_sentence(key: str, place: Path, tmp_path: Path) -> None:
    path = tmp_path / "run" / "manifest.json"
    content = json.loads(path.read_text())
    del content[key]
    _ = path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"manifest.json"):
        _ = go_on(tmp_path / "run")


def test_code_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "far" / "away"
    package.mkdir(parents=True)
    for file in (tmp_path / "far" / "__init__.py", package / "__init__.py", package / "losses.py"):
        _ = file.write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    assert source_of("far.away.losses:mine") == package / "losses.py"
    assert source_of("far.away.losses.mine") == package / "losses.py"
    assert source_of("far/away/losses.py:mine") == Path("far/away/losses.py")
    assert source_of("nowhere.losses:mine") is None
    assert "far" not in sys.modules
    origin = {"recipe": "grpo", "signal": {"loss": {"formula": "far.away.losses.mine"}, "correction": ["keep.band"]}}
    assert named_code(TrainSettings(), origin) == {"signal.loss.formula": "far.away.losses.mine"}
    assert hash_inputs(TrainSettings(), origin)["signal.loss.formula"]["sha256"]


def test_two_new_runs_into_one_folder_do_not_mix(small: TrainSettings, tmp_path: Path) -> None:
    """The second comes while the first has claimed the folder and has not written a byte into it."""
    from trimtab.train.record.claim import claim_new

    settings = small.model_copy(update={"run_dir": tmp_path / "run", "warm_start_steps": 1, "steps": 1})
    with claim_new(tmp_path / "run", seed=0):
        with pytest.raises(ConfigError, match=r"another process is training in .*run, so two runs would write over"):
            _ = train(settings, "grpo", progress=Silent())
        assert os.listdir(tmp_path / "run") == [".lock"]
    _ = train(settings, "grpo", progress=Silent())
    assert len(timeless(tmp_path / "run")) == 2

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trimtab.config.train import EngineSettings, TrainSettings
from trimtab.errors import ConfigError, DiskError
from trimtab.train.record.claim import claim_new
from trimtab.train.record.disk import write_whole
from trimtab.train.record.record import Record, manifest


def test_a_folder_that_holds_something_is_refused_and_left_alone(tmp_path: Path) -> None:
    _ = (tmp_path / "summary.json").write_text("{}")
    with (
        pytest.raises(ConfigError, match=r"already holds summary.json, so this run would mix with it. Give another"),
        claim_new(tmp_path, seed=0),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_an_empty_folder_and_a_new_one_are_taken(tmp_path: Path) -> None:
    with claim_new(tmp_path, seed=0) as folder:
        assert folder == tmp_path
    with claim_new(tmp_path, seed=0):  # a lock that nobody holds is nothing
        pass
    with claim_new(tmp_path / "a" / "b", seed=0) as folder:
        assert folder.is_dir()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    _ = (tmp_path / "run").write_text("")
    with (
        pytest.raises(ConfigError, match="is a file, so a run cannot be written into it"),
        claim_new(tmp_path / "run", seed=0),
    ):
        pass
    with pytest.raises(DiskError, match="cannot be written"), claim_new(tmp_path / "run" / "below", seed=0):
        pass


def test_default_folders_of_one_second_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders: list[Path] = []
    for _ in range(3):
        with claim_new(None, seed=5) as folder:
            folders.append(folder)
    assert len(set(folders)) == 3
    assert all(folder.parent == Path("runs") and "-seed5" in folder.name for folder in folders)


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.append("metrics.jsonl", {"step": 0, "bad": math.nan, "worse": [math.inf], "good": 0.1})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line) == {"step": 0, "bad": None, "worse": [None], "good": 0.1}
    assert line.endswith("\n")


def test_a_file_is_replaced_whole_and_leaves_no_draft(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.json", "old")
    write_whole(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_dumped_batch_comes_back(tmp_path: Path) -> None:
    fields = {"reward": torch.tensor([1.0, 0.0]), "wide": torch.arange(3.0).expand(2, 3)}
    Record(tmp_path).dump_batch(7, fields, {"step": 7}, "batches")
    back = load_file(tmp_path / "batches" / "step_0007.safetensors")
    assert torch.equal(back["reward"], torch.tensor([1.0, 0.0]))
    assert torch.equal(back["wide"], torch.arange(3.0).expand(2, 3))


def test_the_manifest_names_versions_dtypes_and_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.9.9+cu130")  # the metadata of a CUDA build may say 9.9.9
    made = json.loads(json.dumps(manifest(TrainSettings(seed=4, engine=EngineSettings(format="int8")), "float32")))
    assert made["seed"] == 4
    assert made["versions"]["torch"] == "9.9.9+cu130"
    assert made["dtype_pair"] == {"trainer": "float32", "engine": "int8"}
    assert made["hardware"]["threads"] == 1

"""At every moment there is a complete checkpoint, and only what was written is read."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.train.kill import count_writes, in_child, killed_at

from trimtab.errors import CheckpointError
from trimtab.train.record.checkpoint import (
    Checkpoint,
    checkpoints,
    newest_checkpoint,
    read_checkpoint,
    settle_checkpoints,
    write_checkpoint,
)


def saved(step: int, run_id: str = "mine") -> Checkpoint:
    return Checkpoint(step, run_id, {"model": {"weight": torch.full((3,), float(step))}}, {"step": step})


def write_all(folder: Path, *, note: Path) -> None:
    """Steps 1 and 2, the last one twice as at the end of a run, keeping one; each is noted once it is written."""
    for step in (1, 2, 2):
        _ = write_checkpoint(folder, saved(step), keep=1)
        _ = note.write_text(str(step))


@pytest.mark.parametrize("kinds", [
    ("rename step", "rename .step", "remove"),
    pytest.param(("file", "rename", "remove"), marks=pytest.mark.slow),
])  # fmt: skip
def test_killed_in_any_write_a_complete_checkpoint_is_found_and_the_rest_is_cleared(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    writes = count_writes(partial(write_all, tmp_path / "counted", note=tmp_path / "n"), tmp_path / "writes")
    assert {"rename step_000002", "rename .step_000001.old", "remove .step_000001.old"} <= set(writes)
    for number in [place for place, what in enumerate(writes) if what.startswith(kinds)]:
        for phase in ("before", "half", "after") if "remove" in writes[number] else ("before", "after"):
            place = tmp_path / f"{number}-{phase}"
            note = tmp_path / f"{number}-{phase}.note"
            died = in_child(killed_at(partial(write_all, place, note=note), number, phase))  # type: ignore[arg-type]
            assert died == -signal.SIGKILL
            written = int(note.read_text()) if note.exists() else -1
            found = newest_checkpoint(place, "mine")
            where = (writes[number], phase)
            assert found is not None or written == -1, where
            if found is not None:
                assert found[0].step >= written, where
                assert float(found[0].tensors["model"]["weight"][0]) == found[0].step
                settle_checkpoints(place, found[1])
                assert [path.name for path in place.iterdir() if path.name.startswith(".")] == [], where
                assert read_checkpoint(checkpoints(place)[-1], "mine").step == found[0].step


def test_a_step_that_is_written_already_is_left_as_it_is(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, saved(3), keep=1)
    before = (path.stat().st_ino, path.stat().st_mtime_ns)
    _ = write_checkpoint(tmp_path, saved(3), keep=1)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_a_whole_copy_that_a_kill_left_is_found_and_gets_its_name(tmp_path: Path) -> None:
    """What versions before left behind: both copies of the only step under hidden names."""
    path = write_checkpoint(tmp_path, saved(4), keep=1)
    _ = path.rename(tmp_path / ".step_000004.old")
    found = newest_checkpoint(tmp_path, "mine")
    assert found is not None
    assert found[0].step == 4
    settle_checkpoints(tmp_path, found[1])
    assert [path.name for path in tmp_path.iterdir()] == ["step_000004"]


def test_a_damaged_checkpoint_never_takes_the_place_of_a_whole_one(tmp_path: Path) -> None:
    """With one to keep, the damaged newer one must not be the one that is kept."""
    for step in (1, 9):
        _ = write_checkpoint(tmp_path, saved(step), keep=2)
    _ = (tmp_path / "step_000009" / "model.safetensors").write_bytes(b"")
    found = newest_checkpoint(tmp_path, "mine", last_good=True)
    assert found is not None
    settle_checkpoints(tmp_path, found[1])
    _ = write_checkpoint(tmp_path, saved(2), keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged_step_000009-1", "step_000002"]


def edit(path: Path, **changes: Any) -> None:
    content = json.loads((path / "manifest.json").read_text())
    _ = (path / "manifest.json").write_text(json.dumps({**content, **changes}))


def drop_hash(path: Path) -> None:
    content = json.loads((path / "manifest.json").read_text())
    del content["sha256"]["state.json"]
    _ = (path / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize(("change", "said"), [
    (lambda path: edit(path, step=7), "does not match its own seal"),
    (lambda path: edit(path, run_id="another"), "does not match its own seal"),
    (lambda path: edit(path, seal=None), "does not match its own seal"),
    (drop_hash, "does not match its own seal"),
    (lambda path: edit(path, format=99), "has format 99 and this version of trimtab reads 3"),
    (lambda path: edit(path, sha256=[]), "cannot be read"),
    (lambda path: (path / "manifest.json").unlink(), "cannot be read"),
    (lambda path: (path / "state.json").unlink(), "state.json is missing, so step_000005 is not whole"),
    (lambda path: (path / "state.json").write_text("{}"), "state.json has sha256 .* not what was written"),
])  # fmt: skip
def test_a_checkpoint_that_was_changed_is_refused_in_a_sentence(change: Any, said: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, saved(5), keep=1)
    change(path)
    with pytest.raises(CheckpointError, match=said):
        _ = newest_checkpoint(tmp_path, "mine")


def test_a_renamed_checkpoint_and_one_of_another_run_are_refused(tmp_path: Path) -> None:
    _ = write_checkpoint(tmp_path, saved(5), keep=1).rename(tmp_path / "step_000006")
    with pytest.raises(CheckpointError, match=r"holds step 5, so the folder was renamed.*Rename it to step_000005"):
        _ = newest_checkpoint(tmp_path, "mine")
    _ = (tmp_path / "step_000006").rename(tmp_path / "step_000005")
    with pytest.raises(CheckpointError, match=r"belongs to run mine and this folder's run is yours"):
        _ = newest_checkpoint(tmp_path, "yours")

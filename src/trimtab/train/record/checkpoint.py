"""The only place that writes and reads checkpoints: a folder of safetensors and JSON with a sealed manifest of hashes.

A checkpoint is complete or absent, and once the first is written there is a complete one at every moment: each step
has a folder of its own, which is put in place by one rename and never replaced; older ones are removed afterwards. One
that is damaged, or that belongs to another run, is refused with the reason.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from trimtab.errors import CheckpointError
from trimtab.train.record.disk import (
    DRAFT,
    OLD,
    remove_folder,
    sync_folder,
    whole_folder,
    write_json,
    write_tensors,
    writing,
)

FORMAT = 3
"""Raised when a checkpoint's content changes its meaning."""
MANIFEST = "manifest.json"
NAMES = re.compile(rf"(?:step_(?P<step>\d+)|\.step_(?P<leftover>\d+)(?:{re.escape(DRAFT)}|{re.escape(OLD)}))")


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: named sets of tensors, and plain state."""

    step: int
    run_id: str
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write one, then delete all but the newest `keep`: at every moment a complete one exists.

    A whole checkpoint of the same step stays as it is: a step of a run always has the same content.
    """
    path = folder / f"step_{checkpoint.step:06d}"
    if not path.exists() or not _is_whole(path, checkpoint.run_id):
        with whole_folder(path) as draft:
            for name, tensors in checkpoint.tensors.items():
                write_tensors(draft / f"{name}.safetensors", tensors)
            write_json(draft / "state.json", checkpoint.state)
            hashes = {file.name: _hash(file) for file in sorted(draft.iterdir())}
            manifest = {"format": FORMAT, "step": checkpoint.step, "run_id": checkpoint.run_id, "sha256": hashes}
            write_json(draft / MANIFEST, {**manifest, "seal": _seal(manifest)})
    for old in checkpoints(folder)[:-keep]:
        remove_folder(old)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in _folders(folder) if not path.name.startswith("."))


def _folders(folder: Path) -> list[Path]:
    """Checkpoints, and what a kill may have left of one: hidden copies. Newest first, those in place before hidden."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if NAMES.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: (-_step_of(path), path.name.startswith("."), path.name))


def _step_of(path: Path) -> int:
    named = NAMES.fullmatch(path.name)
    assert named is not None
    return int(named["step"] or named["leftover"])


def newest_checkpoint(folder: Path, run_id: str, *, last_good: bool = False) -> tuple[Checkpoint, Path] | None:
    """The newest one and its folder; with `last_good` the newest that is whole. None where there is none at all.

    A hidden copy that a kill left behind counts if it is whole. If it is not, it is ignored.
    """
    found = _folders(folder)
    problems: list[str] = []
    for path in found:
        try:
            return read_checkpoint(path, run_id), path
        except CheckpointError as error:
            if path.name.startswith("."):
                continue
            if not last_good:
                older = ", or --last-good to go on from an older one" if len(found) > 1 else ""
                raise CheckpointError(f"{error} Put the right files back{older}.") from error
            problems.append(str(error))
    if problems:
        raise CheckpointError(
            "checkpoint: none is whole, so there is nothing to go on from. Put the files of one of them back.\n"
            + "\n".join(problems)
        )
    return None


def settle_checkpoints(folder: Path, chosen: Path) -> None:
    """Leave the chosen one, which is whole, as the newest under its own name.

    Newer ones are damaged, or they would have been chosen. They are renamed, so that none of them is counted as a
    checkpoint to keep. What kills left behind is deleted.
    """
    path = folder / f"step_{_step_of(chosen):06d}"
    with writing(path):
        for newer in checkpoints(folder):
            if newer != chosen and _step_of(newer) >= _step_of(chosen):
                os.replace(newer, _free_name(folder, newer.name))
        if chosen != path:
            os.replace(chosen, path)
        sync_folder(folder)
    for leftover in folder.glob(".step_*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _free_name(folder: Path, name: str) -> Path:
    number = 1
    while (free := folder / f"damaged_{name}-{number}").exists():
        number += 1
    return free


def read_checkpoint(path: Path, run_id: str) -> Checkpoint:
    """Read one whose every file has the content it was written with, and which belongs to this run."""
    from safetensors.torch import load

    tensors: dict[str, Mapping[str, Tensor]] = {}
    state: dict[str, Any] = {}
    for name, content in _contents(path, run_id):
        if name.endswith(".json"):
            state = cast("dict[str, Any]", json.loads(content))
        else:
            tensors[Path(name).stem] = load(content)
    return Checkpoint(_step_of(path), run_id, tensors, state)


def _is_whole(path: Path, run_id: str) -> bool:
    try:
        return all(True for _ in _contents(path, run_id))
    except CheckpointError:
        return False


def _contents(path: Path, run_id: str) -> Iterator[tuple[str, bytes]]:
    """Every file's name and content. The hash is compared on the same bytes that are returned."""
    manifest = _manifest(path)
    if manifest["run_id"] != run_id:
        raise CheckpointError(
            f"checkpoint: {path} belongs to run {manifest['run_id']} and this folder's run is {run_id}, so this run "
            "cannot go on from it."
        )
    for name, expected in manifest["sha256"].items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint: {file} is missing, so {path.name} is not whole.")
        content = file.read_bytes()
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            raise CheckpointError(
                f"checkpoint: {file} has sha256 {found[:12]}… where the manifest has {expected[:12]}…, so it is not "
                "what was written."
            )
        yield name, content


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = cast("dict[str, Any]", json.loads((path / MANIFEST).read_text(encoding="utf-8")))
        version, step, seal = manifest["format"], manifest["step"], manifest.pop("seal", None)
        _ = manifest["run_id"], manifest["sha256"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"checkpoint: {path / MANIFEST} cannot be read ({error!r}), so {path.name} is not whole."
        ) from error
    if version != FORMAT:
        raise CheckpointError(
            f"checkpoint: {path} has format {version} and this version of trimtab reads {FORMAT}, so it would be "
            "misread. Resume it with the version that wrote it (manifest.json of the run names it)."
        )
    if seal != _seal(manifest):
        raise CheckpointError(
            f"checkpoint: {path / MANIFEST} does not match its own seal, so its step, its run or its hashes were "
            "changed after it was written."
        )
    if step != _step_of(path):
        raise CheckpointError(
            f"checkpoint: {path} holds step {step}, so the folder was renamed and the run would miscount. "
            f"Rename it to step_{step:06d}."
        )
    return manifest


def _seal(manifest: Mapping[str, object]) -> str:
    """A hash of all that the manifest says."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

"""The only place that writes and reads checkpoints: a folder of safetensors and JSON with a manifest of hashes.

A checkpoint is complete or absent. One that is damaged, or that belongs to another run, is refused with the reason.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from trimtab.errors import CheckpointError
from trimtab.train.disk import remove_folder, whole_folder, write_json, write_tensors

FORMAT = 1
"""Raised when a checkpoint's content changes its meaning."""
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: named sets of tensors, and plain state."""

    step: int
    run_id: str
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write one, then delete all but the newest `keep`: at every moment a complete one exists."""
    path = folder / f"step_{checkpoint.step:06d}"
    with whole_folder(path) as draft:
        for name, tensors in checkpoint.tensors.items():
            write_tensors(draft / f"{name}.safetensors", tensors)
        write_json(draft / "state.json", checkpoint.state)
        hashes = {file.name: _hash(file) for file in sorted(draft.iterdir())}
        manifest = {"format": FORMAT, "step": checkpoint.step, "run_id": checkpoint.run_id, "sha256": hashes}
        write_json(draft / MANIFEST, manifest)
    for old in checkpoints(folder)[:-keep]:
        remove_folder(old)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(folder.glob("step_*")) if folder.is_dir() else []


def newest_checkpoint(folder: Path, run_id: str, *, last_good: bool = False) -> Checkpoint | None:
    """The newest one; with `last_good` the newest that is whole. None where there is none at all."""
    found = checkpoints(folder)
    problems: list[str] = []
    for path in reversed(found):
        try:
            return read_checkpoint(path, run_id)
        except CheckpointError as error:
            if not last_good:
                older = ", or --last-good to go on from an older one" if len(found) > 1 else ""
                raise CheckpointError(f"{error} Put the right files back{older}.") from error
            problems.append(str(error))
    if problems:
        raise CheckpointError("checkpoint: none is whole:\n" + "\n".join(problems))
    return None


def read_checkpoint(path: Path, run_id: str) -> Checkpoint:
    """Read one whose every file has the content it was written with, and which belongs to this run."""
    from safetensors.torch import load

    manifest = _manifest(path)
    if manifest["run_id"] != run_id:
        raise CheckpointError(
            f"checkpoint: {path} belongs to run {manifest['run_id']} and this folder's run is {run_id}, so its numbers "
            "would not go on from this run's."
        )
    tensors: dict[str, Mapping[str, Tensor]] = {}
    state: dict[str, Any] = {}
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
        if file.suffix == ".json":
            state = cast("dict[str, Any]", json.loads(content))
        else:
            tensors[file.stem] = load(content)
    return Checkpoint(int(manifest["step"]), run_id, tensors, state)


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = cast("dict[str, Any]", json.loads((path / MANIFEST).read_text(encoding="utf-8")))
        known = manifest["format"], manifest["step"], manifest["run_id"], manifest["sha256"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"checkpoint: {path / MANIFEST} cannot be read ({error!r}), so {path.name} is not whole."
        ) from error
    if known[0] != FORMAT:
        raise CheckpointError(
            f"checkpoint: {path} has format {known[0]} and this version of trimtab reads {FORMAT}, so it would be "
            "misread. Resume it with the version that wrote it (manifest.json of the run names it)."
        )
    return manifest


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

"""The only place that writes a run folder: JSON, safetensors and text, whole files at once, nothing pickled.

config.json     every setting, defaults included        manifest.json   versions, seed, dtype pair, hardware
metrics.jsonl   one line a step                         samples.jsonl   held-out answers at every evaluation
summary.json    the result in a few numbers             report.html     the same for people
model/          the policy, for plain transformers      batches/        what the signal saw, when asked for
"""

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from trimtab.errors import ConfigError

PACKAGES = ("trimtab", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic")
Outcome = Literal["finished", "early_stop", "interrupted"]


@dataclass(frozen=True)
class Summary:
    """What a run came to."""

    held_out_accuracy: float
    """Greedy accuracy on test prompts that no decision of the run has looked at."""
    seconds: float
    """Wall-clock time of the whole run, warm start and evaluations included."""
    tokens_per_second: float
    """Sampled and trained tokens over the time of the steps, evaluations left out."""
    warnings: tuple[str, ...]
    steps: int
    """Batches trained on."""
    seed: int
    outcome: Outcome
    start_accuracy: float
    """Validation accuracy after the warm start."""
    validation_accuracy: float
    """The same at the end; early stopping looks at it, so it may flatter the run a little."""
    tokens: int
    """Tokens sampled and trained on."""
    skipped_updates: int
    """Optimiser steps left out because nothing was kept."""
    num_parameters: int
    recipe: str
    task: str
    run_dir: Path

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "warnings": list(self.warnings), "run_dir": str(self.run_dir)}


class Record:
    """One run folder, open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder

    def write_json(self, name: str, content: Mapping[str, object]) -> None:
        write_whole(self.folder / name, json.dumps(_plain(content), indent=2, sort_keys=True) + "\n")

    def append(self, name: str, line: Mapping[str, object]) -> None:
        """One line, in one write, so that a reader never sees half of one that was finished."""
        with (self.folder / name).open("a", encoding="utf-8") as file:
            _ = file.write(json.dumps(_plain(line)) + "\n")

    def dump_batch(self, step: int, fields: Mapping[str, Tensor]) -> None:
        """The flat batch of one step: per-token fields sequence after sequence, cut by `token_counts`."""
        from safetensors.torch import save_file

        (self.folder / "batches").mkdir(exist_ok=True)
        tensors = {name: field.detach().contiguous().clone() for name, field in fields.items()}
        save_file(tensors, self.folder / "batches" / f"step_{step:04d}.safetensors")


def open_record(run_dir: Path | None, seed: int) -> Record:
    """Make the run folder. One that holds anything is refused, for two runs in one folder belong to neither."""
    if run_dir is None:
        return Record(_new_folder(Path("runs"), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-seed{seed}"))
    if run_dir.exists() and not run_dir.is_dir():
        raise ConfigError(f"run_dir: {run_dir} is a file, so a run cannot be written into it. Give a folder.")
    if run_dir.is_dir() and any(run_dir.iterdir()):
        held = sorted(path.name for path in run_dir.iterdir())
        raise ConfigError(
            f"run_dir: {run_dir} already holds {', '.join(held[:4])}{', …' if len(held) > 4 else ''}, so this run "
            "would mix with it. Give another folder, or delete this one."
        )
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"run_dir: {run_dir} cannot be made ({error.strerror}), so the run has no folder. Give another one."
        ) from error
    return Record(run_dir)


def _new_folder(parent: Path, name: str) -> Path:
    """A folder nobody else has: runs started in the same second get -2, -3, …"""
    attempt = 1
    while True:
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            attempt += 1


def manifest(*, seed: int, trainer_dtype: str, engine_dtype: str, threads: int) -> dict[str, object]:
    """What it takes to understand a difference between two runs of the same config."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "dtype_pair": {"trainer": trainer_dtype, "engine": engine_dtype},
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": threads,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "gpus": torch.cuda.device_count(),
        },
    }


def write_whole(path: Path, text: str) -> None:
    """The new file or the old one, never half of either."""
    draft = path.with_name(f".{path.name}.draft")
    _ = draft.write_text(text, encoding="utf-8")
    _ = draft.replace(path)


def _plain(content: object) -> object:
    """JSON has no nan and no infinity: such numbers become null, which no reader mistakes for a value."""
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return str(content) if isinstance(content, Path) else content


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"

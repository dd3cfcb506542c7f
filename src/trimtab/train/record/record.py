"""The only place that says what a run folder holds. JSON, safetensors and text; nothing pickled.

config.json     every setting, defaults included        manifest.json      versions, seed, dtype pair, hardware
metrics.jsonl   one line per step                       samples.jsonl      held-out answers at every evaluation
summary.json    the result in a few numbers             transcripts.jsonl  a few training episodes, as they were
report.html     the same for people                     diagnostics.jsonl  drift by position and age
model/          the policy, for plain transformers      best/              the same at its best validation accuracy
checkpoints/    all that a resume needs                 batches/           what the signal saw, when asked for
nonfinite/      batches whose step was refused          twin/              the control run, without correction
set_aside_1/    what --start-over moved out of the way
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from trimtab.train.record.claim import LOCK
from trimtab.train.record.disk import append_line, make_folder, sync_folder, write_json, write_tensors, writing
from trimtab.train.record.identity import CONFIG, MANIFEST
from trimtab.train.show.lines import cut_lines, has_trained, sync_lines

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

LINE_FILES = ("metrics.jsonl", "samples.jsonl", "transcripts.jsonl", "diagnostics.jsonl")
ASIDE = "set_aside_"
PACKAGES = ("trimtab", "torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic")
Outcome = Literal["finished", "early_stop", "interrupted", "time_limit", "nonfinite", "diverged", "learned_nothing"]


@dataclass(frozen=True)
class Summary:
    """The result of a run."""

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
    """The same at the end; early stopping looks at it, so it may be a little too high."""
    tokens: int
    """Tokens sampled and trained on."""
    skipped_updates: int
    """Optimiser steps left out because nothing was kept."""
    num_parameters: int
    recipe: str
    task: str
    run_dir: Path
    trained_parameters: int = 0
    """How many of them training changes: all, or those of the adapter."""
    runtime: str = "inline"
    format: str = "fp32"
    """Number format of the sampler's weights."""
    best_step: int = 0
    best_accuracy: float = 0.0
    """The best validation accuracy; `best/` holds that policy."""
    reward_status: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many answers have each reward status."""
    staleness: Mapping[str, float] = field(default_factory=dict[str, float])
    """Updates between sampling and learning, over tokens: mean and max."""
    nonfinite: int = 0
    """Optimiser steps refused because loss or gradient was not finite."""
    resumed: int = 0
    """How often the run was resumed."""
    eval_samples: int = 0
    avg_at_k: float | None = None
    """Mean accuracy of `eval_samples` sampled answers to each test prompt."""
    pass_at_k: float | None = None
    """Share of test prompts for which at least one of these is right."""
    decode: str = ""
    """How the sampler computed tokens: `lean Qwen3`, or `transformers` and why; empty for an engine of your own."""
    learn: str = ""
    """How the learner computed log-probs, in the same words."""
    signal: str = ""
    """Which path the signal took: `reference`, or `fast` with the formulas that were fused or run once per sequence."""
    placement: Mapping[str, str] = field(default_factory=dict[str, str])
    """On a cluster: the node and process of each part of the run, at its end."""
    stopped_by: str = ""
    """The signal that asked an interrupted run to stop: SIGINT (Ctrl-C), SIGTERM, SIGHUP."""

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "warnings": list(self.warnings), "run_dir": str(self.run_dir)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Summary":
        """A summary as `summary.json` holds it."""
        known: dict[str, Any] = {one.name: content[one.name] for one in fields(cls) if one.name in content}
        known |= {"warnings": tuple(content["warnings"]), "run_dir": Path(content["run_dir"])}
        return cls(**known)


class Record:
    """One run folder, open for writing."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder

    def write_json(self, name: str, content: Mapping[str, object]) -> None:
        write_json(self.folder / name, content)

    def append(self, name: str, line: Mapping[str, object]) -> None:
        append_line(self.folder / name, line)

    def dump_batch(self, step: int, fields: Mapping[str, Tensor], meta: Mapping[str, object], to: str) -> None:
        """The rollouts of one step in their serial form, and what the models said about each of their tokens."""
        folder = self.folder / to
        make_folder(folder)
        write_json(folder / f"step_{step:04d}.json", meta)
        write_tensors(folder / f"step_{step:04d}.safetensors", fields)

    def sync(self) -> None:
        """Put the logs on the disk: a checkpoint must never be ahead of them."""
        for name in LINE_FILES:
            sync_lines(self.folder / name)
        sync_folder(self.folder)

    def cut_back(self, step: int) -> tuple[str, ...]:
        """Remove every line from this step on: they will be written again. Returns a sentence per damaged file."""
        said = [cut_lines(self.folder / name, before_step=step) for name in LINE_FILES]
        return tuple(text for text in said if text)

    @property
    def has_trained(self) -> bool:
        """Whether the logs have a step that was trained."""
        return has_trained(self.folder / "metrics.jsonl")

    def set_aside(self) -> Path | None:
        """Move all files of the run except config and manifest into a new folder; None if there are none."""
        stay = (LOCK, CONFIG, MANIFEST)
        held = [path for path in self.folder.iterdir() if path.name not in stay and not path.name.startswith(ASIDE)]
        if not held:
            return None
        number = 1
        while (aside := self.folder / f"{ASIDE}{number}").exists():
            number += 1
        make_folder(aside)
        with writing(aside):
            for path in held:
                os.replace(path, aside / path.name)
            sync_folder(self.folder)
        return aside


def manifest(settings: "TrainSettings", trainer_dtype: str) -> dict[str, object]:
    """What may explain a difference between two runs of the same config."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": settings.seed,
        # torch's own version names the build (+cpu, +cu130); its package metadata may leave that out.
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
            "torch": torch.__version__,
        },
        "dtype_pair": {"trainer": trainer_dtype, "engine": settings.engine.format},
        "hardware": {
            "machine": platform.machine(),
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": settings.threads,
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "gpus": torch.cuda.device_count(),
        },
    }


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

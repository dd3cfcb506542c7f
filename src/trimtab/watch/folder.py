"""The run folder of a watched run: the only place of the watch that writes files. JSON and safetensors only.

config.json      what was watched and how          metrics.jsonl        one line per step that was watched whole
manifest.json    versions and machine              findings.jsonl       one line per finding
summary.json     the result in a few numbers       diagnostics.jsonl    histograms of ratios
report.html      the same for people               watched/             batches, when asked for
ranks/           of each rank what is merged at the end
"""

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.signal.metrics import Metrics, as_data, from_data
from trimtab.watch.finding import Finding

PACKAGES = ("trimtab", "torch", "transformers", "trl", "accelerate", "numpy", "safetensors")
DUMP_FORMAT, DUMP_VERSION = "trimtab-watched-batch", 1


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    _ = draft.write_text(json.dumps(plain(content), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(draft, path)


def append_line(path: Path, line: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        _ = file.write(json.dumps(plain(line)) + "\n")


def write_lines(path: Path, lines: list[Mapping[str, object]]) -> None:
    """Replace a file of lines in one step."""
    draft = path.with_name(f".{path.name}.draft")
    _ = draft.write_text("".join(json.dumps(plain(line)) + "\n" for line in lines), encoding="utf-8")
    os.replace(draft, path)


def plain(content: object) -> object:
    """JSON has no nan and no infinity: such numbers become null."""
    if isinstance(content, Mapping):
        return {str(key): plain(value) for key, value in cast("Mapping[object, object]", content).items()}
    if isinstance(content, list | tuple):
        return [plain(value) for value in cast("list[object]", content)]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content if isinstance(content, str | int | float | bool | None) else str(content)


def manifest() -> dict[str, object]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "hardware": {
            "machine": platform.machine(),
            "system": platform.system(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpus": torch.cuda.device_count(),
        },
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def shown(numbers: Mapping[str, float]) -> dict[str, float]:
    """The metrics for people: without the sums that only the judge reads."""
    found = {name: value for name, value in numbers.items() if not name.startswith("evidence/")}
    if "reward/episode_mean" in found:
        found["rollout/reward_mean"] = found["reward/episode_mean"]
    if "watch/tokens" in found:
        found["rollout/tokens"] = found["watch/tokens"]
    return found


def histogram_line(step: int, metrics: Metrics) -> dict[str, object] | None:
    """The log-ratios of a step as `diagnostics.jsonl` holds them: sampler against trainer where both are known."""
    for name in ("total", "engine", "update"):
        held = metrics.histograms.get(f"logratio_{name}")
        if held is not None:
            counts = cast("list[int]", held.counts.tolist())
            return {"step": step, "ratio_histogram": {"edges": list(held.EDGES), "counts": counts}}
    return None


def append_rank(folder: Path, rank: int, step: int, metrics: Metrics) -> None:
    """What one rank saw of a step, exactly."""
    line = {"step": step, "metrics": as_data(metrics)}
    path = folder / "ranks" / f"rank_{rank:04d}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        _ = file.write(json.dumps(line) + "\n")  # infinities stay: only we read it


def read_ranks(folder: Path) -> dict[int, Metrics]:
    """The metrics of every step, merged over ranks in rank order."""
    merged: dict[int, Metrics] = {}
    for path in sorted(folder.glob("ranks/rank_*.jsonl")):
        for step, metrics in _rank_lines(path):
            merged[step] = merged[step].merge(metrics) if step in merged else metrics
    return dict(sorted(merged.items()))


def _rank_lines(path: Path) -> Iterator[tuple[int, Metrics]]:
    with path.open(encoding="utf-8") as file:
        for text in file:
            line: dict[str, Any] = json.loads(text)
            yield int(line["step"]), from_data(line["metrics"])


def read_lines(path: Path) -> list[Finding]:
    """Findings as a file of lines holds them."""
    if not path.is_file():
        return []
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]
    return [Finding(str(line["name"]), int(line["step"]), str(line["text"])) for line in lines]


def write_dump(
    folder: Path, step: int, rank: int, part: int, tensors: Mapping[str, Tensor], about: Mapping[str, object], room: int
) -> int:
    """One micro-batch as safetensors, with JSON that says what it is; the bytes written, 0 where there is no room."""
    from safetensors.torch import save

    content = save({name: values.contiguous() for name, values in tensors.items()}, metadata={"format": "pt"})
    if len(content) > room:
        return 0
    path = folder / "watched" / f"step_{step:06d}_rank_{rank:04d}_part_{part:03d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    _ = path.write_bytes(content)
    meta = {"format": DUMP_FORMAT, "format_version": DUMP_VERSION, "step": step, "rank": rank, "part": part, **about}
    write_json(path.with_suffix(".json"), meta)
    return len(content)

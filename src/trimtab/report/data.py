"""The only place that reads a run folder back: plain JSON in, series and numbers out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trimtab.errors import ConfigError


@dataclass(frozen=True)
class Series:
    """One metric over steps; steps at which it was not measured are not in it.

    `eval/accuracy` measured every ten steps: steps = (0, 10, 20), values = (0.5, 0.8, 0.9).
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def is_constant(self) -> bool:
        return len(set(self.values)) < 2


@dataclass(frozen=True)
class RunData:
    """A run folder as plain data."""

    config: dict[str, Any]
    manifest: dict[str, Any]
    summary: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    samples: tuple[dict[str, Any], ...]

    def series(self, name: str) -> Series:
        """A metric's course; empty when no step measured it."""
        points = [(int(line["step"]), float(line[name])) for line in self.metrics if line.get(name) is not None]
        return Series(tuple(step for step, _ in points), tuple(value for _, value in points))

    def gap(self, which: str) -> Series:
        """|trainer's log-prob - sampler's|: of the old policy where the recipe has one, else of the current one."""
        return self.series(f"logratio_engine/token_abs_{which}") or self.series(f"logratio_total/token_abs_{which}")

    def names(self, ending: str) -> list[str]:
        """The metrics whose name ends so, in order."""
        return sorted({name for line in self.metrics for name in line if name.endswith(ending)})


def read_run(folder: Path) -> RunData:
    """Everything the page needs. A run that was cut off may lack metrics and samples, nothing else."""
    return RunData(
        config=_object(folder / "config.json"),
        manifest=_object(folder / "manifest.json"),
        summary=_object(folder / "summary.json"),
        metrics=_lines(folder / "metrics.jsonl"),
        samples=_lines(folder / "samples.jsonl"),
    )


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Mean over the last `window` values, fewer at the start; it looks back only, so it shows nothing too early."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def _object(path: Path) -> dict[str, Any]:
    try:
        return cast(dict[str, Any], json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ConfigError(
            f"report: {path} is missing, so this is not a finished run. Give the folder of one."
        ) from error


def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    if not path.is_file():
        return ()
    return tuple(cast(dict[str, Any], json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())

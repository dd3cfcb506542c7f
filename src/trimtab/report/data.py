"""The only place that reads a run folder back: plain JSON in, series and numbers out.

A folder may come from a run that was cut off, from an older version or from a full disk. Missing or damaged parts are
noted and left out. Only a folder that holds nothing of a run is refused.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, cast

from trimtab.errors import ConfigError

Json = dict[str, Any]
FEW = 5
"""Number of values behind "at the start" and "at the end": one step more or less must not change the page's text."""
ROUNDING = 1e-4
"""Below this mean |log-ratio|, float32 arithmetic in another order explains the difference."""
OURS = (
    "rollout/reward_mean", "rollout/tokens", "train/updates", "eval/accuracy", "kept/", "ess_", "logratio_", "ratio_",
    "drift/", "staleness/", "effective_batch/", "constant_groups/", "advantage/", "entropy/token_mean",
)  # fmt: skip
"""Prefixes of the metrics that our trainer and our signal write. A file without any of them is not ours."""


@dataclass(frozen=True)
class Series:
    """One metric over steps, without the steps at which it was not measured.

    `eval/accuracy` measured every ten steps: steps = (0, 10, 20), values = (0.5, 0.8, 0.9).
    """

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def is_constant(self) -> bool:
        return len(set(self.values)) < 2

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def first(self) -> float:
        """The value "at the start" on every page: the median of the first five values."""
        return median(self.values[:FEW])

    @property
    def last(self) -> float:
        """The value "at the end" on every page: the median of the last five values."""
        return median(self.values[-FEW:])


@dataclass(frozen=True)
class RunData:
    """A run folder as plain data; `notes` lists the parts that could not be read."""

    name: str
    config: Json
    manifest: Json
    summary: Json
    metrics: tuple[Json, ...]
    samples: tuple[Json, ...]
    transcripts: tuple[Json, ...]
    diagnostics: tuple[Json, ...]
    notes: tuple[str, ...]
    twin: "RunData | None" = None
    findings: tuple[Json, ...] = ()
    """What a watch found, for a run of another trainer."""

    def series(self, *names: str) -> Series:
        """The series of the first of these metrics that was measured; empty when none was."""
        return next((self._courses[name] for name in names if name in self._courses), Series())

    @cached_property
    def _courses(self) -> dict[str, Series]:
        points: dict[str, list[tuple[int, float]]] = {}
        for line in self.metrics:
            for name, value in line.items():
                measured = number(value)
                if measured is not None:
                    points.setdefault(name, []).append((int(line["step"]), measured))
        return {name: Series(*map(tuple, zip(*pairs, strict=True))) for name, pairs in points.items()}

    def names(self, ending: str) -> list[str]:
        """The metrics whose names have this ending, in order."""
        return sorted({name for line in self.metrics for name in line if name.endswith(ending)})

    def setting(self, *path: str) -> Any:
        """A setting by its keys, or None. The table `train` of a run file counts as the top level."""
        for start in (self.config, self.config.get("train")):
            found: Any = start
            for key in path:
                found = cast(Json, found).get(key) if isinstance(found, dict) else None
            if found is not None:
                return found
        return None

    def result(self, name: str) -> float | None:
        """A number of the summary, from its top level or from `final`."""
        final = self.summary.get("final")
        found = number(self.summary.get(name))
        return number(cast(Json, final).get(name)) if found is None and isinstance(final, dict) else found

    @property
    def recipe(self) -> Json:
        recipe = self.config.get("recipe")
        return cast(Json, recipe) if isinstance(recipe, dict) else {"name": recipe or self.summary.get("recipe")}

    @property
    def task(self) -> str:
        task = self.setting("task")
        name = cast(Json, task).get("name") if isinstance(task, dict) else task
        return str(self.summary.get("task") or name or "unknown")

    @property
    def num_steps(self) -> int:
        """Number of steps: from the summary, or from the last line of a step. An evaluation alone is not a step."""
        told = number(self.summary.get("steps"))
        done = self.series("train/updates", "rollout/tokens", "rollout/reward_mean", "kept/token_fraction").steps
        return int(told) if told is not None else done[-1] + 1 if done else 0

    @property
    def asked(self) -> int:
        """Number of held-out prompts behind one accuracy; 512, the default, where the settings are missing."""
        return int(number(self.setting("eval_prompts")) or 512)

    @property
    def label(self) -> str:
        """Recipe and task, for a title."""
        return f"{self.recipe.get('name') or 'unknown recipe'} on {self.task}"


def read_run(folder: Path, *, with_twin: bool = True) -> RunData:
    """Everything the pages need."""
    notes: list[str] = []
    if not folder.is_dir() or not any((folder / name).is_file() for name in ("config.json", "metrics.jsonl")):
        raise ConfigError(
            f"report: {folder} holds neither config.json nor metrics.jsonl, so it is not the folder of a run. "
            "Give the folder that `trimtab train` named at its end."
        )
    twin = folder / "twin"
    metrics = _lines(folder / "metrics.jsonl", notes)
    _check_ours(folder, metrics)
    return RunData(
        name=folder.resolve().name,
        config=_object(folder / "config.json", notes),
        manifest=_object(folder / "manifest.json", notes),
        summary=_object(folder / "summary.json", notes),
        metrics=_by_step(metrics),
        samples=tuple(_lines(folder / "samples.jsonl", notes)),
        transcripts=tuple(_lines(folder / "transcripts.jsonl", notes)),
        diagnostics=_by_step(_lines(folder / "diagnostics.jsonl", notes)),
        notes=tuple(notes),
        twin=_twin(twin, notes) if with_twin and twin.is_dir() else None,
        findings=tuple(_lines(folder / "findings.jsonl", notes)),
    )


def _check_ours(folder: Path, metrics: Sequence[Json]) -> None:
    """Refuse the metrics of another framework: a page made from them would claim things that were never measured."""
    found = sorted({name for line in metrics for name in line} - {"step"})
    if not found or any(name.startswith(OURS) and "step" in line for line in metrics for name in line):
        return
    shown = ", ".join(found[:6]) + (", …" if len(found) > 6 else "")
    raise ConfigError(
        f"report: {folder / 'metrics.jsonl'} holds {shown}, and no metric of a trimtab run with its step, so a "
        "report would say nothing true about the signal. Give the folder of a trimtab run, or log the metrics of "
        "trimtab.signal under their own names: one JSON object per line, with a `step`."
    )


def number(value: object) -> float | None:
    """The value if it is a finite number, else None: null, nan, text and flags are not measurements."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Mean over the last `window` values, fewer at the start. It only looks back, so it shows nothing too early."""
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def thinned(series: Series, most: int) -> Series:
    """At most `most` points, each a mean of neighbours, so that long runs stay small; short runs stay as they are."""
    size = -(-len(series.values) // most)
    if size <= 1:
        return series
    cuts = range(0, len(series.values), size)
    parts = [series.values[cut : cut + size] for cut in cuts]
    return Series(tuple(series.steps[cut] for cut in cuts), tuple(sum(part) / len(part) for part in parts))


def objects(value: object) -> list[Json]:
    """The objects in a list; empty if the value is not a list."""
    found = cast("list[object]", value) if isinstance(value, list) else []
    return [cast(Json, item) for item in found if isinstance(item, dict)]


def _twin(folder: Path, notes: list[str]) -> RunData | None:
    try:
        return read_run(folder, with_twin=False)
    except ConfigError:
        notes.append("twin/ exists but holds no control run: it is left out.")
        return None


def _object(path: Path, notes: list[str]) -> Json:
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing.")
        return {}
    except (ValueError, OSError) as error:
        notes.append(f"{path.name} cannot be read ({error}): it is left out.")
        return {}
    return cast(Json, content) if isinstance(content, dict) else {}


def _lines(path: Path, notes: list[str]) -> list[Json]:
    """Every complete line. A killed process may leave half of a line."""
    if not path.is_file():
        return []
    found, torn = list[Json](), 0
    for line in _text(path):
        try:
            content = json.loads(line)
        except ValueError:
            torn += 1
            continue
        if isinstance(content, dict):
            found.append(cast(Json, content))
    if torn:
        notes.append(f"{torn} line{'s' if torn > 1 else ''} of {path.name} cannot be read: left out.")
    return found


def _text(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        yield from (line for line in file if line.strip())


def _by_step(lines: list[Json]) -> tuple[Json, ...]:
    """In order of steps. If a resumed run wrote a step again, the later line counts."""
    last = {int(step): line for line in lines if (step := number(line.get("step"))) is not None}
    return tuple(last[step] for step in sorted(last))

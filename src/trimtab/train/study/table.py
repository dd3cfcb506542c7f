"""The only place that turns the runs of a study into its table: means, intervals, expectations, and every seed.

Nothing is left out: a run that diverged, failed or is missing keeps its cell and says so.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from trimtab.config.study import Expectation, Protocol

Status = Literal["finished", "diverged", "failed", "missing"]
COVERAGE = 0.95
"""Of the intervals."""
ENDED = {
    "finished": "finished",
    "early_stop": "finished",
    "nonfinite": "diverged",
    "diverged": "diverged",
    "learned_nothing": "finished",
}
"""Outcomes of a run that will not be run again, and what they are called here."""


@dataclass(frozen=True)
class Cell:
    """One run: an arm with a seed. `value` is None where there is no number to report."""

    arm: str
    seed: int
    status: Status
    value: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One arm: all its cells, their mean, and half the width of its interval (None with fewer than two numbers)."""

    arm: str
    means: str
    recipe: str
    cells: tuple[Cell, ...]
    mean: float | None
    half_width: float | None

    @property
    def num_values(self) -> int:
        return sum(cell.value is not None for cell in self.cells)

    @property
    def is_whole(self) -> bool:
        return self.num_values == len(self.cells)


@dataclass(frozen=True)
class Checked:
    """An expectation and whether it is met; None if a seed is missing."""

    expectation: Expectation
    mean: float | None
    met: bool | None


def table(protocol: Protocol, cells: Sequence[Cell]) -> tuple[Row, ...]:
    """One row per arm, in the protocol's order, with a cell for every seed."""
    found = {(cell.arm, cell.seed): cell for cell in cells}
    rows: list[Row] = []
    for arm in protocol.arms:
        own = tuple(found.get((arm.name, seed), Cell(arm.name, seed, "missing")) for seed in protocol.study.seeds)
        values = [cell.value for cell in own if cell.value is not None]
        mean = math.fsum(values) / len(values) if values else None
        rows.append(Row(arm.name, arm.means, arm.run.build_recipe().name, own, mean, half_width(values)))
    return tuple(rows)


def check_expectations(protocol: Protocol, rows: Sequence[Row]) -> tuple[Checked, ...]:
    """Each expectation against the mean of its arm; an arm with a missing value decides nothing."""
    of = {row.arm: row for row in rows}
    results: list[Checked] = []
    for expectation in protocol.study.expect:
        row = of[expectation.arm]
        met = expectation.holds(row.mean) if row.is_whole and row.mean is not None else None
        results.append(Checked(expectation, row.mean, met))
    return tuple(results)


def read_cell(arm: str, seed: int, folder: Path, metric: str, why: str = "") -> Cell:
    """What a run folder says; `why` is the last thing a failed process said."""
    summary = read_summary(folder)
    status = ENDED.get(str(summary.get("outcome")))
    if status is None:
        return Cell(arm, seed, "failed" if why else "missing", None, why)
    value = summary.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        known = sorted(name for name, one in summary.items() if isinstance(one, int | float))
        return Cell(arm, seed, "failed", None, f"summary.json has no number {metric!r}; it has {', '.join(known)}")
    note = f"stopped after {summary.get('steps')} steps" if status == "diverged" else ""
    return Cell(arm, seed, cast(Status, status), float(value), note)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a run folder; empty where there is none or it cannot be read."""
    try:
        content = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", content) if isinstance(content, dict) else {}


def half_width(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of a mean: t(n - 1) * s / sqrt(n). Undefined (None) for fewer than two values.

    >>> round(half_width([0.9, 0.95, 1.0]), 4)
    0.1242
    """
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return student_t(count - 1) * spread / math.sqrt(count)


def student_t(freedom: int, coverage: float = COVERAGE) -> float:
    """The t with P(|T| < t) = coverage, by bisection of the closed form for whole degrees of freedom.

    >>> round(student_t(2), 3)
    4.303
    """
    low, high = 0.0, 1.0
    while _inside(high, freedom) < coverage:
        high *= 2
    for _ in range(200):  # halves the bracket below the spacing of floats
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < coverage else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """P(|T| < t) for whole degrees of freedom: Abramowitz and Stegun 1964, 26.7.3 (odd) and 26.7.4 (even)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total

"""The only place that finds the step since which a metric has changed.

Rule: the first fifth of the points (5 at least) is the early range, widened on both sides by half of its own width. The
series is smoothed by a median of five, so a single spike is not a change and a single return does not end a change.
The change-point is the first later step from which the smoothed series stays outside of the widened range, on one side,
to the end, for 5 points at least. A spike, a slow return and plain noise therefore give none.
"""

from dataclasses import dataclass
from statistics import median
from typing import Literal

from trimtab.report.data import Series

EARLY_SHARE = 0.2
LEAST = 5
"""Least number of points in an early range, and least length of a change."""
MARGIN = 0.5
"""Margin on each side, in widths of the early range. Noise of the same size then stays inside for hundreds of steps."""
FLOOR = 1e-3
"""The margin is at least this share of the early level, so that rounding of a constant is not a change."""


@dataclass(frozen=True)
class Change:
    """Where a series left its early range for good.

    Change(step=40, side="below", low=0.9, high=1.1, before=1.0, after=0.2): near 1 early on, below 0.9 since step 40.
    """

    step: int
    side: Literal["below", "above"]
    low: float
    high: float
    before: float
    after: float


def change_point(series: Series) -> Change | None:
    """The change-point; None if there is no change or if there are fewer than 10 points."""
    early, low, high = early_range(series)
    if len(series.values) < early + LEAST:
        return None
    smooth = _middle(series.values)
    side = "below" if smooth[-1] < low else "above"
    outside = [value < low if side == "below" else value > high for value in smooth]
    first = len(outside)
    while first > early and outside[first - 1]:
        first -= 1
    if len(outside) - first < LEAST:
        return None
    after = median(series.values[first:])
    return Change(series.steps[first], side, low, high, median(series.values[:early]), after)


def early_range(series: Series) -> tuple[int, float, float]:
    """How many points count as early, and the widened range they span."""
    early = max(LEAST, int(EARLY_SHARE * len(series.values)))
    values = series.values[:early]
    if not values:
        return early, 0.0, 0.0
    margin = max(MARGIN * (max(values) - min(values)), FLOOR * abs(median(values)), 1e-12)
    return early, min(values) - margin, max(values) + margin


def _middle(values: tuple[float, ...]) -> list[float]:
    """Median of five, two on either side, fewer at the ends."""
    return [median(values[max(0, i - 2) : i + 3]) for i in range(len(values))]

"""Since which step: on made series, where the truth is known."""

import random

import pytest

from trimtab.report.change import change_point
from trimtab.report.data import Series


def series(values: list[float], every: int = 1) -> Series:
    return Series(tuple(every * i for i in range(len(values))), tuple(values))


def noisy(level: float, count: int, seed: int, spread: float = 0.05) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(level, spread) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("after", "side"), [(0.0, "below"), (2.0, "above")])
def test_a_lasting_step_is_found_where_it_is(seed: int, after: float, side: str) -> None:
    found = change_point(series(noisy(1.0, 60, seed) + noisy(after, 40, seed + 99)))
    assert found is not None
    assert (found.side, found.step) == (side, 60)
    assert found.before == pytest.approx(1.0, abs=0.1)
    assert found.after == pytest.approx(after, abs=0.1)


def test_noise_has_no_change_point() -> None:
    assert [seed for seed in range(300) if change_point(series(noisy(1.0, 100, seed))) is not None] == []


def test_a_spike_is_no_change_and_one_return_does_not_end_one() -> None:
    calm, low = [1.0, 1.1] * 25, [0.0] * 25
    assert change_point(series([*calm, 9.0, 9.0, *calm])) is None
    found = change_point(series([*calm, *low, 1.0, *low]))
    assert found is not None
    assert found.step == 50


def test_what_came_back_is_no_change() -> None:
    assert change_point(series([1.0, 1.1] * 20 + [0.0] * 20 + [1.0, 1.1] * 20)) is None


def test_a_slow_slide_counts_from_where_it_leaves_the_early_range() -> None:
    """Early points 0 to 19 are 1.00 to 0.81; half of that width lower is 0.715, passed at step 29."""
    found = change_point(series([1 - 0.01 * i for i in range(100)]))
    assert found is not None
    assert (found.step, found.side) == (29, "below")


def test_steps_are_those_of_the_series_and_rounding_of_a_constant_is_no_change() -> None:
    found = change_point(series([1.0] * 10 + [0.5] * 10, every=10))
    assert found is not None
    assert found.step == 100
    assert change_point(series([1.0] * 10 + [1.0 + 1e-7] * 10)) is None


@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_too_few_points_give_none(count: int) -> None:
    assert change_point(series([float(i > 4) for i in range(count)])) is None

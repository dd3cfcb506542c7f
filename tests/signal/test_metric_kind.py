"""Each kind of metric merges, is what it says, and holds on no value and on one."""

import math

import numpy as np
import pytest
import torch

from trimtab.signal.histogram import Histogram
from trimtab.signal.metric_kind import Extremum, Mean, SampleSize, Spread, Sum, larger
from trimtab.signal.metrics import Metrics

VALUES = torch.tensor([3.0, -1.0, 0.5, 8.0, 2.0, 2.0, -4.0], dtype=torch.float64)
MAKERS = {
    "mean": lambda v: Mean.of(v),
    "sum": lambda v: Sum.of(v),
    "max": lambda v: Extremum.of(v, 1),
    "min": lambda v: Extremum.of(v, -1),
    "std": lambda v: Spread.of(v),
    "ess": lambda v: SampleSize.of(v.abs()),
}


def value(metric: object) -> float:
    return Metrics({"x": metric}, {}).numbers()["x"]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("cut", range(8))
def test_merging_parts_gives_the_metric_of_the_whole(kind: str, cut: int) -> None:
    merged = MAKERS[kind](VALUES[:cut]).merge(MAKERS[kind](VALUES[cut:]))
    assert value(merged) == pytest.approx(value(MAKERS[kind](VALUES)), rel=1e-12)


def test_each_kind_equals_its_definition() -> None:
    assert value(MAKERS["mean"](VALUES)) == pytest.approx(10.5 / 7)
    assert value(MAKERS["std"](VALUES)) == pytest.approx(VALUES.std(correction=0).item())
    assert (value(MAKERS["max"](VALUES)), value(MAKERS["min"](VALUES))) == (8.0, -4.0)
    weights = VALUES.abs()
    assert value(MAKERS["ess"](VALUES)) == pytest.approx((weights.sum() ** 2 / (7 * (weights**2).sum())).item())


def test_the_spread_of_large_equal_numbers_is_zero() -> None:
    """E[x²] − E[x]² would leave a residue."""
    part_ = torch.full((4,), 1e8 + 0.1, dtype=torch.float64)
    assert value(Spread.of(part_).merge(Spread.of(part_))) == 0.0


def test_metrics_of_float32_numbers_are_computed_in_float64() -> None:
    # the mean of 2^24 and 2^24 + 2 is no float32, and 1e20 squared overflows in float32
    assert value(Spread.of(torch.tensor([2.0**24, 2.0**24 + 2]))) == 1.0
    assert value(SampleSize.of(torch.full((3,), 1e20))) == pytest.approx(1.0)
    assert value(Sum.of(torch.tensor([2.0**24, 1.0, 1.0]))) == 2**24 + 2
    edges = torch.tensor(Histogram.EDGES)  # as float32, none of them lies on its edge
    assert torch.equal(Histogram.of(edges).counts, Histogram.of(edges.double()).counts)
    assert value(Mean.of(torch.tensor([2.0**24, 1.0, 1.0]))) == pytest.approx((2**24 + 2) / 3, rel=1e-12)


def test_ess_reaches_its_extremes() -> None:
    assert value(SampleSize.of(torch.full((5,), 3.0))) == pytest.approx(1.0)
    assert value(SampleSize.of(torch.tensor([0.0, 0.0, 7.0, 0.0]))) == pytest.approx(0.25)


def test_a_fraction_of_nothing_is_zero_and_a_mean_of_nothing_is_left_out() -> None:
    nothing = torch.zeros(0, dtype=torch.bool)
    values = Metrics(
        {
            "fraction": Mean.fraction(nothing),
            "mean": Mean.of(nothing.double()),
            "max": Extremum.of(nothing.double(), 1),
            "std": Spread.of(nothing.double()),
            "ess": SampleSize.of(nothing.double()),
        },
        {},
    ).numbers()
    assert values == {"fraction": 0.0}


def test_a_real_nan_is_shown() -> None:
    assert math.isnan(value(Mean.of(torch.tensor([1.0, float("nan")]))))


def test_parts_without_values_do_not_move_a_spread() -> None:
    nothing = Spread.of(torch.zeros(0))
    assert (float(nothing.value()[0]), bool(nothing.value()[1])) == (0.0, False)
    one, other = (Spread.of(torch.tensor([value], dtype=torch.float64)) for value in (3.0, 5.0))
    for joined in (nothing.merge(nothing).merge(one).merge(other), nothing.merge(one).merge(nothing).merge(other)):
        assert float(joined.value()[0]) == 1.0
        assert float(joined.mean) == 4.0


def test_a_single_weight_is_the_whole_sample_however_small() -> None:
    weight = torch.tensor([1.1e-150], dtype=torch.float64)
    assert float(SampleSize.of(weight).value()[0]) == pytest.approx(1.0)


def numbers_of(values: list[float], among: list[bool] | None = None) -> dict[str, float]:
    given = torch.tensor(values, dtype=torch.float64)
    chosen = None if among is None else torch.tensor(among, dtype=torch.bool)
    kinds = {
        "mean": Mean.of(given, chosen),
        "max": Extremum.of(given, 1, chosen),
        "min": Extremum.of(given, -1, chosen),
        "std": Spread.of(given, chosen),
        "ess": SampleSize.of(given, chosen),
        "sum": Sum.of(given),
        "share": Mean.fraction(given > 0, chosen),
    }
    return Metrics(kinds, {}).numbers()


def test_of_nothing_only_a_sum_and_a_share_are_reported() -> None:
    assert numbers_of([]) == {"sum": 0.0, "share": 0.0}
    assert numbers_of([3.0, 4.0], [False, False]) == {"sum": 7.0, "share": 0.0}


@pytest.mark.parametrize("among", [[True], None])
def test_of_one_value_everything_is_reported(among: list[bool] | None) -> None:
    one = {"mean": 4.0, "max": 4.0, "min": 4.0, "std": 0.0, "ess": 1.0, "sum": 4.0, "share": 1.0}
    assert numbers_of([4.0], among) == one


def test_only_the_chosen_count() -> None:
    # of 1, 3, 9: the first two. mean 2, std 1, ess (1 + 3)^2 / (2 * 10)
    found = numbers_of([1.0, 3.0, 9.0], [True, True, False])
    assert found == {"mean": 2.0, "max": 3.0, "min": 1.0, "std": 1.0, "ess": 0.8, "sum": 13.0, "share": 1.0}


def test_merging_with_nothing_changes_nothing() -> None:
    one, nothing = torch.tensor([2.0, 4.0], dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    for kind in (Mean, Spread, SampleSize, Sum):
        whole = kind.of(one).value()[0].item()
        assert kind.of(one).merge(kind.of(nothing)).value()[0].item() == whole
        assert kind.of(nothing).merge(kind.of(one)).value()[0].item() == whole
    # two halves of different means: 2, 4 and 8, 10 have mean 6 and squares 16 + 4 + 4 + 16 = 40, 40 / 4 = 10
    joined = Spread.of(one).merge(Spread.of(one + 6))
    assert joined.value()[0].item() == pytest.approx(math.sqrt(10), rel=1e-15)
    assert joined.mean.item() == 6.0


def test_ess_of_weights_that_are_all_zero_is_zero() -> None:
    assert numbers_of([0.0, 0.0])["ess"] == 0.0


def test_numbers_of_any_precision_are_read_together() -> None:
    """2^24 + 1 is no float32."""
    entries = {"count": Sum(torch.tensor(2**24 + 1)), "half": Sum(torch.tensor(0.5)), "plain": Sum(3.0)}
    assert Metrics(entries, {}).numbers() == {"count": 2**24 + 1, "half": 0.5, "plain": 3.0}


def test_no_metric_holds_on_to_the_graph() -> None:
    values = torch.ones(3, requires_grad=True) * 2
    for metric in (Mean.of(values), Sum.of(values), Extremum.of(values, 1), Spread.of(values), SampleSize.of(values)):
        assert not metric.value()[0].requires_grad


NARROW = torch.tensor([2.0**24, 1.0, 1.0, 7.0])
FIRST = torch.tensor([True, True, True, False])


@pytest.mark.parametrize("chosen", [None, FIRST])
def test_arrays_are_measured_as_tensors_are(chosen: torch.Tensor | None) -> None:
    """Of float32 numbers, in float64; of flags, how many are true."""
    among = None if chosen is None else chosen.numpy()
    for kind in (Mean, Spread):
        assert tuple(kind.of(NARROW.numpy(), among)) == tuple(map(float, kind.of(NARROW, chosen)))
    flags = NARROW == 1
    assert tuple(Mean.fraction(flags.numpy(), among)) == (2.0, 4.0 if chosen is None else 3.0, False)
    assert tuple(map(float, Mean.fraction(flags, chosen))) == tuple(Mean.fraction(flags.numpy(), among))


def test_moments_of_an_array_are_those_of_what_is_chosen() -> None:
    # 2^24, 1, 1 have the sum 2^24 + 2; the 7 is not chosen
    assert Mean.of(NARROW.numpy(), FIRST.numpy()).value()[0] == (2**24 + 2) / 3
    # 3, 5 have mean 4 and squares 1 + 1
    three = np.array([3.0, 5.0, 9.0], np.float32)
    assert tuple(Spread.of(three, np.array([True, True, False]))) == (2.0, 4.0, 2.0)
    assert tuple(Spread.of(three + np.float32(2**23), np.array([True, True, False]))) == (2.0, 4.0 + 2**23, 2.0)


def test_sums_and_counts_are_held_in_float64() -> None:
    """A count in float32 stands still at 2^24."""
    for chosen in (None, FIRST):
        metrics = (
            Mean.of(NARROW, chosen), Mean.fraction(NARROW == 1, chosen), Spread.of(NARROW, chosen),
            SampleSize.of(NARROW, chosen), Sum.of(NARROW), Sum.of(NARROW == 1), Extremum.of(NARROW, 1, chosen),
        )  # fmt: skip
        held = [value for one in metrics for value in one if isinstance(value, torch.Tensor)]
        assert {value.dtype for value in held} == {torch.float64}
        assert len(held) == 13


@pytest.mark.parametrize("first", [1.0, torch.tensor(1.0)])
@pytest.mark.parametrize("second", [2.0, torch.tensor(2.0)])
def test_the_larger_of_two_numbers_wherever_they_are(first: object, second: object) -> None:
    assert float(larger(first, second)) == float(larger(second, first)) == 2.0
    for none in (math.nan, torch.tensor(math.nan)):
        assert math.isnan(larger(none, first))


def test_a_mean_of_plain_numbers() -> None:
    assert [Mean(6.0, count).value() for count in (1.0, 4.0)] == [(6.0, True), (1.5, True)]
    assert Mean(0.0, 0.5).value() == (0.0, True)
    assert Mean(0.0, 0.0).value() == (0.0, False)
    assert Mean(0.0, 0.0, absent=False).value() == (0.0, True)

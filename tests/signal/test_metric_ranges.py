"""Each metric's range, derived from what its name says; each kind of metric on no value and on one."""

import math
from contextlib import nullcontext

import pytest
import torch

from trimtab.signal.metric_names import METRICS, WATCH, declared
from trimtab.signal.metrics import Extremum, Histogram, Mean, Metrics, SampleSize, Spread, Sum
from trimtab.signal.tensors import as_on_a_device

INF = math.inf
ANY_SIGN = {
    "reward/episode_mean", "advantage/token_mean", "kl_ref/token_mean", "k1_*/token_mean", "loss/*",
}  # fmt: skip
FROM_MINUS_ONE = {
    "chi2_engine/token_mean": INF,
    "chi2_engine/sequence_mean": INF,
    "probability_engine/token_correlation": 1.0,
}
SHARES = ("_fraction", "_tokens", "_sequences")
COUNTS = {"effective_batch/tokens", "effective_batch/sequences"}


@pytest.mark.parametrize("spec", METRICS, ids=lambda spec: spec.name)
def test_a_metric_has_the_range_of_its_kind(spec: object) -> None:
    """A share lies in [0, 1]; a mean of something signed anywhere; everything else is at least 0."""
    name = spec.name
    if name in FROM_MINUS_ONE:  # a square less 1, and a correlation
        assert (spec.low, spec.high) == (-1.0, FROM_MINUS_ONE[name])
        return
    if name == "value_old/explained_variance":  # a critic can be worse than the mean
        assert (spec.low, spec.high) == (-INF, 1.0)
        return
    share = (name.endswith(SHARES) or name.startswith("ess_")) and name not in COUNTS
    assert (spec.low, spec.high) == ((-INF, INF) if name in ANY_SIGN else (0.0, 1.0) if share else (0.0, INF))


def test_what_is_worth_watching_is_declared() -> None:
    assert len(WATCH) == 10
    assert all(any(spec.name == name for spec in METRICS) or declared(name) for name in WATCH)
    assert declared("nothing/like_it") is None


@pytest.mark.parametrize("repeats", [1, 1000])
@pytest.mark.parametrize("where", ["by bits", "compared"])
def test_a_histogram_has_a_bin_between_any_two_edges_and_one_on_either_side(repeats: int, where: str) -> None:
    # Edges near ±0.01, 0.03, 0.1, 0.3, 1, 3, 10: one value inside each of the fifteen bins; a value on every edge
    # belongs to the bin farther out, and one just inside it to the bin nearer to 0.
    inside = [-11.0, -5, -2, -0.5, -0.2, -0.05, -0.02, 0, 0.02, 0.05, 0.2, 0.5, 2, 5, 11]
    below, above = torch.tensor(Histogram.EDGES).tensor_split(2)
    edges = torch.cat([below, above])
    nearer = torch.nextafter(edges, torch.zeros(()))
    assert (
        pytest.approx([-10, -3, -1, -0.3, -0.1, -0.03, -0.01, 0.01, 0.03, 0.1, 0.3, 1, 3, 10], rel=3e-3)
        == Histogram.EDGES
    )
    for values, counts in (
        (torch.tensor(inside), [1] * 15),
        (edges, [1] * 7 + [0] + [1] * 7),
        (nearer, [0] + [1] * 6 + [2] + [1] * 6 + [0]),
        (torch.tensor([0.0, -0.0, torch.inf, -torch.inf]), [1] + [0] * 6 + [2] + [0] * 6 + [1]),
    ):
        with as_on_a_device() if where == "compared" else nullcontext():
            found = Histogram.of(values.repeat(repeats)).counts.tolist()
        assert found == [repeats * count for count in counts]


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


def test_no_metric_holds_on_to_the_graph() -> None:
    values = torch.ones(3, requires_grad=True) * 2
    for metric in (Mean.of(values), Sum.of(values), Extremum.of(values, 1), Spread.of(values), SampleSize.of(values)):
        assert not metric.value()[0].requires_grad


def test_a_large_histogram_counts_every_kth_value_k_times() -> None:
    values = torch.linspace(-0.5, 0.5, 4 * Histogram.LARGE + 1)
    counts, every_fourth = Histogram.of(values).counts, Histogram.of(values[::4][: Histogram.LARGE]).counts
    assert torch.equal(counts, 4 * every_fourth)
    assert int(counts.sum()) == 4 * Histogram.LARGE

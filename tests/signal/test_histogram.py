"""A histogram of log-ratios: where its edges are, and how histograms add up."""

from contextlib import nullcontext

import pytest
import torch

from trimtab.signal.histogram import Histogram
from trimtab.signal.tensors import as_on_a_device


def test_histograms_add_up() -> None:
    logratio = torch.linspace(-20, 20, 101, dtype=torch.float64)
    merged = Histogram.of(logratio[:40]).merge(Histogram.of(logratio[40:]))
    assert torch.equal(merged.counts, Histogram.of(logratio).counts)
    assert merged.counts.sum() == 101


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


def test_a_large_histogram_counts_every_kth_value_k_times() -> None:
    values = torch.linspace(-0.5, 0.5, 4 * Histogram.LARGE + 1)
    counts, every_fourth = Histogram.of(values).counts, Histogram.of(values[::4][: Histogram.LARGE]).counts
    assert torch.equal(counts, 4 * every_fourth)
    assert int(counts.sum()) == 4 * Histogram.LARGE


@pytest.mark.parametrize("elsewhere", [False, True])
def test_values_are_sampled_from_twice_8192_on(elsewhere: bool) -> None:
    # every second value is 5: counted one by one they fill two bins; of each two the first alone stands for both
    for num, zeros, fives in ((16_383, 8192, 8191), (16_384, 16_384, 0), (16_385, 16_384, 0), (24_577, 12_288, 12_288)):
        values = torch.tensor([0.0, 5.0]).repeat(num // 2 + 1)[:num]
        with as_on_a_device() if elsewhere else nullcontext():
            counts = Histogram.of(values).counts
        assert counts.dtype == torch.int64
        assert (int(counts[7]), int(counts[13]), int(counts.sum())) == (zeros, fives, zeros + fives)

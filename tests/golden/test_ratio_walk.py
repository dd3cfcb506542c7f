"""How a ratio is walked over: block after block, each token once, and as the product of two where both are known."""

import math

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, lengths, tokens
from torch import Tensor

from trimtab.signal import ratio as module
from trimtab.signal.layout import Segments
from trimtab.signal.ratio import Exact, Ratio
from trimtab.signal.tensors import as_on_a_device

FOUR = tokens(0.5, -0.25, 0.125, 0.0)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens were taken to float64 at once, each time."""
    found: list[int] = []
    doubled = module._doubled

    def told(values: Tensor) -> Tensor:
        found.append(values.numel())
        return doubled(values)

    monkeypatch.setattr(module, "_doubled", told)
    return found


def test_half_a_million_tokens_are_walked_over_together(blocks: list[int]) -> None:
    count = 2**19 + 1
    one = Ratio(torch.zeros(count), Segments.from_counts(torch.tensor([count]), count))
    assert (one.sums.far, one.sums.moved, one.sums.around) == (0, 0, 0)
    assert blocks == [2**19, 1]


def test_tokens_of_one_block_are_taken_to_float64_once(blocks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 4)
    for first in ("total", "sums"):
        one = Ratio(FOUR, lengths(3, 1), is_factor=True)
        for name in (first, "total", "sums"):
            _ = getattr(one, name)
        assert blocks == [4]
        blocks.clear()
        exact = one.exact()
        assert exact is not None
        assert_near(exact.value, *(math.exp(d) for d in FOUR.tolist()))
        assert one.exact() is None


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("keeps", [False, True])
def test_sums_do_not_depend_on_the_blocks(block: int, keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    one, values = Ratio(FOUR, lengths(3, 1)), [math.exp(d) for d in FOUR.tolist()]
    if keeps:
        assert_near(one.value(), *values)
    mean = sum(values) / 4
    assert one.sums.far == pytest.approx(0.875)
    assert one.sums.moved == pytest.approx(sum(values) - 4, rel=1e-12)
    assert one.sums.around == pytest.approx(sum((v - mean) ** 2 for v in values), rel=1e-12)
    assert (one.sums.low, one.sums.high) == (-0.25, 0.5)
    assert one.exact() is None  # nobody said that it is a factor


@pytest.mark.parametrize("on_device", [False, True])
def test_of_no_token_there_is_nothing_to_sum(on_device: bool) -> None:
    def check() -> None:
        sums = Ratio(tokens(), lengths(0, 0)).sums
        assert (sums.far, sums.moved, sums.around) == (0, 0, 0)
        assert (sums.low, sums.high) == (math.inf, -math.inf)

    if on_device:
        with as_on_a_device():
            check()
    else:
        check()


def test_a_log_ratio_on_its_bound_is_within_it() -> None:
    assert Ratio(tokens(20.0, -20.0), lengths(2)).is_within
    assert Ratio(tokens(20.0, -20.0), lengths(2)).inside is None
    for beyond in (20.5, -20.5):
        one = Ratio(tokens(0.0, beyond), lengths(2))
        assert not one.is_within
        assert_is(one.inside, 1.0, 0.0)


def test_the_sums_of_a_product_are_made_of_its_factors_and_its_value_of_its_own_log_ratio() -> None:
    # factors e^(1/2) and 3, where the log-ratio says e^1: what is measured is the product
    first = Ratio(tokens(0.5), lengths(1), is_factor=True)
    _ = first.sums
    second = Exact(tokens(3.0), tokens(math.log(3)).numpy())
    product = Ratio(tokens(1.0), lengths(1), factors=(first, second))
    assert product.sums.moved == pytest.approx(3 * math.exp(0.5) - 1, rel=1e-12)
    first = Ratio(tokens(0.5), lengths(1), is_factor=True)
    _ = first.sums
    assert_near(Ratio(tokens(1.0), lengths(1), factors=(first, second)).value(), math.e)


def test_ratios_are_summed_within_their_bounds() -> None:
    sums = Ratio(tokens(30.0, -30.0), lengths(1, 1)).sums
    assert sums.moved == pytest.approx(math.exp(20) + math.exp(-20) - 2, rel=1e-12)
    assert (sums.far, sums.low, sums.high) == (60, -30, 30)


def test_a_spread_beside_a_large_mean_keeps_its_digits() -> None:
    # ratios of 3e8, 300 and 750 more: 350, 50 and 400 from the mean. Of squares of 9e16, too few digits would be left
    logs = tokens(*[math.log(3e8), math.log(3e8 + 300), math.log(3e8 + 750)] * 33)
    expected = 33 * (350**2 + 50**2 + 400**2)
    assert Ratio(logs, lengths(99)).sums.around == pytest.approx(expected, rel=1e-6)


def test_a_spread_beside_a_small_mean_is_around_it() -> None:
    # ratios of 1e-6 and 3e-6: each is 1e-6 from the mean
    logs = tokens(*[math.log(1e-6), math.log(3e-6)] * 50)
    assert Ratio(logs, lengths(100)).sums.around == pytest.approx(100 * 1e-12, rel=1e-9)

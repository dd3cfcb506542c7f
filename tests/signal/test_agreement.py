"""Moments of pairs and quotients by hand, as tensors and as plain numbers."""

from math import sqrt

import pytest
import torch
from tests.golden.exact import flags, tokens
from torch import Tensor

from trimtab.signal.agreement import Agreement, Quotient

# x 1, 2, 6 and y 2, 2, 5, both with mean 3: x - 3 = -2, -1, 3 and y - 3 = -1, -1, 2
X, Y = (1.0, 2.0, 6.0), (2.0, 2.0, 5.0)
MOMENTS = [3.0, 3.0, 3.0, 14.0, 6.0, 9.0]


def moments(one: Agreement) -> list[float]:
    return [float(value) for value in one[:6]]


def plain(one: Agreement) -> Agreement:
    return Agreement(*moments(one), one.reads)


def test_moments_are_those_of_the_chosen_pairs() -> None:
    assert moments(Agreement.of(tokens(*X), tokens(*Y), "correlation")) == MOMENTS
    more, also = tokens(*X, 100.0), tokens(*Y, -7.0)
    assert moments(Agreement.of(more, also, "correlation", flags(1, 1, 1, 0))) == MOMENTS
    assert moments(Agreement.of(tokens(5.0), tokens(-2.0), "explained")) == [1.0, 5.0, -2.0, 0.0, 0.0, 0.0]


def test_what_agreement_reads() -> None:
    for one in (Agreement.of(tokens(*X), tokens(*Y), "correlation"), Agreement(*MOMENTS, "correlation")):
        number, is_there = one.value()
        assert (float(number), bool(is_there)) == (pytest.approx(9 / sqrt(84)), True)
        number, is_there = one._replace(reads="explained").value()
        assert (float(number), bool(is_there)) == (pytest.approx(1 - (14 + 6 - 18) / 14), True)


def test_small_numbers_are_numbers_all_the_same() -> None:
    # a tenth of x and y: the same correlation and the same share
    small = [3.0, 0.3, 0.3, 0.14, 0.06, 0.09]
    for reads, expected in (("correlation", 9 / sqrt(84)), ("explained", 6 / 7)):
        number, is_there = Agreement(*small, reads).value()
        assert (number, is_there) == (pytest.approx(expected), True)
    assert Quotient(0.25, 0.5).value() == (0.5, True)


@pytest.mark.parametrize("as_plain", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_parts_of_any_size_merge_to_the_moments_of_the_whole(as_plain: bool, cut: int) -> None:
    first, second = (
        Agreement.of(tokens(*X[part]), tokens(*Y[part]), "correlation") for part in (slice(cut), slice(cut, None))
    )
    merged = plain(first).merge(plain(second)) if as_plain else first.merge(second)
    assert moments(merged) == pytest.approx(MOMENTS)
    assert merged.reads == "correlation"


@pytest.mark.parametrize("reads", ["correlation", "explained"])
def test_of_no_pair_everything_is_zero(reads: str) -> None:
    nothing = Agreement.of(tokens(), tokens(), reads)
    for one in (nothing, nothing.merge(nothing), plain(nothing).merge(plain(nothing))):
        assert moments(one) == [0.0] * 6
        assert not one.value()[1]


def test_a_quotient_of_anything_by_nothing_is_no_number() -> None:
    three, four, nothing = tokens(1.0, 2.0), tokens(4.0), tokens()
    assert tuple(map(float, Quotient.of(three, four))) == (3.0, 4.0)
    for one in (Quotient.of(three, nothing), Quotient(3.0, 0.0)):
        number, is_there = one.value()
        assert (float(number), bool(is_there)) == (0.0, False)
    for one in (Quotient.of(three, four), Quotient(3.0, 4.0)):
        number, is_there = one.merge(one._replace(total=one.total * 3)).value()
        assert (float(number), bool(is_there)) == (1.5, True)  # (3 + 9) / (4 + 4)


def test_pairs_and_quotients_hold_no_graph() -> None:
    def live() -> Tensor:
        return torch.ones(2, dtype=torch.float64, requires_grad=True) * tokens(1.0, 2.0)

    for one in (
        Agreement.of(live(), tokens(1.0, 2.0), "explained"), Agreement.of(live(), live(), "explained", flags(1, 1)),
        Agreement.of(tokens(1.0, 2.0), live(), "explained"), Quotient.of(live(), live()),
    ):  # fmt: skip
        assert not any(value.requires_grad for value in one if isinstance(value, Tensor))

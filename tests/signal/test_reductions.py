"""Sums over segments where they are taken: in which precision, without waiting for a device, in which order."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, tokens
from torch import Tensor

from trimtab.signal.normalize import leave_one_out
from trimtab.signal.reduce import (
    extremes_of,
    sequence_quantile,
    sequence_sum,
    sequence_tally,
    smallest,
    sum_of,
    to_tokens,
)
from trimtab.signal.tensors import as_on_a_device
from trimtab.signal.voters import Voters

VALUES, LENGTHS = tokens(1.0, 2.0, 4.0, 8.0), lengths(3, 0, 1)


def test_a_sum_is_taken_in_the_precision_that_is_asked_for() -> None:
    # 2^24 + 1 is no number of float32
    large = tokens(2.0**24, 1.0).float()
    assert_is(sequence_sum(large, lengths(2), torch.float64), 2.0**24 + 1)
    assert sequence_sum(large, lengths(2), torch.float64).dtype == torch.float64
    assert sequence_sum(large, lengths(2)).dtype == torch.float32


def test_on_a_device_segments_are_reduced_without_a_check_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced: Callable[..., Tensor] = torch.segment_reduce
    asked: list[bool] = []

    def told(*given: Any, **named: Any) -> Tensor:
        asked.append(named["unsafe"])
        return reduced(*given, **named)

    monkeypatch.setattr(torch, "segment_reduce", told)
    with as_on_a_device():
        low, high = extremes_of(VALUES, LENGTHS)
        assert_is(sum_of(VALUES, LENGTHS), 7.0, 0.0, 8.0)
        assert_is(low, 1.0, float("inf"), 8.0)
        assert_is(high, 4.0, -float("inf"), 8.0)
    assert asked == [True, True, True]


def test_on_a_device_flags_are_counted_in_the_memory_that_was_taken_for_them() -> None:
    with as_on_a_device(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_is(sequence_tally(flags(1, 0, 1, 1), LENGTHS), 2, 0, 1)


def test_rows_of_several_numbers_are_spread_over_tokens_as_single_numbers_are() -> None:
    assert_is(to_tokens(tokens(5.0, 6.0, 7.0), LENGTHS), 5.0, 5.0, 5.0, 7.0)
    rows = to_tokens(torch.stack([tokens(5.0, 6.0, 7.0), tokens(1.0, 2.0, 3.0)], dim=1), LENGTHS)
    assert rows.tolist() == [[5.0, 1.0], [5.0, 1.0], [5.0, 1.0], [7.0, 3.0]]


@pytest.fixture
def _equal_keys_turn_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sort that is not asked to leave equal keys in their order does not, as on some devices."""
    sort: Callable[..., Tensor] = torch.Tensor.argsort

    def argsort(values: Tensor, *given: Any, stable: bool = False, **named: Any) -> Tensor:
        if stable:
            return sort(values, *given, stable=True, **named)
        return values.shape[0] - 1 - sort(values.flip(0), *given, stable=True, **named)

    monkeypatch.setattr(torch, "argsort", argsort)
    monkeypatch.setattr(torch.Tensor, "argsort", argsort)


@pytest.mark.usefixtures("_equal_keys_turn_round")
def test_members_of_a_group_sit_side_by_side_in_the_order_of_the_batch() -> None:
    group = Voters.of("group", flags(1, 1, 1, 0, 1), index(1, 0, 1, 1, 0), 2)
    beside, theirs = group.others(tokens(1.0, 2.0, 3.0, 4.0, 5.0))
    assert beside[0].tolist() == [1.0, 3.0, 4.0]
    assert beside[1].tolist() == [2.0, 5.0, 0.0]
    assert theirs.tolist() == [
        [False, True, False], [False, True, False], [True, False, False], [True, True, False], [True, False, False],
    ]  # fmt: skip


@pytest.mark.usefixtures("_equal_keys_turn_round")
def test_of_equal_ones_the_smaller_keys_come_first_and_quantiles_stay_in_their_sequence() -> None:
    same = tokens(1.0, 1.0, 1.0, 1.0)
    assert_is(smallest(same, flags(1, 1, 1, 1), torch.tensor(2), index(3, 0, 2, 1)), 0, 1, 0, 1)
    assert_is(smallest(same, flags(1, 0, 1, 1), torch.tensor(2), index(3, 0, 2, 1)), 0, 0, 1, 1)
    # 4, 1, 2 | 3, 1 at three quarters of their places: between 2 and 4, and between 1 and 3
    assert_is(sequence_quantile(tokens(4.0, 1.0, 2.0, 3.0, 1.0), lengths(3, 2), 0.75), 3.0, 2.5)


def test_nobody_is_compared_with_nobody() -> None:
    for groups in (0, 2):
        group = Voters.of("group", flags(), index(), groups)
        beside, theirs = group.others(tokens())
        assert beside.shape == theirs.shape == (0, 1)
        result, signal = leave_one_out(tokens(), flags(), index(), groups, std="others")
        assert result.shape == signal.shape == (0,)


def test_a_spread_among_others_is_that_of_the_voters_beside() -> None:
    # others of 1: 2 and 4, mean 3, spread sqrt(2), and 1 is 2 below; of 2: mean 2.5, spread sqrt(4.5); and so on
    found, _ = leave_one_out(tokens(1.0, 2.0, 4.0), flags(1, 1, 1), index(0, 0, 0), 1, std="others", eps=0.0)
    assert_near(found, -2 / 2**0.5, -0.5 / 4.5**0.5, 2.5 / 0.5**0.5)

"""Baselines and scales by hand. Group 0 holds rewards 1, 3, 5; group 1 holds 2, 2; batch mean 13 / 5 = 2.6."""

from math import sqrt

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, tokens

from trimtab.errors import SignalError
from trimtab.signal import normalize

REWARD = tokens(1.0, 3.0, 5.0, 2.0, 2.0)
GROUP = index(0, 0, 0, 1, 1)
ALL = flags(1, 1, 1, 1, 1)


def test_normalize_raw() -> None:
    result, has_signal = normalize.raw(REWARD, flags(1, 0, 1, 0, 1))
    assert_is(result, 1.0, 3.0, 5.0, 2.0, 2.0)
    assert_is(has_signal, 1, 1, 1, 1, 1)


def test_normalize_mean_std() -> None:
    # group 0: mean 3, sum of squares 4 + 0 + 4 = 8, ddof 1: std = sqrt(8 / 2) = 2; group 1: constant
    result, has_signal = normalize.mean_std(REWARD, ALL, GROUP, 2, mean="group", std="group", ddof=1, eps=1e-6)
    assert_near(result, -2 / (2 + 1e-6), 0.0, 2 / (2 + 1e-6), 0.0, 0.0)
    assert_is(has_signal, 1, 1, 1, 1, 1)


def test_mean_std_at_mixed_levels() -> None:
    # group mean, batch std: around 2.6 the squares are 2.56 + 0.16 + 5.76 + 0.36 + 0.36 = 9.2; 9.2 / 4 = 2.3
    result, _ = normalize.mean_std(REWARD, ALL, GROUP, 2, mean="group", std="batch", ddof=1, eps=0.0)
    assert_near(result, -2 / sqrt(2.3), 0.0, 2 / sqrt(2.3), 0.0, 0.0)
    # batch mean, group std: (reward - 2.6) / 2 in group 0
    result, _ = normalize.mean_std(REWARD, ALL, GROUP, 2, mean="batch", std="group", ddof=1, eps=0.0)
    assert_near(result[:3], -0.8, 0.2, 1.2)
    # no mean, group std; group mean, no std; ddof 0 divides the same 8 by 3
    result, _ = normalize.mean_std(REWARD, ALL, GROUP, 2, mean="none", std="group", ddof=1, eps=0.0)
    assert_near(result[:3], 0.5, 1.5, 2.5)
    result, _ = normalize.mean_std(REWARD, ALL, GROUP, 2, mean="group", std="none")
    assert_near(result, -2.0, 0.0, 2.0, 0.0, 0.0)
    result, _ = normalize.mean_std(REWARD, ALL, GROUP, 2, mean="batch", std="batch", ddof=0, eps=0.0)
    assert_near(result, *((r - 2.6) / sqrt(9.2 / 5) for r in (1.0, 3.0, 5.0, 2.0, 2.0)))


def test_mean_std_counts_voters_and_gives_everyone_the_result() -> None:
    # the third answer of group 0 does not vote: mean (1 + 3) / 2 = 2, std sqrt((1 + 1) / 1). It would get
    # (5 - 2) / std, and is held at the highest voter's 1 / std. Group 1 is left with one voter: no comparison, so 0
    # and no signal
    result, has_signal = normalize.mean_std(REWARD, flags(1, 1, 0, 1, 0), GROUP, 2, eps=0.0)
    assert_near(result, -1 / sqrt(2), 1 / sqrt(2), 1 / sqrt(2), 0.0, 0.0)
    assert_is(has_signal, 1, 1, 1, 0, 0)


# 0.1 + 0.1 + 0.1 is not 0.3 and 0.7 six times is not 4.2: a mean that divides a plain sum leaves dust behind.
@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, 1e9 + 0.1])
@pytest.mark.parametrize("size", [3, 6, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_group_is_exactly_zero_under_mean_std(value: float, size: int, dtype: torch.dtype) -> None:
    reward, group = torch.full((size,), value, dtype=dtype), torch.zeros(size, dtype=torch.long)
    result, _ = normalize.mean_std(reward, torch.ones(size, dtype=torch.bool), group, 1)
    torch.testing.assert_close(result, torch.zeros_like(reward), rtol=0, atol=0)


@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3, 1e9 + 0.1])
@pytest.mark.parametrize("size", [3, 6, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_group_is_exactly_zero_under_leave_one_out(value: float, size: int, dtype: torch.dtype) -> None:
    reward, group = torch.full((size,), value, dtype=dtype), torch.zeros(size, dtype=torch.long)
    result, _ = normalize.leave_one_out(reward, torch.ones(size, dtype=torch.bool), group, 1)
    torch.testing.assert_close(result, torch.zeros_like(reward), rtol=0, atol=0)


def test_normalize_leave_one_out() -> None:
    # group 0: 1 - (3 + 5) / 2 = -3;  3 - (1 + 5) / 2 = 0;  5 - (1 + 3) / 2 = 3;  group 1: 2 - 2 = 0
    result, has_signal = normalize.leave_one_out(REWARD, ALL, GROUP, 2)
    assert_near(result, -3.0, 0.0, 3.0, 0.0, 0.0)
    assert_is(has_signal, 1, 1, 1, 1, 1)


def test_leave_one_out_with_a_non_voter() -> None:
    # the 3 does not vote: 1 - 5 = -4 and 5 - 1 = 4; the non-voter itself is compared with both: 3 - (1 + 5) / 2 = 0
    # group 1 is left with one voter, and a comparison needs two: 0 for both, no signal
    result, has_signal = normalize.leave_one_out(REWARD, flags(1, 0, 1, 1, 0), GROUP, 2)
    assert_near(result, -4.0, 0.0, 4.0, 0.0, 0.0)
    assert_is(has_signal, 1, 1, 1, 0, 0)


@pytest.mark.parametrize("name", ["mean_std", "leave_one_out"])
def test_a_lone_episode_is_refused_by_index(name: str) -> None:
    with pytest.raises(SignalError, match=r"episodes \[2\] are alone in their group"):
        getattr(normalize, name)(tokens(1.0, 2.0, 3.0), flags(1, 1, 1), index(0, 0, 1), 2)


def test_whiten_counts_voters_with_ddof_1_and_gives_everyone_the_result() -> None:
    # voters 1, 3, 5: mean 3, variance 8 / 2 = 4; the non-voter 4 gets (4 - 3) / sqrt(4 + eps)
    result = normalize.whiten(tokens(1.0, 3.0, 5.0, 4.0), flags(1, 1, 1, 0), eps=0.25)
    assert_near(result, *(d / sqrt(4.25) for d in (-2, 0, 2, 1)))


@pytest.mark.parametrize("apart", [0.0, 1e-12, 1e-9, 1e-6, 1e-3, 1.0])
def test_a_non_voter_gets_no_more_than_the_voters_span_however_close_they_are(apart: float) -> None:
    # voters 1 - apart, 1, 1 + apart: their own results are -a, 0, a with a at most 1; non-voters 0 and 9 get -a and a
    values, votes = tokens(1.0 - apart, 1.0, 1.0 + apart, 0.0, 9.0), flags(1, 1, 1, 0, 0)
    one_group = index(0, 0, 0, 0, 0)
    for result in (
        normalize.whiten(values, votes),
        normalize.mean_std(values, votes, one_group, 1)[0],
        normalize.mean_std(values, votes, one_group, 1, mean="batch", std="batch")[0],
    ):
        assert_near(result[3:], float(result[0]), float(result[2]))
        assert float(result.abs().max()) <= 1.0


def test_mean_std_bounds_a_non_voter_by_the_voters_of_its_own_group() -> None:
    # group 0 almost agrees, group 1 does not: a non-voter of group 0 is held by group 0, one of group 1 by group 1
    values = tokens(1.0, 1.0 + 1e-9, 5.0, 0.0, 2.0, 5.0)
    result, _ = normalize.mean_std(values, flags(1, 1, 0, 1, 1, 0), index(0, 0, 0, 1, 1, 1), 2, eps=0.0)
    assert_near(result, *(s / sqrt(2) for s in (-1, 1, 1, -1, 1, 1)), atol=1e-6)


def test_without_a_mean_a_non_voter_is_held_by_the_voters_and_not_by_0() -> None:
    # spread of 2 and 4 is sqrt(2); 1 and 9 lie outside of what the voters get
    result, _ = normalize.mean_std(
        tokens(2.0, 4.0, 1.0, 9.0), flags(1, 1, 0, 0), index(0, 0, 0, 0), 1, mean="none", std="group", ddof=1, eps=0.0
    )
    assert_near(result, 2 / sqrt(2), 4 / sqrt(2), 2 / sqrt(2), 4 / sqrt(2))
    negative, _ = normalize.mean_std(
        tokens(-2.0, -4.0, 1.0), flags(1, 1, 0), index(0, 0, 0), 1, mean="none", std="group", ddof=1, eps=0.0
    )
    assert_near(negative, -2 / sqrt(2), -4 / sqrt(2), -2 / sqrt(2))


def test_whiten_adds_1e_8_to_the_variance_unless_told_otherwise() -> None:
    # 0 and 1e-4: variance 5e-9
    assert_near(normalize.whiten(tokens(0.0, 1e-4), flags(1, 1)), -0.5e-4 / sqrt(1.5e-8), 0.5e-4 / sqrt(1.5e-8))

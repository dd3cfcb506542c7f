"""Baselines and scales where rounding, agreement or a copy decides."""

from collections.abc import Callable
from math import sqrt

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, tokens
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal import baseline, normalize, part

ALL, GROUP = flags(1, 1, 1), index(0, 0, 0)

FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean_std": lambda reward: normalize.mean_std(reward, ALL, GROUP, 1)[0],
    "leave_one_out": lambda reward: normalize.leave_one_out(reward, ALL, GROUP, 1)[0],
    "whiten": lambda reward: normalize.whiten(reward, ALL),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_float32_rewards_are_compared_in_float64_and_rounded_once(name: str) -> None:
    reward = torch.tensor([0.1, 0.2, 0.4])
    torch.testing.assert_close(FORMULAS[name](reward), FORMULAS[name](reward.double()).float(), rtol=0, atol=0)


def test_rewards_that_agree_give_0_without_a_stabiliser() -> None:
    same = tokens(0.7, 0.7, 0.7)
    assert_is(normalize.mean_std(same, ALL, GROUP, 1, eps=0.0)[0], 0.0, 0.0, 0.0)
    assert_is(normalize.whiten(same, ALL, eps=0.0), 0.0, 0.0, 0.0)


def test_the_mean_is_the_lowest_vote_and_the_mean_distance_to_it() -> None:
    # added up from 0.1, 0.2, 0.4 themselves, or down from 0.4, the last bit is another
    mean = 0.1 + ((0.2 - 0.1) + (0.4 - 0.1)) / 3
    result, _ = normalize.mean_std(tokens(0.1, 0.2, 0.4), ALL, GROUP, 1, std="none")
    assert_is(result, 0.1 - mean, 0.2 - mean, 0.4 - mean)


def test_a_raw_reward_is_a_copy() -> None:
    reward = tokens(1.0, 2.0, 3.0)
    result, _ = normalize.raw(reward, ALL)
    _ = reward.zero_()
    assert_is(result, 1.0, 2.0, 3.0)


@pytest.mark.parametrize("num_groups", [0, 2])
def test_a_batch_without_episodes_has_no_results(num_groups: int) -> None:
    none = (tokens(), flags(), index(), num_groups)
    for found in (normalize.leave_one_out(*none, std="others")[0], baseline.best_minus_second(*none)[0]):
        assert found.shape == (0,)


@pytest.mark.parametrize("votes", [(), (0, 0, 0), (1, 0, 0)])
def test_fewer_than_two_voters_whiten_everyone_to_0(votes: tuple[int, ...]) -> None:
    values = tokens(*(4.0, -7.0, 0.5)[: len(votes)])
    assert_is(normalize.whiten(values, flags(*votes)), *[0.0] * len(votes))
    assert_is(normalize.whiten(tokens(3.0), flags(1)), 0.0)
    assert_is(normalize.whiten(tokens(3.0, 9.0, -9.0), flags(0, 0, 0), eps=0.0), 0.0, 0.0, 0.0)


def test_two_voters_have_a_variance_with_and_without_a_third_who_is_silent() -> None:
    # 1 and 2: mean 1.5, variance 1/4 + 1/4 = 1/2, so -1/2 and 1/2 over sqrt(1/2); a silent one gets no more than these
    half = 0.5 / sqrt(0.5)
    assert_near(normalize.whiten(tokens(1.0, 2.0), flags(1, 1), eps=0.0), -half, half)
    for value, bounded in ((50.0, half), (-50.0, -half), (1.5, 0.0)):
        assert_near(normalize.whiten(tokens(1.0, 2.0, value), flags(1, 1, 0), eps=0.0), -half, half, bounded)
    # a tenth of that: a small variance is one too
    assert_near(normalize.whiten(tokens(0.1, 0.2), flags(1, 1), eps=0.0), -half, half)
    # voters who agree have none, and everybody gets 0
    assert_is(normalize.whiten(tokens(1.0, 1.0, 50.0), flags(1, 1, 0), eps=0.0), 0.0, 0.0, 0.0)


def test_whitening_leaves_its_input_alone() -> None:
    values = tokens(1.0, 2.0, 4.0)
    _ = normalize.whiten(values, ALL)
    assert_is(values, 1.0, 2.0, 4.0)


def test_a_lone_voter_has_no_others_to_be_measured_by() -> None:
    result, has_signal = normalize.leave_one_out(tokens(1.0, 4.0), flags(1, 0), index(0, 0), 1, std="others")
    assert_is(result, 0.0, 0.0)
    assert_is(has_signal, 0, 0)


def test_a_shift_needs_a_mean_to_move() -> None:
    for shift in (-0.5, 1.0):
        with pytest.raises(SignalError, match="a shift moves a mean; name one"):
            part("normalize.mean_std", mean="none", shift=shift)
        assert part("normalize.mean_std", mean="batch", shift=shift).settings["shift"] == shift
    assert part("normalize.mean_std", mean="none", shift=0.0).settings["mean"] == "none"


def test_a_silent_float32_value_gets_exactly_what_the_best_voter_gets() -> None:
    # 2^24 - 0.1 is no float32, and nearly all voters are so close to the mean that the rounding would show
    values, votes = torch.full((1002,), 2.0**24), torch.ones(1002, dtype=torch.bool)
    values[0], values[1001], votes[1001] = 0.1, 2.0**25, False
    found = normalize.whiten(values, votes)
    assert found[1001].item() == found[1].item()

"""Baselines and scales where rounding, agreement or a copy decides."""

from collections.abc import Callable

import pytest
import torch
from tests.golden.exact import assert_is, flags, index, tokens
from torch import Tensor

from trimtab.signal import baseline, normalize

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

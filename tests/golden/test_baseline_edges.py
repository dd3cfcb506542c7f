"""Baselines at their edges: lone answers, the least total length, nobody who teaches."""

from typing import Any

import pytest
import torch
from tests.golden.exact import assert_is, flags, index, tokens

from trimtab.errors import SignalError
from trimtab.signal import baseline, catalog


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mean_std", {}), ("mean_std", {"mean": "none"}), ("mean_std", {"std": "none"}), ("leave_one_out", {}),
        ("over_mean", {}), ("length_weighted_mean", {}), ("best_minus_second", {}), ("rescaled_mean", {}),
    ],
)  # fmt: skip
def test_an_answer_alone_in_its_group_has_nobody_to_be_compared_with(name: str, settings: dict[str, Any]) -> None:
    formula = catalog()[f"normalize.{name}"]
    given = {
        "reward": tokens(1.0, 2.0, 3.0), "votes": flags(1, 1, 1), "length": tokens(1.0, 1.0, 1.0),
        "group_of_episode": index(0, 1, 0), "num_groups": 2,
    }  # fmt: skip
    with pytest.raises(SignalError, match=rf"{name}: episodes \[1\] are alone in their group"):
        formula.fn(**{key: given[key] for key in formula.inputs}, **settings)


def test_one_token_in_all_is_length_enough_for_a_mean() -> None:
    # lengths 1 and 0: the mean is the first reward
    result, has_signal = baseline.length_weighted_mean(tokens(2.0, 5.0), flags(1, 1), tokens(1.0, 0.0), index(0, 0), 1)
    assert_is(result, 0.0, 3.0)
    assert_is(has_signal, 1, 1)


def test_a_mean_by_length_of_rewards_from_0_is_the_plain_quotient() -> None:
    # bit for bit, because the distance to the lowest reward is averaged
    result, _ = baseline.length_weighted_mean(tokens(0.0, 0.1), flags(1, 1), tokens(1.0, 2.0), index(0, 0), 1)
    assert_is(result, -(0.2 / 3), 0.1 - 0.2 / 3)


def test_a_mean_by_length_of_float32_rewards_is_taken_in_float64() -> None:
    # 3 * (2^24 - 1) needs 26 bits: mean 1 + 3 * (2^24 - 1) / 4 = 12582912.25, and 2^24 minus that is 4194303.75
    reward = torch.tensor([1.0, 2.0**24])
    result, _ = baseline.length_weighted_mean(reward, flags(1, 1), torch.tensor([1.0, 3.0]), index(0, 0), 1)
    assert result.dtype == torch.float32
    assert result[1].item() == 4194303.75


@pytest.mark.parametrize("counted", ["varied_groups", "nonzero_rewards"])
def test_where_nobody_teaches_nothing_is_scaled(counted: Any) -> None:
    # voters 0 and 0; the 4 does not vote and stands 4 above them
    result, _ = baseline.rescaled_mean(tokens(0.0, 0.0, 4.0), flags(1, 1, 0), index(0, 0, 0), 1, counted=counted)
    assert_is(result, 0.0, 0.0, 4.0)


def test_lengths_add_up_in_double_precision() -> None:
    # 2^24 + 1 is no number of float32: the mean is 1 / (2^24 + 1)
    lengths_of = torch.tensor([2.0**24, 1.0])
    found, _ = baseline.length_weighted_mean(tokens(0.0, 1.0), flags(1, 1), lengths_of, index(0, 0), 1)
    assert found.tolist() == [-1 / (2**24 + 1), 1 - 1 / (2**24 + 1)]

"""Other baselines by hand. Group 0 holds rewards 1, 3, 5; group 1 holds 2, 2."""

from math import nan, sqrt

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, tokens

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, baseline, normalize, prepare, recipe, several_rewards
from trimtab.signal.voters import Voters

REWARD = tokens(1.0, 3.0, 5.0, 2.0, 2.0)
GROUP = index(0, 0, 0, 1, 1)
ALL = flags(1, 1, 1, 1, 1)


def test_normalize_over_mean() -> None:
    # group 0: mean 3: (1 - 3) / 3, 0, (5 - 3) / 3; group 1 is constant
    result, has_signal = baseline.over_mean(REWARD, ALL, GROUP, 2)
    assert_near(result, -2 / 3, 0.0, 2 / 3, 0.0, 0.0)
    assert_is(has_signal, 1, 1, 1, 1, 1)
    # nobody is right: the mean is 0 and nothing is divided by it
    assert_is(baseline.over_mean(tokens(0.0, 0.0, 1.0, 0.0), flags(1, 1, 1, 1), index(0, 0, 1, 1), 2)[0], 0, 0, 1, -1)
    # the 5 does not vote: mean 2, voters get -1/2 and 1/2, and it gets no more; group 1 is left with one voter
    result, has_signal = baseline.over_mean(REWARD, flags(1, 1, 0, 1, 0), GROUP, 2)
    assert_near(result, -0.5, 0.5, 0.5, 0.0, 0.0)
    assert_is(has_signal, 1, 1, 1, 0, 0)


def test_over_mean_refuses_negative_rewards_of_voters() -> None:
    with pytest.raises(SignalError, match=r"over_mean: the reward of episode 1 is -3 \(1 are negative\)"):
        baseline.over_mean(tokens(1.0, -3.0), flags(1, 1), index(0, 0), 1)
    assert_is(baseline.over_mean(tokens(1.0, 3.0, -9.0), flags(1, 1, 0), index(0, 0, 0), 1)[0], -0.5, 0.5, -0.5)


def test_normalize_length_weighted_mean() -> None:
    # lengths 4, 2, 2: (4*1 + 2*3 + 2*5) / 8 = 2.5; group 1 is constant whatever its lengths
    length = tokens(4.0, 2.0, 2.0, 7.0, 1.0)
    result, _ = baseline.length_weighted_mean(REWARD, ALL, length, GROUP, 2)
    assert_near(result, -1.5, 0.5, 2.5, 0.0, 0.0)
    # the 1 does not vote: (2*3 + 2*5) / 4 = 4; it is compared with that too
    result, _ = baseline.length_weighted_mean(REWARD, flags(0, 1, 1, 1, 1), length, GROUP, 2)
    assert_near(result, -3.0, -1.0, 1.0, 0.0, 0.0)
    # answers without a token have no weight at all
    result, has_signal = baseline.length_weighted_mean(REWARD, ALL, tokens(1.0, 1.0, 1.0, 0.0, 0.0), GROUP, 2)
    assert_near(result, -2.0, 0.0, 2.0, 0.0, 0.0)
    assert_is(has_signal, 1, 1, 1, 0, 0)


def test_normalize_best_minus_second() -> None:
    # 5 leads 3 by 2, and the spread of 1, 3, 5 is 2; a tie has no lead
    result, _ = baseline.best_minus_second(REWARD, ALL, GROUP, 2, std="none")
    assert_is(result, 0.0, 0.0, 2.0, 0.0, 0.0)
    result, _ = baseline.best_minus_second(REWARD, ALL, GROUP, 2, std="group", eps=0.5)
    assert_near(result, 0.0, 0.0, 2 / 2.5, 0.0, 0.0)
    # the 5 does not vote: 3 leads 1 by 2 and the 5 gets nothing; group 1 is left with one voter
    result, has_signal = baseline.best_minus_second(REWARD, flags(1, 1, 0, 1, 0), GROUP, 2, std="none")
    assert_is(result, 0.0, 2.0, 0.0, 0.0, 0.0)
    assert_is(has_signal, 1, 1, 1, 0, 0)


def test_normalize_rescaled_mean() -> None:
    # 5 voters, 3 of them in a group whose rewards differ: 5 / 3; by score, nobody has 0: 5 / 5
    result, _ = baseline.rescaled_mean(REWARD, ALL, GROUP, 2)
    assert_near(result, -10 / 3, 0.0, 10 / 3, 0.0, 0.0)
    result, _ = baseline.rescaled_mean(REWARD - 1, ALL, GROUP, 2, counted="nonzero_rewards")  # 0, 2, 4, 1, 1: 5 / 4
    assert_near(result, -2.5, 0.0, 2.5, 0.0, 0.0)
    # one voter of group 0 fewer: 4 voters, 2 of them teach
    result, _ = baseline.rescaled_mean(REWARD, flags(1, 1, 0, 1, 1), GROUP, 2)
    assert_near(result, -2.0, 2.0, 6.0, 0.0, 0.0)
    # nothing differs: nothing to scale
    assert_is(baseline.rescaled_mean(tokens(0.0, 0.0), flags(1, 1), index(0, 0), 1)[0], 0.0, 0.0)


def test_normalize_minus_given() -> None:
    result, has_signal = baseline.minus_given(tokens(1.0, 0.0), flags(1, 0), tokens(0.25, 0.5))
    assert_is(result, 0.75, -0.5)
    assert_is(has_signal, 1, 1)


def test_normalize_minus_role_average() -> None:
    result, has_signal = baseline.minus_role_average(tokens(1.0, 0.0), flags(1, 0), tokens(0.25, -0.5))
    assert_is(result, 0.75, 0.5)
    assert_is(has_signal, 1, 1)
    assert recipe("reinforce", normalize="minus_role_average").normalize.settings == {"decay": 0.95}
    with pytest.raises(SignalError, match="an average that forgets nothing stays where it starts, at 0"):
        recipe("reinforce", normalize={"formula": "minus_role_average", "decay": 1.0})


def test_normalize_running() -> None:
    result, has_signal = baseline.running(tokens(3.0, 1.0), flags(1, 0), tokens(2.0)[0], tokens(1.5)[0], eps=0.5)
    assert_is(result, 0.5, -0.5)
    assert_is(has_signal, 1, 1)
    assert_is(baseline.running(tokens(3.0), flags(1), tokens(2.0)[0], tokens(0.0)[0], eps=0.5)[0], 1.0)


def test_leave_one_out_in_units_of_the_others() -> None:
    # rewards 0, 2, 4, 8: others of 8 are 0, 2, 4: mean 2, std 2, so 6 / (2 + 0.5);
    # of 0: 2, 4, 8, mean 14/3, squares (64 + 4 + 100)/9 = 168/9, std sqrt(168/18)
    reward, votes, group = tokens(0.0, 2.0, 4.0, 8.0), flags(1, 1, 1, 1), index(0, 0, 0, 0)
    result, _ = normalize.leave_one_out(reward, votes, group, 1, std="others", eps=0.5)
    assert_near(result[3:], 6 / 2.5)
    assert_near(result[:1], -14 / 3 / (sqrt(168 / 18) + 0.5))
    # a single success: its others agree, so it is not divided; the others' others are 0, 0, 1: mean 1/3, std sqrt(1/3)
    result, _ = normalize.leave_one_out(tokens(0.1, 0.1, 0.1, 1.1), votes, group, 1, std="others", eps=0.0)
    assert_near(result, *[-1 / 3 / sqrt(1 / 3)] * 3, 1.0)
    # one other has no spread
    result, _ = normalize.leave_one_out(tokens(1.0, 4.0), flags(1, 1), index(0, 0), 1, std="others")
    assert_is(result, -3.0, 3.0)
    # a non-voter of 9 beside voters 0, 2, 4 would get 7 / 2, and gets what the best of them gets: 3 / std(0, 2)
    result, _ = normalize.leave_one_out(tokens(0.0, 2.0, 4.0, 9.0), flags(1, 1, 1, 0), group, 1, std="others", eps=0.0)
    assert_near(result, -3 / sqrt(2), 0.0, 3 / sqrt(2), 3 / sqrt(2))


def test_mean_std_with_a_shift_below_the_mean() -> None:
    # group mean 3 and shift -0.5: 1 - 2.5, 3 - 2.5, 5 - 2.5; a constant group is pushed up by 0.5
    result, _ = normalize.mean_std(REWARD, ALL, GROUP, 2, mean="group", std="none", shift=-0.5)
    assert_near(result, -1.5, 0.5, 2.5, 0.5, 0.5)
    result, _ = normalize.mean_std(REWARD, ALL, GROUP, 2, mean="group", std="group", ddof=1, eps=0.0, shift=-0.5)
    assert_near(result, -0.75, 0.25, 1.25, 0.5, 0.5)


def test_the_shift_and_the_spread_of_others_are_the_same_on_both_paths() -> None:
    from trimtab.signal import part, use_path

    given = SignalBatch.from_tokens([1] * 5, reward=[1.0, 3.0, 5.0, 2.0, 2.5], group=[0, 0, 0, 1, 1])
    for chosen in (
        part("normalize.mean_std", mean="group", std="none", shift=-0.5),
        part("normalize.mean_std", mean="group", std="group", shift=-0.5),
        part("normalize.mean_std", mean="batch", std="group", shift=-0.5),
        part("normalize.leave_one_out", std="others"),
    ):
        made = recipe("reinforce", normalize=chosen)
        fast = prepare(given, made)[0].advantage
        with use_path("reference"):
            torch.testing.assert_close(prepare(given, made)[0].advantage, fast, rtol=1e-6, atol=1e-7)


def test_others_are_the_voters_of_the_group_without_oneself() -> None:
    beside, theirs = Voters.of("group", flags(1, 1, 0, 1, 1), GROUP, 2).others(REWARD)
    found = [row[there].tolist() for row, there in zip(beside, theirs, strict=True)]
    assert found == [[3.0], [1.0], [1.0, 3.0], [2.0], [2.0]]


# --- several rewards ----------------------------------------------------------------------------------------------

REWARDS = torch.tensor([[1.0, 10.0], [3.0, 30.0], [5.0, nan], [2.0, 0.0], [2.0, 4.0]], dtype=torch.float64)
SCORED = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1], [1, 1]], dtype=torch.bool)


def test_reward_weighted_sum() -> None:
    # the second reward of episode 2 abstained: only the first counts
    assert_is(several_rewards.weighted_sum(REWARDS, SCORED, weights=(2.0, 0.5)), 7.0, 21.0, 10.0, 4.0, 6.0)


def test_weights_and_keys_go_together() -> None:
    with pytest.raises(SignalError, match="carries 2 rewards per episode and there are 1 weights"):
        several_rewards.weighted_sum(REWARDS, SCORED, weights=(1.0,))


def test_normalize_each_key() -> None:
    # key 0: (-1, 0, 1) in group 0 and 0, 0 in group 1; key 1: voters 10, 30 of group 0 and 0, 4 of group 1,
    # each (-1, 1) / sqrt(2); episode 2 is not scored in key 1 and gets nothing from it
    half = 1 / sqrt(2)
    result, has_signal = several_rewards.each_key(
        REWARDS, SCORED, ALL, GROUP, 2, weights=(1.0, 0.5), ddof=1, eps=0.0, whitened=False
    )
    plain = (-1 - half / 2, half / 2, 1.0, -half / 2, half / 2)
    assert_near(result, *plain)
    assert_is(has_signal, 1, 1, 1, 1, 1)
    mean = sum(plain) / 5
    scale = sqrt(sum((one - mean) ** 2 for one in plain) / 4 + 1e-8)
    result, _ = several_rewards.each_key(REWARDS, SCORED, ALL, GROUP, 2, weights=(1.0, 0.5), ddof=1, eps=0.0)
    assert_near(result, *((one - mean) / scale for one in plain))


def test_several_rewards_come_through_the_door() -> None:
    given = SignalBatch.from_tokens([1, 2, 1, 1, 1], reward=REWARD, group=GROUP, rewards=REWARDS, rewards_scored=SCORED)
    settings = {"formula": "each_key", "weights": (1.0, 0.5), "eps": 0.0, "whitened": False}
    prepared, _ = prepare(given, recipe("reinforce", normalize=settings))
    assert prepared.advantage[[0, 3]].tolist() == pytest.approx([-1 - 1 / sqrt(8), 1.0])
    prepared, _ = prepare(given, recipe("reinforce", reward={"formula": "weighted_sum", "weights": (2.0, 0.5)}))
    assert prepared.advantage.tolist() == [7.0, 21.0, 21.0, 10.0, 4.0, 6.0]
    with pytest.raises(SignalError, match="carries rewards but recipe 'grpo' reads none, so it would be lost"):
        prepare(given, recipe("grpo", kl=None, loss="reinforce"))
    given = SignalBatch.from_tokens([1, 2, 1, 1, 1], reward=REWARD, group=GROUP, baseline=[1.0] * 5)
    prepared, _ = prepare(given, recipe("reinforce", normalize="minus_given"))
    assert prepared.advantage.tolist() == [0.0, 2.0, 2.0, 4.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"rewards": REWARDS}, r"rewards is nan at \[2, 1\]"),
        ({"rewards": REWARD}, r"rewards has shape \[5\]; it has one row per episode"),
        ({"rewards": REWARDS[:3], "rewards_scored": SCORED[:3]}, r"rewards has shape \[3, 2\] for 5 episodes"),
        ({"rewards": REWARDS, "rewards_scored": SCORED[:, :1]}, r"rewards_scored has shape \[5, 1\]"),
        ({"rewards_scored": SCORED}, "there are none"),
        ({"baseline": [0.0, 1.0]}, r"baseline has shape \[2\] for 5 episodes"),
        ({"role": [0, 1]}, r"role has shape \[2\] for 5 episodes, so it cannot be told whose is whose"),
        ({"role": [0, 1, -2, 0, 1]}, "role is -2 at episode 2, and a role is named by a number from 0"),
        ({"role": [0.0, 1.0, 0.5, 0.0, 1.0]}, "role: holds float"),
    ],
)
def test_wrong_rewards_are_refused(fields: dict[str, object], says: str) -> None:
    with pytest.raises(SignalError, match=says):
        SignalBatch.from_tokens([1] * 5, reward=REWARD, group=GROUP, **fields)


def test_a_recipe_whose_shaping_would_be_lost_is_refused() -> None:
    keys = {"formula": "each_key", "weights": (1.0, 1.0)}
    with pytest.raises(SignalError, match="reads the batch's rewards and not the shaped reward"):
        recipe("dapo", normalize=keys)
    with pytest.raises(SignalError, match=r"kl\.into = 'sequence_reward' would be lost"):
        recipe("rloo", normalize=keys)
    with pytest.raises(SignalError, match="replaces the reward, so the shaping before it would be lost"):
        recipe("grpo", reward=["affine", {"formula": "weighted_sum", "weights": (1.0,)}])
    with pytest.raises(SignalError, match="needs rewards, which the batch does not carry"):
        prepare(SignalBatch.from_tokens([1, 1], reward=[0.0, 1.0], group=[0, 0]), recipe("reinforce", normalize=keys))


def test_groups_outside_the_band_do_not_train() -> None:
    # means 3 and 2; strictly inside (2, 3.5) is only the first
    given = SignalBatch.from_tokens([1] * 5, reward=REWARD, group=GROUP)
    prepared, _ = prepare(given, recipe("reinforce", group_mean_band=(2.0, 3.5)))
    assert prepared.trains.tolist() == [True, True, True, False, False]
    assert prepared.metrics.numbers()["out_of_band_groups/group_fraction"] == 0.5
    assert prepare(given, recipe("reinforce", group_mean_band=[1.9, 3.5]))[0].trains.all()
    with pytest.raises(SignalError, match=r"group_mean_band = \(1, 0\) is not possible"):
        recipe("reinforce", group_mean_band=(1, 0))


def test_token_rewards_are_whitened_before_they_become_returns() -> None:
    # token rewards 0, 1, 0, 3 (two sequences of two): mean 1, variance (1 + 0 + 1 + 4) / 3 = 2
    zeros = torch.zeros(2, dtype=torch.float64)
    given = SignalBatch.from_list(
        [[1, 1], [1, 1]], reward=[0.0, 0.0], group=[0, 1], token_reward=[[0.0, 1.0], [0.0, 3.0]],
        logp_old=[zeros, zeros], logp_ref=[zeros, zeros],
    )  # fmt: skip
    chosen = recipe("reinforce_plus_plus", whiten=False, whiten_token_rewards=True)
    scale = sqrt(2 + 1e-8)
    assert_near(prepare(given, chosen)[0].advantage, -1 / scale, 0.0, 1 / scale, 2 / scale)
    with pytest.raises(SignalError, match="reads no token rewards, so it would act nowhere"):
        recipe("grpo", whiten_token_rewards=True)


def test_each_key_needs_a_weight_per_key() -> None:
    with pytest.raises(SignalError, match="each_key: the batch carries 2 rewards per episode and there are 3 weights"):
        several_rewards.each_key(REWARDS, SCORED, ALL, GROUP, 2, weights=(1.0, 1.0, 1.0))

"""Rewards by hand."""

from tests.golden.exact import assert_is, assert_near, flags, index, lengths, tokens

from trimtab.signal import reward


def test_reward_affine() -> None:
    # (2 - 0.5) * 4 = 6; (-1 - 0.5) * 4 = -6: the shift comes before the stretch
    assert_is(reward.affine(tokens(2.0, -1.0), bias=-0.5, scale=4.0), 6.0, -6.0)
    assert_is(reward.affine(tokens(2.0, -1.0)), 2.0, -1.0)  # it is off until it is told something


def test_reward_clip() -> None:
    assert_is(reward.clip(tokens(-30.0, -2.0, 0.5, 7.0), low=-2.0, high=3.0), -2.0, -2.0, 0.5, 3.0)


def test_reward_soft_overlong() -> None:
    # max_length 100, buffer 20: the ramp starts at 80 and ends at 100; beyond, the penalty stays.
    #   80 -> 0/20 = 0;   85 -> 5/20 = 0.25;   100 -> 20/20 = 1;   130 -> held at 1;   10 -> held at 0
    # factor 2, reward 1: 1 - 2 * that
    length = tokens(80.0, 85.0, 100.0, 130.0, 10.0)
    shaped = reward.soft_overlong(tokens(1.0, 1.0, 1.0, 1.0, 1.0), length, max_length=100.0, buffer=20.0, factor=2.0)
    assert_is(shaped, 1.0, 0.5, -1.0, -1.0, 1.0)


def test_reward_not_ended_penalty() -> None:
    assert_is(reward.not_ended_penalty(tokens(1.0, 1.0, -0.25), flags(1, 0, 0), amount=0.5), 1.0, 0.5, -0.75)


def test_reward_not_ended_scale() -> None:
    assert_is(reward.not_ended_scale(tokens(1.0, 1.0, -2.0), flags(1, 0, 0), factor=0.25), 1.0, 0.25, -0.5)


def test_reward_not_ended_constant() -> None:
    assert_is(reward.not_ended_constant(tokens(1.0, 1.0, -2.0), flags(1, 0, 0), value=-0.5), 1.0, -0.5, -0.5)


def test_reward_relative_length() -> None:
    # group 0: rewards 1, 0 and 1 with lengths 10, 40 and 80; the last does not vote, so mean 1/2 and longest 40:
    #   1 - 0.2 * 0.5 * 10/40, 0 - 0.2 * 0.5 * 1, 1 - 0.2 * 0.5 * 1 (held at the longest voter)
    # group 1: nobody is right, nobody pays; group 2: nobody votes
    given, length = tokens(1.0, 0.0, 1.0, 0.0, 0.0, 5.0), tokens(10.0, 40.0, 80.0, 7.0, 9.0, 3.0)
    found = reward.relative_length(given, length, flags(1, 1, 0, 1, 1, 0), index(0, 0, 0, 1, 1, 2), 3, factor=0.2)
    assert_near(found, 0.975, -0.1, 0.9, 0.0, 0.0, 5.0)


def test_token_rewards_put_the_reward_on_the_last_token_and_leave_the_kl_alone() -> None:
    # sequences of 2, 0 and 1 tokens with rewards 1, 9 and -1: the empty one has no token to carry its 9
    #   r = -0.05 * kl, plus the reward at the last token: [-0.05*2, -0.05*4 + 1, -0.05*(-1) - 1]
    kl = tokens(2.0, 4.0, -1.0)
    shaped = reward.token_rewards(kl, tokens(1.0, 9.0, -1.0), lengths(2, 0, 1), kl_coef=0.05)
    assert_near(shaped, -0.1, 0.8, -0.95)
    assert_is(kl, 2.0, 4.0, -1.0)


def test_nobody_pays_for_length_beside_voters_without_any() -> None:
    # group 0: the voters have 0 tokens, who does not vote has 5; group 1: one voter of 1 token pays 0.2 * its reward
    found = reward.relative_length(
        tokens(1.0, 1.0, 1.0, 2.0), tokens(0.0, 0.0, 5.0, 1.0), flags(1, 1, 0, 1), index(0, 0, 0, 1), 2, factor=0.2
    )
    assert_near(found, 1.0, 1.0, 1.0, 1.6)

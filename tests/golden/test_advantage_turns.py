"""Credit of turns and of steps where groups, states and voters meet their edges."""

from math import sqrt

from tests.golden.exact import assert_near, flags, index, lengths, log, tokens

from trimtab.signal import token_baseline, turns


def test_steps_of_groups_are_kept_apart_and_who_does_not_vote_is_not_read() -> None:
    # group 0: lengths 2, 1 and a silent one; group 1: lengths 1, 1. W is 1 at every step, so b is a plain mean.
    # step 0: (3 + 1) / 2 = 2 and (8 + 6) / 2 = 7; step 1 of sequence 0 has one voter
    credit, _ = token_baseline.optimal_token_baseline(
        tokens(1.0, 2.0, 1.0, 90.0, 8.0, 6.0), log(*[0.5] * 6), tokens(1.0, 0.0, 1.0, 1.0, 1.0, 1.0),
        flags(1, 1, 0, 1, 1), index(0, 1, 2, 3, 4), index(0, 0, 0, 1, 1), 2, lengths(2, 1, 1, 1, 1), eps=0.0,
    )  # fmt: skip
    assert_near(credit, 1.0, 2.0, -1.0, 88.0, 1.0, -1.0)


def test_the_floor_of_a_spread_is_added() -> None:
    # returns 1 and 3: std sqrt(2), so 1 / (sqrt(2) + 1)
    credit, _ = turns.turn_reward_to_go(
        tokens(1.0, 3.0), index(0, 0), flags(1, 1), index(0, 1), index(0, 0), 1, lengths(1, 1), compared="group",
        eps=1.0,
    )  # fmt: skip
    assert_near(credit, -1 / (sqrt(2) + 1), 1 / (sqrt(2) + 1))


def test_an_episode_without_tokens_earned_nothing() -> None:
    # episode 2 has no token: rewards 1, 2 and 0, mean 1
    paid, owner = tokens(1.0, 2.0), index(0, 1, 2)
    credit, _ = turns.turns_by_state(
        paid, tokens(1.0, 2.0, 5.0), index(0, 0), index(0, 1), flags(1, 1, 1), owner, index(0, 0, 0), 1,
        lengths(1, 1, 0), std="none",
    )  # fmt: skip
    assert_near(credit, 0.0, 1.0)

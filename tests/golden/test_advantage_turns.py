"""Credit of turns and of steps where groups, states and voters meet their edges."""

from math import sqrt

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, log, tokens

from trimtab.signal import token_baseline, turns


def of_single_turns(rewards: list[float], state: list[int], group: list[int], **settings: object) -> torch.Tensor:
    """Credit by state alone of episodes with one token each."""
    paid, alone = tokens(*rewards), lengths(*[1] * len(rewards))
    who = (flags(*[1] * len(rewards)), index(*range(len(rewards))), index(*group), max(group) + 1, alone)
    both, _ = turns.turns_by_state(paid, paid, index(*[0] * len(rewards)), index(*state), *who, eps=0.0, **settings)
    outcome, _ = turns.turns_by_state(
        paid, paid, index(*[0] * len(rewards)), index(*state), *who, eps=0.0, coef=0.0, **settings
    )
    return both - outcome


def test_a_state_is_compared_within_its_group_only() -> None:
    # group 2 in state 7 and group 0 in state 9 are two places, whatever numbers they are given
    rewards, group, state = [1.0, 3.0, 5.0, 5.0, 10.0, 20.0], [0, 0, 1, 1, 2, 2], [9, 9, 7, 9, 7, 7]
    assert_near(of_single_turns(rewards, state, group, std="none"), -1.0, 1.0, 0.0, 0.0, -5.0, 5.0)


def test_turns_that_agree_have_no_credit_and_no_undefined_number() -> None:
    assert_is(of_single_turns([0.1, 0.1, 0.1], [4, 4, 4], [0, 0, 0]), 0.0, 0.0, 0.0)
    rewards, turn, segments = tokens(0.1, 0.1), index(0, 0), lengths(1, 1)
    credit, _ = turns.turn_reward_to_go(
        rewards, turn, flags(1, 1), index(0, 1), index(0, 0), 1, segments, compared="group", eps=0.0
    )
    assert_is(credit, 0.0, 0.0)


def test_an_outcome_at_the_end_of_three_sequences_counts_once_in_float32_too() -> None:
    # both episodes earned 0.1, one of them written at the end of three sequences: nobody is better
    paid = torch.full((4,), 0.1)
    credit, _ = turns.turns_by_state(
        paid, paid, index(0, 0, 0, 0), index(1, 2, 3, 4), flags(1, 1), index(0, 0, 0, 1), index(0, 0), 1,
        lengths(1, 1, 1, 1),
    )  # fmt: skip
    assert_near(credit.double(), 0.0, 0.0, 0.0, 0.0, atol=1e-9)


def test_the_floor_of_the_token_baseline_is_added() -> None:
    # p = 1/2, so W = pi_squared = 1 and 2 at the one step; b = (1*1 + 2*4) / (1 + 2 + eps) = 9/4 with eps 1
    credit, _ = token_baseline.optimal_token_baseline(
        tokens(1.0, 4.0), log(0.5, 0.5), tokens(1.0, 2.0), flags(1, 1), index(0, 1), index(0, 0), 1, lengths(1, 1),
        eps=1.0,
    )  # fmt: skip
    assert_near(credit, 1 - 9 / 4, 4 - 9 / 4)


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


@pytest.mark.parametrize("counts", [(), (0,), (0, 0)])
def test_without_tokens_there_is_no_credit(counts: tuple[int, ...]) -> None:
    num, none = len(counts), tokens()
    who = (flags(*[1] * num), index(*range(num)), index(*[0] * num), min(num, 1), lengths(*counts))
    credit, returns = token_baseline.optimal_token_baseline(none, none, none, *who)
    assert credit.shape == returns.shape == (0,)

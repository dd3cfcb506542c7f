"""Credit over tokens by hand. Two sequences, of 3 and 2 tokens."""

from math import nan, sqrt

import pytest
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, log, tokens

from trimtab.errors import SignalError
from trimtab.signal import SignalBatch, advantage, prepare, recipe, teacher, token_baseline, turns


def test_advantage_broadcast() -> None:
    credit, returns = advantage.broadcast(tokens(0.5, -2.0, 9.0), lengths(3, 2, 0))
    assert_is(credit, 0.5, 0.5, 0.5, -2.0, -2.0)
    assert_is(returns, 0.5, 0.5, 0.5, -2.0, -2.0)


def test_advantage_reward_to_go() -> None:
    # gamma 1/2: [1 + (2 + 4/2)/2, 2 + 4/2, 4] = [3, 4, 4]; the second sequence starts anew: [-1 + 6/2, 6] = [2, 6]
    credit, returns = advantage.reward_to_go(tokens(1.0, 2.0, 4.0, -1.0, 6.0), lengths(3, 2), gamma=0.5)
    assert_is(credit, 3.0, 4.0, 4.0, 2.0, 6.0)
    assert_is(returns, 3.0, 4.0, 4.0, 2.0, 6.0)


def test_advantage_gae() -> None:
    # gamma 1/2, lambda 1/2, so gamma * lambda = 1/4. Sequence 0 ended: nothing follows its last token.
    #   d_0 = 0 + 0.5*2 - 1 = 0        A_0 = 0  + A_1/4 = 0.125
    #   d_1 = 0 + 0.5*3 - 2 = -0.5     A_1 = -0.5 + A_2/4 = 0.5 (A_2 = 4)  -> -0.5 + 1 = 0.5
    #   d_2 = 7 + 0 - 3 = 4            A_2 = 4
    # Sequence 1 was cut off in a state worth 8: d_4 = 1 + 0.5*8 - 2 = 3, A_4 = 3;
    #   d_3 = 0 + 0.5*2 - 5 = -4       A_3 = -4 + 3/4 = -3.25
    # value_after of the sequence that ended is never read: nan there changes nothing.
    credit, returns = advantage.gae(
        tokens(0.0, 0.0, 7.0, 0.0, 1.0), tokens(1.0, 2.0, 3.0, 5.0, 2.0), tokens(nan, 8.0), flags(1, 0), lengths(3, 2),
        gamma=0.5, lam=0.5,
    )  # fmt: skip
    assert_near(credit, 0.125, 0.5, 4.0, -3.25, 3.0)
    # returns = A + V
    assert_near(returns, 1.125, 2.5, 7.0, 1.75, 5.0)


def test_gae_refuses_a_cut_off_sequence_without_a_value_after_it() -> None:
    with pytest.raises(SignalError, match=r"gae: sequences \[1\] did not end by themselves"):
        advantage.gae(tokens(0.0, 1.0), tokens(0.0, 0.0), tokens(nan, nan), flags(1, 0), lengths(1, 1))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 16, 17])
def test_the_doubling_sum_is_the_plain_sum_at_every_length(size: int) -> None:
    # rewards 1, 2, ..., size with gamma 1/2, added up from the back one by one; a neighbour on each side
    expected: list[float] = []
    following = 0.0
    for value in range(size, 0, -1):
        following = value + 0.5 * following
        expected.insert(0, following)
    rewards = [100.0, *map(float, range(1, size + 1)), 200.0]
    credit, _ = advantage.reward_to_go(tokens(*rewards), lengths(1, size, 1), gamma=0.5)
    assert_near(credit, 100.0, *expected, 200.0)


# The case of test_advantage_gae: temporal errors 0, -0.5, 4 and -4, 3, gamma 1/2.
ERRORS = (
    tokens(0.0, 0.0, 7.0, 0.0, 1.0),
    tokens(1.0, 2.0, 3.0, 5.0, 2.0),
    tokens(nan, 8.0),
    flags(1, 0),
    lengths(3, 2),
)


def test_gae_with_two_lambdas_takes_the_returns_from_the_second() -> None:
    credit, returns = advantage.gae(*ERRORS, gamma=0.5, lam=0.5, lam_value=1.0)
    assert_near(credit, 0.125, 0.5, 4.0, -3.25, 3.0)
    # lambda 1, so gamma * lambda = 1/2: A_2 = 4, A_1 = -0.5 + 2 = 1.5, A_0 = 0.75; A_4 = 3, A_3 = -2.5; plus V
    assert_near(returns, 1.75, 3.5, 7.0, 2.5, 5.0)


def test_advantage_gae_by_length() -> None:
    # alpha 1/2: 3 tokens have lambda 1 - 1/1.5 = 1/3, 2 tokens max(0, 1 - 1/1) = 0; times gamma 1/2: 1/6 and 0
    #   A_2 = 4, A_1 = -0.5 + 4/6 = 1/6, A_0 = 1/36; A_4 = 3, A_3 = -4. Returns have lambda 1, as above
    credit, returns = advantage.gae_by_length(*ERRORS, alpha=0.5, gamma=0.5, lam_value=1.0)
    assert_near(credit, 1 / 36, 1 / 6, 4.0, -4.0, 3.0)
    assert_near(returns, 1.75, 3.5, 7.0, 2.5, 5.0)
    # with alpha 1/4, 3 tokens would have 1 - 1/0.75 < 0: lambda is 0 and the errors stand alone
    assert_near(advantage.gae_by_length(*ERRORS, alpha=0.25, gamma=0.5)[0], 0.0, -0.5, 4.0, -4.0, 3.0)


def test_advantage_gae_by_share() -> None:
    # share 1/4 over 3 tokens: lambda (1/4)^(1/2) = 1/2; over 2 tokens 1/4. Times gamma 1/2: 1/4 and 1/8
    credit, returns = advantage.gae_by_share(*ERRORS, share=0.25, gamma=0.5)
    assert_near(credit, 0.125, 0.5, 4.0, -4 + 3 / 8, 3.0)
    assert_near(returns, 1.125, 2.5, 7.0, 1 + 3 / 8, 5.0)
    # with gamma 1 and values 0, the first token gets a quarter of the last reward, and a single token all of it
    one = advantage.gae_by_share(
        tokens(0.0, 0.0, 0.0, 8.0, 3.0), tokens(*[0.0] * 5), tokens(nan, nan), flags(1, 1), lengths(4, 1), share=0.25
    )[0]
    assert_near(one[[0, 4]], 2.0, 3.0)


@pytest.mark.parametrize("name", ["gae_by_length", "gae_by_share"])
def test_every_gae_refuses_a_cut_off_sequence_without_a_value_after_it(name: str) -> None:
    setting = {"gae_by_length": {"alpha": 1.0}, "gae_by_share": {"share": 0.5}}[name]
    with pytest.raises(SignalError, match=rf"{name}: sequences \[1\] did not end by themselves"):
        getattr(advantage, name)(
            tokens(0.0, 1.0), tokens(0.0, 0.0), tokens(nan, nan), flags(1, 0), lengths(1, 1), **setting
        )


def test_advantage_turn_gae() -> None:
    # sequence 0: turns (r 1 + 2, V 4) and (r 5, V 2), ended; sequence 1: one turn (r 1 + 1, V 3), cut off at 8
    # gamma 1/2, lambda 1/2: d = 3 + 1 - 4 = 0, 5 - 2 = 3; A = 0 + 3/4, 3; d = 2 + 4 - 3 = 3
    # the values 100 stand inside a turn and are not read
    credit, returns = turns.turn_gae(
        tokens(1.0, 2.0, 5.0, 1.0, 1.0), tokens(4.0, 100.0, 2.0, 3.0, 100.0), tokens(nan, 8.0), flags(1, 0),
        index(0, 0, 1, 1, 1), lengths(3, 2), gamma=0.5, lam=0.5,
    )  # fmt: skip
    assert_near(credit, 0.75, 0.75, 3.0, 3.0, 3.0)
    assert_near(returns, 4.75, 4.75, 5.0, 6.0, 6.0)


def test_advantage_turn_reward_to_go() -> None:
    # sequence 0: turns worth 1 + 2 and 4: G = 3 + 4/2, 4; sequence 1: one turn worth 2; sequence 2: one worth 9
    rewards, turn, segments = tokens(1.0, 2.0, 4.0, 2.0, 9.0), index(0, 0, 3, 3, 3), lengths(3, 1, 1)
    who = (flags(1, 1, 1), index(0, 1, 2), index(0, 0, 1), 2, segments)
    credit, returns = turns.turn_reward_to_go(rewards, turn, *who, gamma=0.5)
    assert_near(credit, 5.0, 5.0, 4.0, 2.0, 9.0)
    assert_near(returns, 5.0, 5.0, 4.0, 2.0, 9.0)
    # compared in the group: turns 5, 4, 2 have mean 11/3 and squares (16 + 1 + 25)/9, std sqrt(42/18);
    # the second group has one turn: 0
    credit, returns = turns.turn_reward_to_go(rewards, turn, *who, gamma=0.5, compared="group", eps=0.0)
    std = sqrt(42 / 18)
    assert_near(credit, *[(g - 11 / 3) / std for g in (5, 5, 4, 2)], 0.0)
    assert_near(returns, 5.0, 5.0, 4.0, 2.0, 9.0)
    # sequence 1 does not vote: mean 4.5, std sqrt(1/2); it would get -2.5 / std and is held at the lowest turn
    silent = (flags(1, 0, 1), *who[1:])
    credit, _ = turns.turn_reward_to_go(rewards, turn, *silent, gamma=0.5, compared="group", eps=0.0)
    assert_near(credit, *[half / sqrt(0.5) for half in (0.5, 0.5, -0.5, -0.5)], 0.0)


# Two groups of two. Sequence 0 has turns worth 1 + 2 and 4, so G = 3 + 4/2, 4 and R = 7; sequence 1 has turns worth 1
# and 2, so G = 1 + 2/2, 2 and R = 3; the others have one turn each. The state of a turn is that of its first token.
PAID, TURN, STATE = tokens(1.0, 2.0, 4.0, 1.0, 2.0, 9.0, 5.0), index(0, 0, 3, 0, 1, 0, 0), index(8, 9, 9, 8, 8, 8, 4)
BY_STATE = (index(0, 1, 2, 3), index(0, 0, 1, 1), 2, lengths(3, 2, 1, 1))


def test_advantage_turns_by_state() -> None:
    given = (PAID, tokens(4.0, 2.0, 9.0, 5.0), TURN, STATE, flags(1, 1, 1, 1), *BY_STATE)
    # without std: R 7, 3 and 9, 5 are 2 and -2 from their means; state 8 of group 0 has G = 5, 2, 2, mean 3; state 9
    # has one turn, and so has every state of group 1
    credit, returns = turns.turns_by_state(*given, gamma=0.5, coef=0.5, std="none")
    assert_near(credit, 3.0, 3.0, 2.0, -2.5, -2.5, 2.0, -2.0)
    assert_near(returns, 5.0, 5.0, 4.0, 2.0, 2.0, 9.0, 5.0)
    # std of 2, -2 is sqrt(8), that of 2, -1, -1 is sqrt(3)
    credit, _ = turns.turns_by_state(*given, gamma=0.5, coef=0.5, eps=0.0)
    half, third = 1 / sqrt(2), 1 / sqrt(3)
    assert_near(credit, half + third, half + third, half, -half - third / 2, -half - third / 2, half, -half)
    # alike in reward and in every state: no spread, no credit
    credit, _ = turns.turns_by_state(
        tokens(0.1, 0.1), tokens(0.1, 0.1), index(0, 0), index(5, 5), flags(1, 1), index(0, 1), index(0, 0), 1,
        lengths(1, 1),
    )  # fmt: skip
    assert_is(credit, 0.0, 0.0)


def test_a_turn_of_an_episode_that_does_not_vote_moves_nobody_and_stays_among_the_voters() -> None:
    # voters 1 and 3 in one state: -1 and 1, twice; the third would be 7 above the mean and gets what the best gets
    given = (tokens(1.0, 3.0, 9.0), tokens(1.0, 3.0, 9.0), index(0, 0, 0), index(5, 5, 5), flags(1, 1, 0))
    credit, _ = turns.turns_by_state(*given, index(0, 1, 2), index(0, 0, 0), 1, lengths(1, 1, 1), std="none")
    assert_is(credit, -2.0, 2.0, 2.0)
    # in a state with one voter, its turn and that of the silent one have nothing to be compared with
    given = (*given[:3], index(5, 6, 6), given[4])
    credit, _ = turns.turns_by_state(*given, index(0, 1, 2), index(0, 0, 0), 1, lengths(1, 1, 1), std="none")
    assert_is(credit, -1.0, 1.0, 1.0)


def test_the_outcome_of_an_episode_in_several_sequences_counts_once() -> None:
    # episode 0: 1 and 0.5 beside an outcome of 3 that ends both of its sequences, so R = 4.5; its third has no token
    # and ends with nothing. Episode 1: R = 2.5
    credit, _ = turns.turns_by_state(
        tokens(1.0, 3.0, 3.5, 2.5), tokens(3.0, 3.0, 2.5, 3.0), index(0, 0, 0, 0), index(1, 1, 2, 3), flags(1, 1),
        index(0, 0, 1, 0), index(0, 0), 1, lengths(2, 1, 1, 0), std="none",
    )  # fmt: skip
    assert_is(credit, 1.0, 1.0, 1.0, -1.0)


def test_turns_by_state_refuses_fractions_and_an_episode_without_company() -> None:
    given = (tokens(1.0), tokens(1.0), index(0))
    with pytest.raises(SignalError, match=r"state holds float64, so a rounding would part turns .* Give a tensor or"):
        turns.turns_by_state(*given, tokens(5.0), flags(1), index(0), index(0), 1, lengths(1))
    with pytest.raises(SignalError, match=r"turns_by_state: episodes \[0\] are alone in their group"):
        turns.turns_by_state(*given, index(5), flags(1), index(0), index(0), 1, lengths(1))


def test_the_state_of_a_turn_comes_as_an_extra_field() -> None:
    fields = {"turn": [0, 0, 1, 0], "logp_rollout": [-1.0] * 4}
    given = SignalBatch.from_tokens(
        [3, 1], reward=[1.0, 0.0], group=[0, 0], extra={"state": index(7, 7, 8, 7)}, **fields
    )
    chosen = recipe("reinforce", advantage={"formula": "turns_by_state", "gamma": 0.5, "std": "none"})
    # R = 1, 0; in state 7, G = 0.5 and 0
    assert_is(prepare(given, chosen)[0].advantage, 0.75, 0.75, 0.5, -0.75)
    bare = SignalBatch.from_tokens([3, 1], reward=[1.0, 0.0], group=[0, 0], **fields)
    with pytest.raises(SignalError, match=r"advantage.turns_by_state: reads \['state'\]"):
        prepare(bare, chosen)
    with pytest.raises(SignalError, match="finds the outcome among the token rewards, and whitened ones no longer"):
        recipe("reinforce", advantage="turns_by_state", whiten_token_rewards=True)


def test_turns_end_with_their_sequence() -> None:
    found = turns.Turns.of(index(0, 0, 2, 2), lengths(3, 0, 1))
    assert found.of_token.tolist() == [0, 0, 1, 2]
    assert found.starts.tolist() == [0, 2, 3]
    assert found.segments.token_counts.tolist() == [2, 0, 1]


def test_advantage_plus_teacher() -> None:
    # log(0.5 / 0.25) = log 2 up, log(0.25 / 0.5) down
    credit, returns = teacher.plus_teacher(
        tokens(1.0, -1.0), log(0.5, 0.25), log(0.25, 0.5), lengths(1, 1), coef=0.5, outcome_coef=2.0
    )
    (up,) = log(2.0).tolist()
    assert_near(credit, 2 + up / 2, -2 - up / 2)
    assert_near(returns, 2 + up / 2, -2 - up / 2)


def test_advantage_scaled_by_teacher() -> None:
    # ratios teacher/old 1.1, 2, 0.5 with outcome 1: 1.1, 1.2 (held), 0.8 (held); with outcome -1 the inverse of 1.25
    credit, _ = teacher.scaled_by_teacher(
        tokens(1.0, -1.0, 0.0), log(0.55, 0.8, 0.25, 0.5, 0.9), log(0.5, 0.4, 0.5, 0.4, 0.1), lengths(3, 1, 1),
        share=0.25, band=(0.8, 1.2),
    )  # fmt: skip
    assert_near(credit, 0.75 + 0.275, 0.75 + 0.3, 0.75 + 0.2, -(0.75 + 0.2), 0.0)


def test_advantage_optimal_token_baseline() -> None:
    # p = 1/2, so each token weighs 1 - 1 + pi_squared: W = 1, 1 + 3 = 4 and 2, 2 + 2 = 4
    # G = (1 + 1, 1) and (4, 4): b_0 = (1*2 + 2*4) / 3 = 10/3, b_1 = (4*1 + 4*4) / 8 = 2.5
    # the third token of sequence 0 is alone at its step: no baseline
    half = log(*[0.5] * 5)
    credit, returns = token_baseline.optimal_token_baseline(
        tokens(1.0, 1.0, 0.0, 0.0, 4.0), half, tokens(1.0, 3.0, 1.0, 2.0, 2.0), flags(1, 1), index(0, 1), index(0, 0),
        1, lengths(3, 2), eps=0.0,
    )  # fmt: skip
    assert_near(credit, 2 - 10 / 3, 1 - 2.5, 0.0, 4 - 10 / 3, 4 - 2.5)
    assert_near(returns, 2.0, 1.0, 0.0, 4.0, 4.0)
    # if the second does not vote, nobody is compared with anybody
    credit, _ = token_baseline.optimal_token_baseline(
        tokens(1.0, 1.0, 0.0, 0.0, 4.0), half, tokens(1.0, 3.0, 1.0, 2.0, 2.0), flags(1, 0), index(0, 1), index(0, 0),
        1, lengths(3, 2), eps=0.0,
    )  # fmt: skip
    assert_near(credit, 2.0, 1.0, 0.0, 4.0, 4.0)

"""Credit over tokens by hand. Two sequences, of 3 and 2 tokens."""

from math import nan

import pytest
from tests.golden.exact import assert_is, assert_near, flags, lengths, tokens

from trimtab.errors import SignalError
from trimtab.signal import advantage


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

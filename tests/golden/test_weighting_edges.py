"""Weights where one token or one sequence is all there is: the denominator is 1 and nothing shrinks."""

import pytest
from tests.golden.exact import assert_is, flags, lengths, tokens

from trimtab.signal import weighting


@pytest.mark.parametrize("over", ["all", "kept"])
def test_a_single_token_weighs_one(over: str) -> None:
    one, keep, segments = tokens(1.0), flags(1), lengths(1)
    assert_is(weighting.token_mean(one, keep, over=over), 1)
    assert_is(weighting.sequence_mean_token_mean(one, keep, segments, over=over), 1)
    assert_is(weighting.sequence_mean_token_sum(one, keep, segments, over=over), 1)
    assert_is(weighting.constant_divisor(one, keep, segments, divisor=4.0, over=over), 0.25)


def test_the_one_kept_token_of_three_weighs_one_over_what_is_kept() -> None:
    three, keep, segments = tokens(1.0, 1.0, 1.0), flags(0, 1, 0), lengths(2, 1)
    assert_is(weighting.token_mean(three, keep, over="kept"), 0, 1, 0)
    assert_is(weighting.sequence_mean_token_mean(three, keep, segments, over="kept"), 0, 1, 0)
    assert_is(weighting.sequence_mean_token_sum(three, keep, segments, over="kept"), 0, 1, 0)
    # over all: two sequences, of which t's has two tokens
    assert_is(weighting.sequence_mean_token_mean(three, keep, segments), 0, 0.25, 0)


def test_nothing_kept_weighs_nothing() -> None:
    assert_is(weighting.token_mean(tokens(1.0), flags(0), over="kept"), 0)
    assert_is(weighting.sequence_mean_token_mean(tokens(1.0), flags(0), lengths(1), over="kept"), 0)

"""Trust regions with a memory, by hand: moves of the sampled token's probability, from 0.5, in sequences."""

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, index, lengths, tokens
from tests.golden.exact import log as logp

from trimtab.errors import SignalError
from trimtab.signal import part, prefix
from trimtab.signal.layout import Segments
from trimtab.signal.reduce import earlier_sum, sequence_quantile

# moves 0.1, 0.1, 0.12 | 0.2, -0.02, nothing, 0.1
LATER = logp(0.6, 0.6, 0.62, 0.7, 0.48, 0.5, 0.6)
EARLIER = logp(0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
LENGTHS = lengths(3, 0, 4)
UP = tokens(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


def test_keep_prefix_budget() -> None:
    # weights 1, 0.9, 0.8 | 1, 14/15, 13/15, 0.8. The 0.9 quantiles, 0.116 and 0.17, are held at the budget 0.04.
    # sequence 0: costs 0.1, 0.09, 0.096; spare 0, -0.06, -0.06 - 0.9 * 0.06 = -0.114: limits 0.15, 0.09, 0.036
    # sequence 1: costs 0.2, 0.0187, 0, 0.08; spare 0, -0.16, -0.16 + 14/15 * 0.02 = -0.1413, -0.1413 + 13/15 * 0.04
    #   = -0.1067: limits 0.15, -0.01, 0.0087, 0.0433
    keep, seen = prefix.prefix_budget(LATER, EARLIER, UP, LENGTHS, limit=0.1501)
    assert_is(seen["over_high_tokens"], 0, 0, 0, 1, 0, 0, 0)
    assert_is(seen["over_budget_tokens"], 0, 0, 1, 1, 1, 0, 1)
    assert_is(keep, 1, 1, 0, 0, 1, 1, 0)  # token 4 fell where its advantage pulls up
    keep, _ = prefix.prefix_budget(LATER, EARLIER, -UP, LENGTHS, limit=0.1501)
    assert_is(keep, 1, 1, 1, 1, 0, 1, 1)
    keep, _ = prefix.prefix_budget(LATER, EARLIER, 0 * UP, LENGTHS, limit=0.01)
    assert_is(keep, 1, 1, 1, 1, 1, 1, 1)


def test_a_budget_lies_between_its_bounds() -> None:
    # one sequence, moves 0.1, 0.1, 0.12, every token weighs the same, limit 0.11: what was spent before token 2 decides
    def kept(**given: float) -> list[bool]:
        one = prefix.prefix_budget(LATER[:3], EARLIER[:3], UP[:3], lengths(3), limit=0.1201, last_weight=1.0, **given)
        return one[0].tolist()

    # the quantile, 0.116, is above what moved before: nothing is owed
    assert kept(budget_low=0.02, budget_high=0.2) == [True, True, True]
    # 0.11 each: 2 * 0.01 were saved, and are not lent: the limit stays. At 0.095, 2 * 0.005 are owed
    assert kept(budget_low=0.02, budget_high=0.11) == [True, True, True]
    assert kept(budget_low=0.02, budget_high=0.095) == [True, True, False]
    # the smallest move is 0.1 as well, and a floor lifts it
    assert kept(budget_low=0.02, budget_high=0.2, quantile=0.0) == [True, True, True]
    assert kept(budget_low=0.02, budget_high=0.09, quantile=0.0) == [True, True, False]
    assert kept(budget_low=0.1, budget_high=0.1, quantile=0.0) == [True, True, True]


def test_what_was_saved_is_not_lent() -> None:
    # three still tokens save 3 * 0.02; the fourth moves by 0.2 and may move by 0.15
    later, earlier = logp(0.5, 0.5, 0.5, 0.7), logp(0.5, 0.5, 0.5, 0.5)
    keep, _ = prefix.prefix_budget(later, earlier, UP[:4], lengths(4), last_weight=1.0)
    assert_is(keep, 1, 1, 1, 0)


def test_a_probability_is_at_most_1() -> None:
    keep, _ = prefix.prefix_budget(tokens(1e-4), logp(0.9999), UP[:1], lengths(1), limit=1.5e-4)
    assert_is(keep, 1)


def test_an_earlier_probability_is_at_most_1_too() -> None:
    keep, _ = prefix.prefix_budget(logp(0.9999), tokens(1e-4), -UP[:1], lengths(1), limit=1.5e-4)
    assert_is(keep, 1)


def test_a_cost_of_exactly_the_limit_is_kept() -> None:
    # from 1/2 to 1/4, and nothing was spent before
    for later, earlier, pull in ((logp(0.25), logp(0.5), -UP[:1]), (logp(0.5), logp(0.25), UP[:1])):
        keep, seen = prefix.prefix_budget(later, earlier, pull, lengths(1), limit=0.25)
        assert_is(keep, 1)
        assert_is(seen["over_high_tokens"], 0)
        assert_is(seen["over_budget_tokens"], 0)


def test_weights_fall_evenly_from_the_first_token_to_the_last() -> None:
    assert_is(prefix._progress(lengths(1, 2, 0, 3, 5)), 0.0, 0.0, 1.0, 0.0, 0.5, 1.0, 0.0, 0.25, 0.5, 0.75, 1.0)


@pytest.mark.parametrize("logp_of", [-0.2, -0.3, -0.4, -0.5])
def test_probabilities_are_taken_in_double_precision(logp_of: float) -> None:
    """Rounded to float32, each of them is more than 1e-9 off, up or down."""
    narrow, nothing = torch.tensor([logp_of]), torch.tensor([-1000.0])
    exact = float(narrow.double().exp())
    assert abs(float(narrow.exp()) - exact) > 1e-9
    for later, earlier, pull in ((narrow, nothing, UP[:1]), (nothing, narrow, -UP[:1])):
        assert_is(prefix.prefix_budget(later, earlier, pull, lengths(1), limit=exact + 1e-10)[0], 1)
        assert_is(prefix.prefix_budget(later, earlier, pull, lengths(1), limit=exact - 1e-10)[0], 0)


def test_a_lone_token_and_one_that_does_not_move() -> None:
    # alone, a token weighs 1: 0.4 is above 0.15. After it, the limit is 0.15 - 0.36, which even a still token is above;
    # it moves nowhere, so it stays
    assert_is(prefix.prefix_budget(logp(0.9), logp(0.5), UP[:1], lengths(1))[0], 0)
    keep, seen = prefix.prefix_budget(logp(0.9, 0.5), logp(0.5, 0.5), UP[:2], lengths(2))
    assert_is(seen["over_budget_tokens"], 1, 1)
    assert_is(keep, 0, 1)


def test_a_budget_above_its_bound_is_refused() -> None:
    with pytest.raises(SignalError, match="budget_low must not be above budget_high"):
        part("keep.prefix_budget", budget_low=0.05)


def test_quantiles_of_sequences() -> None:
    # 4, 1, 2 | nothing | 7 | 3, 1: place 0.75 * (n - 1) is 1.5, between 2 and 4; 0; 0.75, between 1 and 3
    values = tokens(4.0, 1.0, 2.0, 7.0, 3.0, 1.0)
    assert_is(sequence_quantile(values, lengths(3, 0, 1, 2, 0), 0.75), 3.0, 0.0, 7.0, 2.5, 0.0)
    # places 0.9 * 11 = 9.9 and 0.3 * 11 = 3.3 of 0, 1, … 11 are their own values, to all digits of float64
    for share, found in ((0.9, 9.9), (0.3, 3.3)):
        assert_near(sequence_quantile(tokens(*range(12)), lengths(12), share), found)
    assert_is(sequence_quantile(values, lengths(3, 0, 1, 2, 0), 1.0), 4.0, 0.0, 7.0, 3.0, 0.0)
    assert_is(sequence_quantile(tokens(), lengths(0, 0), 0.5), 0.0, 0.0)


def test_sums_of_what_came_before() -> None:
    values = tokens(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    assert_is(earlier_sum(values, lengths(0, 5, 1, 0, 1)), 0.0, 1.0, 3.0, 7.0, 15.0, 0.0, 0.0)
    assert_is(earlier_sum(values, lengths(7)), 0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0)
    assert earlier_sum(tokens(), lengths(0)).numel() == 0
    spoilt = torch.cat([tokens(float("nan")), values])
    assert_is(earlier_sum(spoilt, Segments.from_counts(index(1, 7), 8))[1:], 0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0)

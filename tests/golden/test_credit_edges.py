"""Credit where nothing can be compared, where all agree, and where sums need more digits than float32 has."""

import torch
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, log, tokens

from trimtab.signal import token_baseline, turns


def test_optimal_token_baseline_divides_by_the_weights_and_eps() -> None:
    # W = 1 and 3, G = 1 and 5: b = (1 + 15) / (4 + 4) = 2; without any token there is nothing to compare
    half = log(0.5, 0.5)
    given = (tokens(1.0, 5.0), half, tokens(1.0, 3.0), flags(1, 1), index(0, 1), index(0, 0), 1)
    credit, _ = token_baseline.optimal_token_baseline(*given, lengths(1, 1), eps=4.0)
    assert_near(credit, -1.0, 3.0)
    for segments in (lengths(0, 0), lengths()):
        nobody = (tokens(), tokens(), tokens(), flags(1, 1), index(0, 1)[: segments.num_sequences], index(0, 0), 1)
        credit, returns = token_baseline.optimal_token_baseline(*nobody, segments)
        assert credit.shape == returns.shape == (0,)


def test_the_weights_of_the_optimal_token_baseline_add_up_in_double_precision() -> None:
    # 2^24 + 1/2 is no number of float32. W = 1/2 and 1/2 at step 0, where G = 1 and 3: b = 2
    half = log(0.5, 0.5, 0.5, 0.5).float()
    size = tokens(0.5, 2.0**24, 0.5, 2.0).float()
    credit, _ = token_baseline.optimal_token_baseline(
        tokens(1.0, 0.0, 3.0, 0.0).float(), half, size, flags(1, 1), index(0, 1), index(0, 0), 1, lengths(2, 2), eps=0.0
    )
    assert_is(credit[[0, 2]], -1.0, 1.0)


def test_states_of_one_name_in_two_groups_are_two_states() -> None:
    # three groups of two episodes, states 0 and 1 in each: in the state alone, nobody is compared over groups
    count = 6
    credit, _ = turns.turns_by_state(
        tokens(0.0, 2.0, 10.0, 14.0, 20.0, 26.0), tokens(*[0.0] * count), index(*[0] * count), index(0, 0, 1, 1, 0, 0),
        flags(*[1] * count), index(*range(count)), index(0, 0, 1, 1, 2, 2), 3, lengths(*[1] * count), std="none",
        coef=1.0,
    )  # fmt: skip
    # both parts are the distance to the mean of the pair: 1, 2 and 3
    assert_near(credit, -2.0, 2.0, -4.0, 4.0, -6.0, 6.0)


def test_turns_that_agree_have_no_spread_and_silent_ones_no_mean() -> None:
    given = (tokens(0.1, 0.1), tokens(0.1, 0.1), index(0, 0), index(5, 5))
    owners = (index(0, 1), index(0, 0), 1, lengths(1, 1))
    for votes in (flags(1, 1), flags(1, 0), flags(0, 0)):
        for std in ("group", "none"):
            credit, _ = turns.turns_by_state(*given, votes, *owners, std=std, eps=0.0)
            assert_is(credit, 0.0, 0.0)


def test_outcomes_of_several_sequences_add_up_in_double_precision() -> None:
    # three sequences that each end with 2^24 - 1, whose triple is no number of float32, and one that does: R is equal
    outcome = torch.full((4,), 2.0**24 - 1, dtype=torch.float32)
    credit, _ = turns.turns_by_state(
        outcome, outcome, index(0, 0, 0, 0), index(1, 1, 1, 1), flags(1, 1), index(0, 0, 0, 1), index(0, 0), 1,
        lengths(1, 1, 1, 1), std="none", coef=0.0,
    )  # fmt: skip
    assert float(credit.abs().max()) < 1e-6

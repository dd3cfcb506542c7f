"""Weights by hand. Sequences of 1, 3 and 2 tokens; the second lost its last token and the third lost both."""

import torch
from tests.golden.exact import assert_near, flags, index, lengths, tokens

from trimtab.signal import weighting
from trimtab.signal.layout import Segments

ANY = tokens(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
KEEP = flags(1, 1, 1, 0, 0, 0)
LENGTHS = lengths(1, 3, 2)


def test_weighting_token_mean() -> None:
    # all: 1 / 6 a token; kept: 1 / 3. A token that is not kept weighs 0 either way.
    assert_near(weighting.token_mean(ANY, KEEP, over="all"), 1 / 6, 1 / 6, 1 / 6, 0, 0, 0)
    assert_near(weighting.token_mean(ANY, KEEP, over="kept"), 1 / 3, 1 / 3, 1 / 3, 0, 0, 0)


def test_weighting_sequence_mean_token_mean() -> None:
    # all: three sequences of 1, 3, 2 tokens: 1/3, 1/9; kept: two sequences of 1 and 2 kept tokens: 1/2, 1/4
    assert_near(weighting.sequence_mean_token_mean(ANY, KEEP, LENGTHS, over="all"), 1 / 3, 1 / 9, 1 / 9, 0, 0, 0)
    assert_near(weighting.sequence_mean_token_mean(ANY, KEEP, LENGTHS, over="kept"), 1 / 2, 1 / 4, 1 / 4, 0, 0, 0)


def test_weighting_sequence_mean_token_sum() -> None:
    # all: 1 / 3 sequences; kept: 1 / 2 sequences
    assert_near(weighting.sequence_mean_token_sum(ANY, KEEP, LENGTHS, over="all"), 1 / 3, 1 / 3, 1 / 3, 0, 0, 0)
    assert_near(weighting.sequence_mean_token_sum(ANY, KEEP, LENGTHS, over="kept"), 1 / 2, 1 / 2, 1 / 2, 0, 0, 0)


def test_weighting_constant_divisor() -> None:
    # all: 1 / (3 * 10); kept: 1 / (2 * 10): the divisor never changes with the lengths
    assert_near(weighting.constant_divisor(ANY, KEEP, LENGTHS, divisor=10.0, over="all"), *[1 / 30] * 3, 0, 0, 0)
    assert_near(weighting.constant_divisor(ANY, KEEP, LENGTHS, divisor=10.0, over="kept"), *[1 / 20] * 3, 0, 0, 0)


def test_weighting_token_sum() -> None:
    assert_near(weighting.token_sum(ANY, KEEP), 1, 1, 1, 0, 0, 0)


def test_the_mean_family_sums_to_one_over_its_population() -> None:
    everything = torch.ones_like(KEEP)
    assert_near(weighting.token_mean(ANY, everything).sum(0, keepdim=True), 1.0)
    assert_near(weighting.sequence_mean_token_mean(ANY, everything, LENGTHS).sum(0, keepdim=True), 1.0)
    assert_near(weighting.token_mean(ANY, KEEP, over="kept").sum(0, keepdim=True), 1.0)
    assert_near(weighting.sequence_mean_token_mean(ANY, KEEP, LENGTHS, over="kept").sum(0, keepdim=True), 1.0)


def test_an_empty_sequence_is_no_sequence() -> None:
    # it has no token, so it neither weighs nor counts: 2 sequences, not 3
    segments = Segments.from_counts(index(1, 0, 2), 3)
    assert_near(weighting.sequence_mean_token_mean(ANY[:3], flags(1, 1, 1), segments), 1 / 2, 1 / 4, 1 / 4)


def test_nothing_kept_weighs_nothing() -> None:
    nothing = torch.zeros_like(KEEP)
    assert_near(weighting.token_mean(ANY, nothing, over="kept"), 0, 0, 0, 0, 0, 0)
    assert_near(weighting.sequence_mean_token_mean(ANY, nothing, LENGTHS, over="kept"), 0, 0, 0, 0, 0, 0)

"""Corrections by hand. Sequences of 2 and 3 tokens; engine ratios 4, 1/2 (product 2, geometric mean sqrt 2) and
1/2, 1/4, 1 (product 1/8, geometric mean 1/2)."""

from math import exp, inf, sqrt

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, log, tokens

from trimtab.signal import correction

LOGRATIO = log(4.0, 0.5, 0.5, 0.25, 1.0)
LENGTHS = lengths(2, 3)


def test_importance_truncated() -> None:
    # each token's own ratio, single-sided at 2: only the 4 is bounded
    weight, seen = correction.truncated(LOGRATIO, LENGTHS, level="token", band=(0.0, 2.0))
    assert_near(weight, 2.0, 0.5, 0.5, 0.25, 1.0)
    assert_is(seen["over_high_tokens"], 1, 0, 0, 0, 0)
    assert_is(seen["under_low_tokens"], 0, 0, 0, 0, 0)


def test_truncated_two_sided() -> None:
    weight, seen = correction.truncated(LOGRATIO, LENGTHS, level="token", band=(0.4, 1.2))
    assert_near(weight, 1.2, 0.5, 0.5, 0.4, 1.0)
    assert_is(seen["under_low_tokens"], 0, 0, 0, 1, 0)


def test_truncated_at_the_levels_of_a_sequence() -> None:
    # products 2 and 1/8, bounded to (0.25, 1.5); geometric means sqrt 2 and 1/2, bounded to (0.75, 5)
    weight, seen = correction.truncated(LOGRATIO, LENGTHS, level="sequence", band=(0.25, 1.5))
    assert_near(weight, 1.5, 1.5, 0.25, 0.25, 0.25)
    assert_is(seen["over_high_sequences"], 1, 0)
    assert_is(seen["under_low_sequences"], 0, 1)
    weight, _ = correction.truncated(LOGRATIO, LENGTHS, level="geometric", band=(0.75, 5.0))
    assert_near(weight, sqrt(2), sqrt(2), 0.75, 0.75, 0.75)


def test_the_bound_of_20_is_on_the_sum_and_never_on_tokens_before_it() -> None:
    # +30 and -29 make a product of e^1; bounding tokens first would give e^(20 - 20) = 1
    weight, seen = correction.truncated(tokens(30.0, -29.0), lengths(2), level="sequence", band=(0.0, inf))
    assert_near(weight, exp(1), exp(1))
    assert_is(seen["exponent_bounded_tokens"], 0, 0)
    weight, seen = correction.truncated(tokens(30.0, -29.0), lengths(2), level="token", band=(0.0, inf))
    assert_is(weight, exp(20), exp(-20))
    assert_is(seen["exponent_bounded_tokens"], 1, 1)


def test_importance_self_normalised() -> None:
    # token: 4 is held at 2; the mean of 2, 1/2, 1/2, 1/4, 1 is 0.85
    trains = flags(1, 1)
    weight, seen = correction.self_normalised(LOGRATIO, LENGTHS, trains, level="token", band=(0.0, 2.0))
    assert_near(weight, 2 / 0.85, 0.5 / 0.85, 0.5 / 0.85, 0.25 / 0.85, 1 / 0.85)
    assert_is(seen["over_high_tokens"], 1, 0, 0, 0, 0)
    # sequence: products 2 and 1/8, mean of the two sequences 1.0625, whatever their lengths; an empty one is none
    three = lengths(2, 3, 0)
    weight, _ = correction.self_normalised(LOGRATIO, three, flags(1, 1, 1), level="sequence", band=(0.0, 5.0))
    assert_near(weight, *[2 / 1.0625] * 2, *[0.125 / 1.0625] * 3)
    # a sequence that does not train is in no mean: (2 + 1/2) / 2 = 1.25
    weight, _ = correction.self_normalised(LOGRATIO, LENGTHS, flags(1, 0))
    assert_near(weight[:2], 2 / 1.25, 0.5 / 1.25)
    assert_near(correction.self_normalised(0 * LOGRATIO, LENGTHS, trains)[0], 1, 1, 1, 1, 1)
    assert correction.self_normalised(tokens(), lengths(0), flags(1))[0].numel() == 0


def test_importance_truncated_by_turn() -> None:
    # turns (4, 1/2: sqrt 2) | (1/2), (1/4, 1: 1/2), held in (0.6, 1.3)
    weight, seen = correction.truncated_by_turn(LOGRATIO, LENGTHS, index(0, 0, 0, 1, 1), band=(0.45, 5.0))
    assert_near(weight, sqrt(2), sqrt(2), 0.5, 0.5, 0.5)
    weight, seen = correction.truncated_by_turn(LOGRATIO, LENGTHS, index(0, 1, 1, 1, 2), band=(0.0, 1.3))
    assert_near(weight, 1.3, 0.5, sqrt(0.125), sqrt(0.125), 1.0)
    assert_is(seen["over_high_tokens"], 1, 0, 0, 0, 0)
    assert correction.truncated_by_turn(tokens(), lengths(0), index())[0].numel() == 0


def test_keep_token_band() -> None:
    # the band is closed: 0.5 and 4 stay, 0.25 goes
    keep, seen = correction.token_band(LOGRATIO, band=(0.5 - 1e-12, 4.0 + 1e-12))
    assert_is(keep, 1, 1, 1, 0, 1)
    assert_is(seen["under_low_tokens"], 0, 0, 0, 1, 0)
    keep, seen = correction.token_band(LOGRATIO, band=(0.3, 1.5))
    assert_is(keep, 0, 1, 1, 0, 1)
    assert_is(seen["over_high_tokens"], 1, 0, 0, 0, 0)


def test_keep_product_band() -> None:
    # products 2 and 1/8: asymmetric bands that part them either way
    keep, seen = correction.product_band(LOGRATIO, LENGTHS, band=(0.5, 2.5))
    assert_is(keep, 1, 1, 0, 0, 0)
    assert_is(seen["under_low_sequences"], 0, 1)
    keep, seen = correction.product_band(LOGRATIO, LENGTHS, band=(0.1, 1.9))
    assert_is(keep, 0, 0, 1, 1, 1)
    assert_is(seen["over_high_sequences"], 1, 0)


def test_keep_geometric_band() -> None:
    # sqrt 2 = 1.414 and 1/2. The band (0.4, 1.3) rejects the first; the product band of the same numbers both.
    keep, seen = correction.geometric_band(LOGRATIO, LENGTHS, band=(0.4, 1.3))
    assert_is(keep, 0, 0, 1, 1, 1)
    assert_is(seen["over_high_sequences"], 1, 0)
    assert_is(seen["under_low_sequences"], 0, 0)


def test_an_empty_sequence_is_outside_no_band() -> None:
    # its product is an empty product, 1, which lies below this band; it has no token that could be rejected
    _, seen = correction.product_band(log(4.0), lengths(1, 0), band=(2.0, 5.0))
    assert_is(seen["under_low_sequences"], 0, 0)
    _, seen = correction.geometric_band(log(4.0), lengths(1, 0), band=(2.0, 5.0))
    assert_is(seen["under_low_sequences"], 0, 0)


def test_keep_veto() -> None:
    # one token is enough for its whole sequence: 4 > 3 rejects the first, 0.25 < 0.3 the second; a bound stands alone
    keep, seen = correction.veto(LOGRATIO, LENGTHS, high=3.0)
    assert_is(keep, 0, 0, 1, 1, 1)
    assert_is(seen["over_high_sequences"], 1, 0)
    assert_is(seen["under_low_sequences"], 0, 0)
    keep, seen = correction.veto(LOGRATIO, LENGTHS, low=0.3)
    assert_is(keep, 1, 1, 0, 0, 0)
    assert_is(seen["under_low_sequences"], 0, 1)
    keep, _ = correction.veto(LOGRATIO, LENGTHS, low=0.3, high=3.0)
    assert_is(keep, 0, 0, 0, 0, 0)
    keep, _ = correction.veto(LOGRATIO, LENGTHS)
    assert_is(keep, 1, 1, 1, 1, 1)


@pytest.mark.parametrize("ends", [(0.5, 1.0), (1.0, 2.0)])
def test_a_ratio_at_the_very_end_of_a_band_is_inside(ends: tuple[float, float]) -> None:
    # exp(0) is exactly 1
    still, rows = torch.zeros(3, dtype=torch.float64), lengths(2, 1)
    for keep, seen in (
        correction.token_band(still, band=ends),
        correction.product_band(still, rows, band=ends),
        correction.geometric_band(still, rows, band=ends),
        correction.veto(still, rows, low=ends[0], high=ends[1]),
    ):
        assert_is(keep, 1, 1, 1)
        assert not any(bool(flags.any()) for flags in seen.values())
    for level in ("token", "sequence", "geometric"):
        importance, seen = correction.truncated(still, rows, level=level, band=ends)
        assert_is(importance, 1, 1, 1)
        assert not any(bool(flags.any()) for flags in seen.values())


@pytest.mark.parametrize(("exponent", "met"), [(20.0, 0), (-20.0, 0), (20.5, 1), (-20.5, 1)])
def test_an_exponent_of_20_is_the_last_that_is_not_bounded(exponent: float, met: int) -> None:
    importance, seen = correction.truncated(tokens(exponent), lengths(1), level="token", band=(0.0, inf))
    assert_is(seen["exponent_bounded_tokens"], met)
    assert_near(importance, exp(min(max(exponent, -20.0), 20.0)))


def test_keep_negative_drift() -> None:
    # sequence 0 (slime #1917's example): anchor - current = 1 at each of 3 tokens, advantages -1, 0.25, -0.5: mean < 0,
    #   so the token of advantage +0.25 goes with the others;
    # sequence 1: the same drift with a mean of 0 is kept;  sequence 2: negative, but it moved by exactly delta.
    # Every number below is a binary fraction, so "exactly delta" is exact.
    anchor = tokens(-0.5, -1.0, -1.5, -0.25, -0.25, -1.0)
    moved = tokens(1.0, 1.0, 1.0, 1.0, 1.0, 0.5)
    credit = tokens(-1.0, 0.25, -0.5, -1.0, 1.0, -1.0)
    keep, seen = correction.negative_drift(anchor - moved, anchor, credit, lengths(3, 2, 1), delta=0.5)
    assert_is(keep, 0, 0, 0, 1, 1, 1)
    assert_is(seen["drifted_sequences"], 1, 1, 0)


def test_negative_drift_looks_one_way() -> None:
    # the policy moved towards these tokens (anchor - current = -1): a drift, but not away
    keep, _ = correction.negative_drift(tokens(-1.0), tokens(-2.0), tokens(-1.0), lengths(1), delta=0.5)
    assert_is(keep, 1)


def test_a_sequence_without_tokens_did_not_drift_whatever_the_bound() -> None:
    _, seen = correction.negative_drift(tokens(-1.0), tokens(-1.0), tokens(-1.0), lengths(1, 0), delta=-0.5)
    assert_is(seen["drifted_sequences"], 1, 0)


def test_corrections_are_flags_a_token() -> None:
    keep, _ = correction.token_band(LOGRATIO, band=(0.0, inf))
    assert keep.equal(flags(1, 1, 1, 1, 1))

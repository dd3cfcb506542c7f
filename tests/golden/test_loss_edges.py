"""Losses at the edges of their definitions: a ratio on a bound, an advantage of 0, and advantages below 1."""

from math import e, exp, inf
from typing import Any

import pytest
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, tokens
from tests.golden.exact import log as logp

from trimtab.signal import off_policy_loss, policy_loss

BOTH = flags(1, 1)
SEGMENTS = lengths(1, 1)
PER_TOKEN = (policy_loss.clipped, policy_loss.dual_clipped, policy_loss.clipped_importance)
PER_SEQUENCE = (
    policy_loss.geometric_clipped, policy_loss.geometric_clipped_token, off_policy_loss.geometric_of_clipped,
    off_policy_loss.tapered,
)  # fmt: skip


@pytest.mark.parametrize("band", [(1.0, 2.0), (0.5, 1.0)])
@pytest.mark.parametrize("formula", [*PER_TOKEN, *PER_SEQUENCE, off_policy_loss.turn_clipped])
def test_a_ratio_on_a_bound_is_not_clipped(formula: Any, band: tuple[float, float]) -> None:
    same = logp(0.5, 0.25)  # ratios of exactly 1
    more = {"keep": BOTH, "segments": SEGMENTS} if formula not in PER_TOKEN else {}
    more |= {"turn": index(0, 0)} if formula is off_policy_loss.turn_clipped else {}
    _, seen = formula(same, same, tokens(1.0, -1.0), band=band, **more)
    for observed in seen.values():
        assert_is(observed, 0, 0)


def test_an_advantage_of_0_stops_no_token_of_a_clip() -> None:
    far, anchor, nothing = logp(0.8, 0.2), logp(0.2, 0.8), tokens(0.0, 0.0)  # ratios 4 and 1/4
    for formula in (policy_loss.clipped, policy_loss.dual_clipped):
        loss, seen = formula(far, anchor, nothing, band=(0.5, 2.0))
        assert_near(loss, 0.0, 0.0)
        for observed in seen.values():
            assert_is(observed, 0, 0)
    loss, seen = off_policy_loss.geometric_of_clipped(far, anchor, nothing, BOTH, SEGMENTS, band=(0.5, 2.0))
    assert_near(loss, 0.0, 0.0)
    assert_is(seen["clipped_tokens"], 0, 0)


def test_geometric_of_clipped_bounds_a_token_without_advantage_from_below() -> None:
    # ratios 4 and 4 of one sequence, band (1/2, 2): the first is held at 2, the second stays; sqrt(2 * 4)
    loss, seen = off_policy_loss.geometric_of_clipped(
        logp(0.8, 0.8), logp(0.2, 0.2), tokens(0.5, 0.0), BOTH, lengths(2), band=(0.5, 2.0)
    )
    assert_near(loss, -0.5 * 8**0.5, 0.0)
    assert_is(seen["clipped_tokens"], 1, 0)


def test_geometric_of_clipped_knows_small_advantages_by_their_sign() -> None:
    # 1/4 with A > 0 and 4 with A < 0 stay as they are; 4 with A > 0 and 1/4 with A < 0 are held at 2 and 1/2
    current, anchor = logp(0.2, 0.8, 0.8, 0.2), logp(0.8, 0.2, 0.2, 0.8)
    loss, seen = off_policy_loss.geometric_of_clipped(
        current, anchor, tokens(0.5, -0.5, 0.5, -0.5), flags(1, 1, 1, 1), lengths(1, 1, 1, 1), band=(0.5, 2.0)
    )
    assert_near(loss, -0.125, 2.0, -1.0, 0.25)
    assert_is(seen["clipped_tokens"], 0, 0, 1, 1)


def test_gamma_weighted_takes_the_better_side_from_an_advantage_of_0_on() -> None:
    # W = e: 1/2 and -1/2 weigh e^2 e^(3 - 3e) and e^3 e^(2 - 2e)
    current, anchor = tokens(-1.0, -1.0), tokens(-2.0, -2.0)
    loss, _ = off_policy_loss.gamma_weighted(current, anchor, tokens(0.5, -0.5), SEGMENTS)
    assert_near(loss, 0.5 * exp(5 - 3 * e), -0.5 * exp(5 - 2 * e))
    # 0 times a weight that overflows would be nan: e^1000 is the other side's
    loss, _ = off_policy_loss.gamma_weighted(
        current, anchor, tokens(0.0, 1.0), SEGMENTS, power_negative=1000.0, rate_negative=0.0
    )
    assert_near(loss, 0.0, exp(5 - 3 * e))


def test_tapered_bounds_what_is_not_better_than_average() -> None:
    # 4 with A = 0 is bounded, which shows in what is counted alone; with A = 1/2 it weighs 1
    loss, seen = off_policy_loss.tapered(
        logp(0.8, 0.8), logp(0.2, 0.2), tokens(0.0, 0.5), BOTH, SEGMENTS, band=(0.5, 2.0)
    )
    assert_near(loss, 0.0, -0.5 * float(logp(0.8)))
    assert_is(seen["clipped_tokens"], 1, 0)


def test_a_band_that_is_open_on_both_sides_clips_nothing() -> None:
    loss, seen = off_policy_loss.geometric_of_clipped(
        logp(0.8, 0.2), logp(0.2, 0.8), tokens(1.0, -1.0), BOTH, SEGMENTS, band=(0.0, inf)
    )
    assert_near(loss, -4.0, 0.25)
    assert_is(seen["clipped_tokens"], 0, 0)

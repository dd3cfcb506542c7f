"""Policy losses and the selections before them, by hand. Log-probs are probabilities, so ratios are quotients."""

from math import e, exp, inf, log

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, tokens
from tests.golden.exact import log as logp

from trimtab.errors import SignalError
from trimtab.signal import part, policy_loss

# ratios 1.5, 1.5, 0.5, 0.5, 1.1 with both signs of the advantage on both sides
CURRENT = logp(0.6, 0.6, 0.2, 0.2, 0.44)
ANCHOR = logp(0.4, 0.4, 0.4, 0.4, 0.4)
ADVANTAGE = tokens(2.0, -2.0, 2.0, -2.0, 2.0)


def test_policy_loss_reinforce() -> None:
    # -A * logp: -2 * log(1/2) = 2 log 2;  3 * log(1/4) = -6 log 2
    loss, _ = policy_loss.reinforce(logp(0.5, 0.25), tokens(2.0, -3.0))
    assert_near(loss, 2 * log(2), -6 * log(2))


def test_policy_loss_cross_entropy() -> None:
    loss, _ = policy_loss.cross_entropy(logp(0.5, 0.25))
    assert_near(loss, log(2), 2 * log(2))


def test_policy_loss_clipped() -> None:
    # band (0.8, 1.3), not symmetric:
    #   1.5, A = +2: min(3, 1.3 * 2) = 2.6, clipped above      0.5, A = +2: min(1, 1.6) = 1, free
    #   1.5, A = -2: min(-3, -2.6) = -3, free                  0.5, A = -2: min(-1, -1.6) = -1.6, clipped below
    #   1.1, A = +2: 2.2, inside
    loss, seen = policy_loss.clipped(CURRENT, ANCHOR, ADVANTAGE, band=(0.8, 1.3))
    assert_near(loss, -2.6, 3.0, -1.0, 1.6, -2.2)
    assert_is(seen["clipped_tokens"], 1, 0, 0, 1, 0)


def test_policy_loss_dual_clipped() -> None:
    # ratio 4 at A = -2: the PPO loss is 8, the ceiling 3 * 2 = 6.  At A = +2 there is no ceiling: -1.3 * 2.
    # ratio 2 at A = -2: 4, below the ceiling.  ratio 1/4 at A = -2: clipped to 0.8 * 2 = 1.6
    loss, seen = policy_loss.dual_clipped(
        logp(0.8, 0.8, 0.4, 0.05), logp(0.2, 0.2, 0.2, 0.2), tokens(-2.0, 2.0, -2.0, -2.0), band=(0.8, 1.3), cap=3.0
    )
    assert_near(loss, 6.0, -2.6, 4.0, 1.6)
    assert_is(seen["capped_tokens"], 1, 0, 0, 0)
    assert_is(seen["clipped_tokens"], 0, 1, 0, 1)


# Two sequences of unequal length. Ratios 4, 1: geometric mean 2. Ratios 1/4, 1 and a rejected token whose ratio of 1000
# would make it 6.3: without it sqrt(1/4) = 1/2.
GEOMETRIC_CURRENT = logp(0.8, 0.5, 0.1, 0.3, 0.9)
GEOMETRIC_ANCHOR = logp(0.2, 0.5, 0.4, 0.3, 0.0009)
GEOMETRIC_ADVANTAGE = tokens(1.0, 1.0, -1.0, -1.0, 0.0)
GEOMETRIC_KEEP = flags(1, 1, 1, 1, 0)
GEOMETRIC_INPUTS = (GEOMETRIC_ANCHOR, GEOMETRIC_ADVANTAGE, GEOMETRIC_KEEP, lengths(2, 3))


def test_policy_loss_geometric_clipped() -> None:
    # band (0.4, 3) holds both: -2 * 1 and -(1/2) * (-1)
    current = GEOMETRIC_CURRENT.clone().requires_grad_()
    loss, seen = policy_loss.geometric_clipped(current, *GEOMETRIC_INPUTS, band=(0.4, 3.0))
    assert_near(loss.detach(), -2.0, -2.0, 0.5, 0.5, 0.0)
    assert_is(seen["clipped_tokens"], 0, 0, 0, 0, 0)
    # the loss of token 0 alone: d/dlogp_j of -s is -s / 2 at both tokens of its sequence
    assert_near(torch.autograd.grad(loss[0], current)[0], -1.0, -1.0, 0.0, 0.0, 0.0)
    # band (0.6, 1.5): clipped above at A > 0, below at A < 0
    loss, seen = policy_loss.geometric_clipped(GEOMETRIC_CURRENT, *GEOMETRIC_INPUTS, band=(0.6, 1.5))
    assert_near(loss, -1.5, -1.5, 0.6, 0.6, 0.0)
    assert_is(seen["clipped_tokens"], 1, 1, 1, 1, 0)


def test_policy_loss_geometric_clipped_token() -> None:
    # the same values, but each token's gradient is its own: -s at token 0 and nothing at token 1
    current = GEOMETRIC_CURRENT.clone().requires_grad_()
    loss, _ = policy_loss.geometric_clipped_token(current, *GEOMETRIC_INPUTS, band=(0.4, 3.0))
    assert_near(loss.detach(), -2.0, -2.0, 0.5, 0.5, 0.0)
    assert_near(torch.autograd.grad(loss[0], current)[0], -2.0, 0.0, 0.0, 0.0, 0.0)
    # advantages may vary inside a sequence: only the positive token of the sequence at 2 is clipped
    mixed = tokens(1.0, -1.0, -1.0, 1.0, 0.0)
    loss, seen = policy_loss.geometric_clipped_token(
        GEOMETRIC_CURRENT, GEOMETRIC_ANCHOR, mixed, GEOMETRIC_KEEP, lengths(2, 3), band=(0.6, 1.5)
    )
    assert_near(loss, -1.5, 2.0, 0.6, -0.5, 0.0)
    assert_is(seen["clipped_tokens"], 1, 0, 1, 0, 0)


def test_policy_loss_clipped_importance() -> None:
    # the ratio, bounded to (0.75, 1.25), times -A * logp_current: 1.5 -> 1.25 and 0.5 -> 0.75, whatever the sign of A
    loss, seen = policy_loss.clipped_importance(CURRENT, ANCHOR, ADVANTAGE, band=(0.75, 1.25))
    assert_near(
        loss, -2.5 * log(0.6), 2.5 * log(0.6), -1.5 * log(0.2), 1.5 * log(0.2), -2.2 * log(0.44)
    )  # fmt: skip
    assert_is(seen["clipped_tokens"], 1, 1, 1, 1, 0)


def test_policy_loss_soft_gated() -> None:
    # -A * (4 / tau) * sigmoid(tau * (r - 1)), tau = 2 for A > 0 and 1.05 for A < 0:
    #   r = 1.5, A = +2: -2 * 2 * sigmoid(1);   r = 1.5, A = -2: 2 * (4 / 1.05) * sigmoid(0.525)
    #   r = 0.5, A = +2: -4 * sigmoid(-1);      r = 0.5, A = -2: 2 * (4 / 1.05) * sigmoid(-0.525)
    #   r = 1.1, A = +2: -4 * sigmoid(0.2)
    loss, seen = policy_loss.soft_gated(CURRENT, ANCHOR, ADVANTAGE, temperature_positive=2.0, temperature_negative=1.05)
    assert_near(
        loss,
        -4 / (1 + exp(-1)),
        (8 / 1.05) / (1 + exp(-0.525)),
        -4 / (1 + e),
        (8 / 1.05) / (1 + exp(0.525)),
        -4 / (1 + exp(-0.2)),
    )
    assert_is(seen["clipped_tokens"], 0, 0, 0, 0, 0)
    # the sign of the advantage chooses tau, not its size: r = 1.5, A = +0.5 and A = -0.5
    loss, _ = policy_loss.soft_gated(
        CURRENT[:2], ANCHOR[:2], tokens(0.5, -0.5), temperature_positive=2.0, temperature_negative=1.05
    )
    assert_near(loss, -1 / (1 + exp(-1)), (2 / 1.05) / (1 + exp(-0.525)))


# Kept log-probs -1, -2, -3, -1, -3, -2 have mean -2, kept advantages 2, -1, -3, 6, 1, -5 have mean 0, so
# cov = 2 * 1, -1 * 0, -3 * -1, 6 * 1, 1 * -1, -5 * 0 = 2, 0, 3, 6, -1, 0. The last two tokens are
# rejected: they enter no mean, and are not drawn although the last one's own covariance would be 4 * 1.
COV_CURRENT = tokens(-1.0, -2.0, -3.0, -1.0, -3.0, -2.0, -100.0, -1.0)
COV_ADVANTAGE = tokens(2.0, -1.0, -3.0, 6.0, 1.0, -5.0, 1000.0, 4.0)
COV_KEEP = flags(1, 1, 1, 1, 1, 1, 0, 0)
KEY = index(50, 0, 40, 0, 0, 0, 0, 0)


def in_band(anchor: torch.Tensor, *, low: float = 1.0, high: float = 5.0, fraction: float) -> torch.Tensor:
    return policy_loss.covariance_in_band(
        COV_CURRENT, anchor, COV_ADVANTAGE, COV_KEEP, KEY, covariance_low=low, covariance_high=high, fraction=fraction
    )


def test_select_covariance_in_band() -> None:
    # of 6 kept tokens, 0.4 is 2.4: two may be drawn, and two (cov 2 and 3) lie in the open band (1, 5)
    selected = policy_loss.covariance_in_band(
        COV_CURRENT, COV_CURRENT, COV_ADVANTAGE, COV_KEEP, KEY, covariance_low=1.0, covariance_high=5.0, fraction=0.4
    )
    assert_is(selected, 1, 0, 1, 0, 0, 0, 0, 0)
    # one may be drawn: the smaller key, 40, is token 2; at least one always is
    assert_is(in_band(COV_CURRENT, fraction=0.2), 0, 0, 1, 0, 0, 0, 0, 0)
    assert_is(in_band(COV_CURRENT, fraction=0.0), 0, 0, 1, 0, 0, 0, 0, 0)
    # the band is open: 2 and 3 are its own bounds
    assert_is(in_band(COV_CURRENT, low=2.0, fraction=0.4), 0, 0, 1, 0, 0, 0, 0, 0)
    assert_is(in_band(COV_CURRENT, high=3.0, fraction=0.4), 1, 0, 0, 0, 0, 0, 0, 0)


def test_clip_cov_does_not_draw_what_the_clip_already_stops() -> None:
    # token 2 has A = -3 and a ratio of e^-1 < 0.8: PPO's clip stops it, so it is not drawn
    anchor = COV_CURRENT + tokens(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert_is(in_band(anchor, fraction=0.4), 1, 0, 0, 0, 0, 0, 0, 0)
    # with a ratio of e^+1 the surrogate is not clipped (A < 0), and it is drawn
    anchor = COV_CURRENT - tokens(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert_is(in_band(anchor, fraction=0.4), 1, 0, 1, 0, 0, 0, 0, 0)
    # token 0 has A = 2: at a ratio of e^0.3 = 1.35 > 1.2 it is stopped, at e^0.1 = 1.11 it is not
    for apart, drawn in ((0.3, 0), (0.1, 1)):
        anchor = COV_CURRENT - tokens(apart, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        assert_is(in_band(anchor, fraction=0.4), drawn, 0, 1, 0, 0, 0, 0, 0)


def test_select_covariance_largest() -> None:
    # a third of 6 is two: cov 6 and 3; a rejected token's would come between them. At least one always is.
    inputs = (COV_CURRENT, COV_ADVANTAGE, COV_KEEP, KEY)
    assert_is(policy_loss.covariance_largest(*inputs, fraction=0.34), 0, 0, 1, 1, 0, 0, 0, 0)
    assert_is(policy_loss.covariance_largest(*inputs, fraction=0.0), 0, 0, 0, 1, 0, 0, 0, 0)


def test_covariance_is_taken_around_the_mean_advantage_and_the_mean_log_prob() -> None:
    # means 3 and -7 / 3: covariances -8 / 3, -1 / 3 and -5, so token 1 has the largest
    logps, credit = tokens(-1.0, -2.0, -4.0), tokens(1.0, 2.0, 6.0)
    assert_is(policy_loss.covariance_largest(logps, credit, flags(1, 1, 1), index(0, 1, 2), fraction=0.34), 0, 1, 0)
    # kept means 1.5 and -1.5: -0.25 and -0.25, a tie that the key decides; the third token counts nowhere
    assert_is(policy_loss.covariance_largest(logps, credit, flags(1, 1, 0), index(5, 1, 2), fraction=0.5), 0, 1, 0)


def test_equal_covariances_are_drawn_by_key() -> None:
    # log-probs -1, -3 and advantages 1, -1 have the covariances 1, 1: the smaller key goes, whatever the order
    logps, credit = tokens(-1.0, -3.0), tokens(1.0, -1.0)
    assert_is(policy_loss.covariance_largest(logps, credit, flags(1, 1), index(7, 3), fraction=0.5), 0, 1)
    assert_is(policy_loss.covariance_largest(logps, credit, flags(1, 1), index(3, 7), fraction=0.5), 1, 0)


# floor(fraction * n) as Python has it, the authors' rule: 0.29 * 100 is 28.999999999999996, hence 28.
@pytest.mark.parametrize(
    ("num", "fraction", "count"), [(10000, 2e-4, 2), (4999, 2e-4, 1), (100, 0.29, 28), (1000, 0.1, 100)]
)
def test_the_share_is_rounded_down_in_double_precision(num: int, fraction: float, count: int) -> None:
    ramp = torch.arange(num, dtype=torch.float64)
    everything = torch.ones(num, dtype=torch.bool)
    selected = policy_loss.covariance_largest(ramp, ramp, everything, torch.arange(num), fraction=fraction)
    assert int(selected.sum()) == count


def test_policy_loss_covariance_clipped() -> None:
    # the PPO surrogate of the first case in this file, without the selected tokens 1 and 2
    loss, seen = policy_loss.covariance_clipped(CURRENT, ANCHOR, ADVANTAGE, flags(0, 1, 1, 0, 0), band=(0.8, 1.3))
    assert_near(loss, -2.6, 0.0, 0.0, 1.6, -2.2)
    assert_is(seen["selected_tokens"], 0, 1, 1, 0, 0)


def test_policy_loss_covariance_penalised() -> None:
    # -r * A, unclipped, plus 0.5 * |log r| at the selected tokens 0 and 3
    loss, _ = policy_loss.covariance_penalised(CURRENT, ANCHOR, ADVANTAGE, flags(1, 0, 0, 1, 0), coef=0.5)
    assert_near(loss, -3.0 + 0.5 * log(1.5), 3.0, -1.0, 1.0 + 0.5 * log(2), -2.2)


def test_a_ratio_is_finite_however_far_the_policies_are_apart() -> None:
    # log-ratio 50 is bounded at 20 just before the exponential
    loss, _ = policy_loss.clipped(tokens(0.0), tokens(-50.0), tokens(-1.0), band=(0.0, inf))
    assert_is(loss, exp(20))


def test_a_token_without_advantage_has_no_loss_however_sharp_the_gate_of_the_others() -> None:
    # 4 / tau is infinite at the smallest tau there is, and 0 * inf would be nan
    loss, _ = policy_loss.soft_gated(logp(0.5), logp(0.5), tokens(0.0), temperature_positive=5e-324)
    assert_is(loss, 0.0)


def test_many_equal_covariances_are_drawn_by_key() -> None:
    # every covariance is 1; the keys run backwards, so the last 100 tokens have the smallest
    sign = tokens(1.0, -1.0).repeat(500)
    selected = policy_loss.covariance_largest(sign, sign, sign.bool(), torch.arange(1000).flip(0), fraction=0.1)
    assert selected.nonzero().squeeze(1).tolist() == list(range(900, 1000))


def test_nothing_is_drawn_where_nothing_is_kept() -> None:
    none = (COV_CURRENT, COV_ADVANTAGE, torch.zeros_like(COV_KEEP), KEY)
    assert_is(policy_loss.covariance_largest(*none, fraction=1.0), 0, 0, 0, 0, 0, 0, 0, 0)


def test_a_covariance_band_has_a_width() -> None:
    with pytest.raises(SignalError, match="covariance_low is below covariance_high"):
        part("policy_loss.covariance_clipped", covariance_low=1.0, covariance_high=1.0)

"""Losses for off-policy data by hand. Log-probs are probabilities, so ratios are quotients."""

from math import e, exp, inf, log, sqrt

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, tokens
from tests.golden.exact import log as logp

from trimtab.errors import SignalError
from trimtab.signal import Stage, off_policy_loss, part, recipe

# Ratios 4, 1 | 1/4, 1 and a rejected token of ratio 1000
CURRENT = logp(0.8, 0.5, 0.1, 0.3, 0.9)
ANCHOR = logp(0.2, 0.5, 0.4, 0.3, 0.0009)
KEEP = flags(1, 1, 1, 1, 0)
SEGMENTS = lengths(2, 3)


def test_policy_loss_geometric_of_clipped() -> None:
    # band (1/9, 9) clips nothing: geometric means 2 and 1/2. Band (1/2, 2.25), A > 0: 4 becomes 2.25, mean 1.5;
    # A < 0: 1/4 becomes 1/2, mean sqrt(1/2). Of the other sign they stay as they are.
    credit = tokens(1.0, 1.0, -1.0, -1.0, 0.0)
    loss, seen = off_policy_loss.geometric_of_clipped(CURRENT, ANCHOR, credit, KEEP, SEGMENTS, band=(1 / 9, 9.0))
    assert_near(loss, -2.0, -2.0, 0.5, 0.5, 0.0)
    assert_is(seen["clipped_tokens"], 0, 0, 0, 0, 0)
    current = CURRENT.clone().requires_grad_()
    loss, seen = off_policy_loss.geometric_of_clipped(current, ANCHOR, credit, KEEP, SEGMENTS, band=(0.5, 2.25))
    assert_near(loss.detach(), -1.5, -1.5, sqrt(0.5), sqrt(0.5), 0.0)
    assert_is(seen["clipped_tokens"], 1, 0, 1, 0, 0)
    # only the clipped token loses its gradient: the other has -s / 2 from each of two losses
    loss.sum().backward()
    assert_near(current.grad, 0.0, -1.5, 0.0, sqrt(0.5), 0.0)
    loss, seen = off_policy_loss.geometric_of_clipped(CURRENT, ANCHOR, -credit, KEEP, SEGMENTS, band=(0.5, 2.25))
    assert_near(loss, 2.0, 2.0, -0.5, -0.5, 0.0)
    assert_is(seen["clipped_tokens"], 0, 0, 0, 0, 0)
    loss, _ = off_policy_loss.geometric_of_clipped(CURRENT, ANCHOR, credit, KEEP, SEGMENTS, band=(0.0, inf))
    assert_near(loss, -2.0, -2.0, 0.5, 0.5, 0.0)


def test_policy_loss_gamma_weighted() -> None:
    # W = 4 | 1/4. A >= 0: W^2 exp(3 - 3 W) = 16 e^-9;  A < 0: W^3 exp(2 - 2 W) = (1/64) e^1.5
    current, anchor = CURRENT[:4], ANCHOR[:4]
    loss, _ = off_policy_loss.gamma_weighted(current, anchor, tokens(2.0, 0.0, -1.0, -1.0), lengths(2, 2))
    first, second = 16 * exp(-9), exp(1.5) / 64
    assert_near(loss, -first * 2 * log(0.8), 0.0, second * log(0.1), second * log(0.3))
    # its weight is 1 where policies agree, and it carries no gradient
    leaf = current.clone().requires_grad_()
    loss, _ = off_policy_loss.gamma_weighted(leaf, current, tokens(2.0, 2.0, -3.0, -3.0), lengths(2, 2))
    loss.sum().backward()
    assert_near(leaf.grad, -2.0, -2.0, 3.0, 3.0)
    # settings of one sign act on that sign: W = e, power 1, rate 0
    loss, _ = off_policy_loss.gamma_weighted(
        tokens(-1.0, -1.0), tokens(-2.0, -2.0), tokens(1.0, -1.0), lengths(1, 1), power_positive=1.0, rate_positive=0.0
    )
    assert_near(loss, e, -exp(3 + 2 - 2 * e))


def test_a_far_sequence_has_no_weight_and_no_nan() -> None:
    # +-1000: the sum is bounded at 20 before the exponentials
    loss, _ = off_policy_loss.gamma_weighted(
        tokens(-1.0, -1001.0), tokens(-1001.0, -1.0), tokens(1.0, 1.0), lengths(1, 1)
    )
    assert_near(loss, 0.0, 0.0, atol=1e-13)
    # +30 and -29 make e^1: the sum is bounded, not its tokens
    loss, _ = off_policy_loss.gamma_weighted(tokens(-1.0, -30.0), tokens(-31.0, -1.0), tokens(1.0, 0.0), lengths(2))
    assert_near(loss, exp(2 - 3 * (e - 1)), 0.0)


def test_policy_loss_quadratic() -> None:
    # -A logp + 0.2 / 2 * (log r)^2 with r = 2 and 1/2
    loss, _ = off_policy_loss.quadratic(logp(0.5, 0.25), logp(0.25, 0.5), tokens(2.0, -3.0), coef=0.2)
    assert_near(loss, 2 * log(2) + 0.1 * log(2) ** 2, -6 * log(2) + 0.1 * log(2) ** 2)


def test_policy_loss_tapered() -> None:
    # ratios 4, 1 | 1/4, 1. A > 0 weighs 1 whatever the ratio; A < 0 the ratio, at most 1.
    loss, seen = off_policy_loss.tapered(CURRENT, ANCHOR, tokens(1.0, -1.0, -1.0, 1.0, 0.0), KEEP, SEGMENTS)
    assert_near(loss, -log(0.8), log(0.5), 0.25 * log(0.1), -log(0.3), 0.0)
    assert_is(seen["clipped_tokens"], 0, 0, 0, 0, 1)  # the pipeline hands a rejected token a ratio of 1
    loss, seen = off_policy_loss.tapered(CURRENT, ANCHOR, tokens(-1.0, -1.0, 1.0, 1.0, 0.0), KEEP, SEGMENTS)
    assert_near(loss, log(0.8), log(0.5), -log(0.1), -log(0.3), 0.0)
    assert_is(seen["clipped_tokens"], 1, 0, 0, 0, 1)
    # products 4 and 1/4, geometric means 2 and 1/2, the rejected token in neither
    worse = tokens(-1.0, -1.0, -1.0, -1.0, 0.0)
    loss, _ = off_policy_loss.tapered(CURRENT, ANCHOR, worse, KEEP, SEGMENTS, level="sequence", band=(0.0, 3.0))
    assert_near(loss, 3 * log(0.8), 3 * log(0.5), 0.25 * log(0.1), 0.25 * log(0.3), 0.0)
    loss, _ = off_policy_loss.tapered(CURRENT, ANCHOR, worse, KEEP, SEGMENTS, level="geometric", band=(0.0, 3.0))
    assert_near(loss, 2 * log(0.8), 2 * log(0.5), 0.5 * log(0.1), 0.5 * log(0.3), 0.0)


def test_policy_loss_geometric_soft_gated() -> None:
    # geometric means 2 and 1/2. A > 0, tau 2: -2 sigmoid(2);  A < 0, tau 0.5: 8 sigmoid(-0.25)
    current = CURRENT.clone().requires_grad_()
    loss, _ = off_policy_loss.geometric_soft_gated(
        current, ANCHOR, tokens(1.0, 1.0, -1.0, -1.0, 0.0), KEEP, SEGMENTS,
        temperature_positive=2.0, temperature_negative=0.5,
    )  # fmt: skip
    first, second = -2 / (1 + exp(-2)), 8 / (1 + exp(0.25))
    assert_near(loss.detach(), first, first, second, second, 0.0)
    # the loss of token 0: -4 s g (1 - g) with s = 2 and g = sigmoid(2), half of it at each token of its sequence
    gate = 1 / (1 + exp(-2))
    slope = -4 * gate * (1 - gate)
    assert_near(torch.autograd.grad(loss[0], current)[0], slope, slope, 0.0, 0.0, 0.0)


def test_policy_loss_turn_clipped() -> None:
    # ratios 4, 1 | 1/4, 1, rejected. Turns (4), (1) | (1/4, 1 -> mean 1/2), (rejected, 1).
    turn = index(0, 1, 0, 0, 1)
    credit = tokens(1.0, 1.0, -1.0, -1.0, 0.0)
    current = CURRENT.clone().requires_grad_()
    loss, seen = off_policy_loss.turn_clipped(current, ANCHOR, credit, KEEP, SEGMENTS, turn, band=(0.4, 5.0))
    assert_near(loss.detach(), -4.0, -1.0, 0.5, 0.5, 0.0)
    assert_is(seen["clipped_tokens"], 0, 0, 0, 0, 0)
    loss.sum().backward()
    assert_near(current.grad, -4.0, -1.0, 0.5, 0.5, 0.0)
    # clipped above at A > 0, below at A < 0
    loss, seen = off_policy_loss.turn_clipped(CURRENT, ANCHOR, credit, KEEP, SEGMENTS, turn, band=(0.8, 1.2))
    assert_near(loss, -1.2, -1.0, 0.8, 0.8, 0.0)
    assert_is(seen["clipped_tokens"], 1, 0, 1, 1, 0)
    # one turn per sequence is GSPO-token; a turn of the same number in the next sequence is another turn
    loss, _ = off_policy_loss.turn_clipped(CURRENT, ANCHOR, credit, KEEP, SEGMENTS, 0 * turn, band=(0.4, 5.0))
    assert_near(loss, -2.0, -2.0, 0.5, 0.5, 0.0)


def test_a_loss_that_carries_both_factors_refuses_an_importance_beside_it() -> None:
    with pytest.raises(SignalError, match="would count that factor twice"):
        recipe("tis", loss=Stage(part("policy_loss.gamma_weighted"), anchor="rollout"))
    assert recipe("tis", loss=Stage(part("policy_loss.quadratic"), anchor="old"))

"""KL estimators by hand: current 0.5 against reference 0.25 is a log-ratio of log 2 one way and -log 2 the other."""

from math import exp, log, sqrt

import torch
from tests.golden.exact import assert_is, assert_near, lengths, tokens
from tests.golden.exact import log as logp

from trimtab.signal import kl

LOG2 = 0.6931471805599453


def test_kl_k1() -> None:
    assert_near(kl.k1(logp(0.5, 0.25, 0.3), logp(0.25, 0.5, 0.3)), LOG2, -LOG2, 0.0)


def test_kl_k2() -> None:
    # (log 2)^2 / 2 = 0.24022650695910072, whichever way round
    assert_near(kl.k2(logp(0.5, 0.25, 0.3), logp(0.25, 0.5, 0.3)), 0.24022650695910072, 0.24022650695910072, 0.0)


def test_kl_k3() -> None:
    # d = ref - current. 0.5 / 0.25: d = -log 2, e^d = 1/2: 1/2 + log 2 - 1 = log 2 - 0.5
    #                    0.25 / 0.5: d = +log 2, e^d = 2:   2 - log 2 - 1   = 1 - log 2
    assert_near(kl.k3(logp(0.5, 0.25, 0.3), logp(0.25, 0.5, 0.3)), LOG2 - 0.5, 1 - LOG2, 0.0)


def test_k3_bounds_the_exponential_and_not_the_linear_part() -> None:
    # d = 30: e^20 - 30 - 1.   d = -30: e^-20 + 30 - 1.
    assert_is(kl.k3(tokens(-30.0, 0.0), tokens(0.0, -30.0)), exp(20) - 31.0, exp(-20) + 30.0 - 1.0)


def test_kl_importance_weighted_k3() -> None:
    # k3 as above, times current / anchor: 0.5 / 0.4 = 1.25 and 0.25 / 0.5 = 0.5
    weighted = kl.importance_weighted_k3(logp(0.5, 0.25), logp(0.25, 0.5), logp(0.4, 0.5))
    assert_near(weighted, 1.25 * (log(2) - 0.5), 0.5 * (1 - log(2)))


CURRENT, REF, ANCHOR = logp(0.5, 0.25), logp(0.25, 0.5), logp(0.4, 0.5)
"""Log-ratios log 2 and -log 2 to the reference; ratios 1.25 and 0.5 to the anchor."""


def gradient(of: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(of.sum(), leaf, retain_graph=True)[0]


def test_kl_absolute() -> None:
    assert_near(kl.absolute(CURRENT, REF), log(2), log(2))


def test_kl_importance_weighted_k1() -> None:
    leaf = CURRENT.clone().requires_grad_()
    weighted = kl.importance_weighted_k1(leaf, REF, ANCHOR)
    assert_near(weighted.detach(), 1.25 * log(2), -0.5 * log(2))
    assert_near(gradient(weighted, leaf), 1.25 * (log(2) + 1), 0.5 * (1 - log(2)))


def test_kl_importance_weighted_k2() -> None:
    leaf = CURRENT.clone().requires_grad_()
    weighted = kl.importance_weighted_k2(leaf, REF, ANCHOR)
    half = log(2) ** 2 / 2
    assert_near(weighted.detach(), 1.25 * half, 0.5 * half)
    assert_near(gradient(weighted, leaf), 1.25 * (half + log(2)), 0.5 * (half - log(2)))


def test_kl_geometric_weighted_k3() -> None:
    # one sequence: sqrt(1.25 * 0.5) at both tokens; two sequences: each its own ratio
    first, second = log(2) - 0.5, 1 - log(2)
    ratio = sqrt(1.25 * 0.5)
    assert_near(kl.geometric_weighted_k3(CURRENT, REF, ANCHOR, lengths(2)), ratio * first, ratio * second)
    assert_near(kl.geometric_weighted_k3(CURRENT, REF, ANCHOR, lengths(1, 1)), 1.25 * first, 0.5 * second)


def test_kl_k2_gradient() -> None:
    # the value of the estimator, the slope logp_current - logp_ref of k2
    values = {"k1": (log(2), -log(2)), "k2": (log(2) ** 2 / 2,) * 2, "k3": (log(2) - 0.5, 1 - log(2))}
    for value, expected in values.items():
        leaf = CURRENT.clone().requires_grad_()
        estimate = kl.k2_gradient(leaf, REF, value=value)
        assert_near(estimate.detach(), *expected)
        assert_near(gradient(estimate, leaf), log(2), -log(2))


def test_kl_importance_weighted_k2_gradient() -> None:
    # ratios 1.25, held at 1.1, and 0.5
    leaf = CURRENT.clone().requires_grad_()
    estimate = kl.importance_weighted_k2_gradient(leaf, REF, ANCHOR, value="k1", cap=1.1)
    assert_near(estimate.detach(), log(2), -log(2))
    assert_near(gradient(estimate, leaf), 1.1 * log(2), -0.5 * log(2))
    leaf = CURRENT.clone().requires_grad_()
    assert_near(gradient(kl.importance_weighted_k2_gradient(leaf, REF, ANCHOR), leaf), 1.25 * log(2), -0.5 * log(2))


def test_kl_anchor_square() -> None:
    leaf = CURRENT.clone().requires_grad_()
    penalty = kl.anchor_square(leaf, ANCHOR)
    assert_near(penalty.detach(), log(1.25) ** 2, log(2) ** 2)
    assert_near(gradient(penalty, leaf), 2 * log(1.25), -2 * log(2))


def test_the_slope_of_k2_is_the_slope_of_the_kl_and_that_of_k1_is_nothing() -> None:
    """Over all three tokens of a vocabulary, weighted by their probabilities: the exact KL to the reference."""
    logits = tokens(0.3, -0.4, 1.1).requires_grad_()
    reference = tokens(-0.2, 0.5, 0.1).log_softmax(0)
    current = logits.log_softmax(0)
    exact = gradient(current.exp() * (current - reference), logits)
    sampled = current.exp().detach() * kl.k2_gradient(current, reference, value="k1")
    torch.testing.assert_close(gradient(sampled, logits), exact, rtol=0, atol=1e-12)
    current = logits.log_softmax(0)
    nothing = gradient(current.exp().detach() * kl.k1(current, reference), logits)
    torch.testing.assert_close(nothing, torch.zeros_like(nothing), rtol=0, atol=1e-12)

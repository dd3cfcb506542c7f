"""KL estimators by hand: current 0.5 against reference 0.25 is a log-ratio of log 2 one way and -log 2 the other."""

from math import exp, log

from tests.golden.exact import assert_is, assert_near, tokens
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

"""Credit over tokens at its edges: a second lambda, sequences of one token and of none."""

from math import nan

import pytest
from tests.golden.exact import assert_near, flags, lengths, tokens
from tests.golden.test_advantage import ERRORS

from trimtab.signal import advantage


def test_the_discount_of_the_returns_is_gamma_times_their_own_lambda() -> None:
    # temporal errors 0, -0.5, 4 and -4, 3. Lambda 1, so gamma * lambda = 1/2: A = 0.75, 1.5, 4 and -2.5, 3.
    # For the returns lambda is 1/2, so gamma * lambda = 1/4: 0.125, 0.5, 4 and -3.25, 3; plus V = 1, 2, 3, 5, 2
    credit, returns = advantage.gae(*ERRORS, gamma=0.5, lam=1.0, lam_value=0.5)
    assert_near(credit, 0.75, 1.5, 4.0, -2.5, 3.0)
    assert_near(returns, 1.125, 2.5, 7.0, 1.75, 5.0)
    _, returns = advantage.gae_by_length(*ERRORS, alpha=0.5, gamma=0.5, lam_value=0.5)
    assert_near(returns, 1.125, 2.5, 7.0, 1.75, 5.0)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_sequence_of_one_token_or_of_none_has_no_share_to_pass_on(share: float) -> None:
    # two tokens have lambda share^(1/1): 2 + 4 * share; one token keeps its own reward, nobody else is touched
    credit, returns = advantage.gae_by_share(
        tokens(5.0, 2.0, 4.0, -3.0), tokens(0.0, 0.0, 0.0, 0.0), tokens(nan, nan, nan, nan, nan),
        flags(1, 0, 1, 1, 0), lengths(1, 0, 2, 1, 0), share=share,
    )  # fmt: skip
    assert_near(credit, 5.0, 2 + 4 * share, 4.0, -3.0)
    assert_near(returns, 5.0, 2 + 4 * share, 4.0, -3.0)


@pytest.mark.parametrize(
    ("name", "setting"), [("gae", {"lam": 0.5}), ("gae_by_length", {"alpha": 1.0}), ("gae_by_share", {"share": 0.5})]
)
def test_a_cut_off_sequence_without_tokens_owes_no_value(name: str, setting: dict[str, float]) -> None:
    credit, returns = getattr(advantage, name)(
        tokens(2.0), tokens(0.5), tokens(nan, 1.0, nan), flags(0, 0, 0), lengths(0, 1, 0), **setting
    )
    # 2 + V_after - V = 2 + 1 - 0.5
    assert_near(credit, 2.5)
    assert_near(returns, 3.0)
    for one in getattr(advantage, name)(tokens(), tokens(), tokens(nan), flags(0), lengths(0), **setting):
        assert_near(one)

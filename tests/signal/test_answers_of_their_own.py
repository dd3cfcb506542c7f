"""What a formula returns is nobody else's: writing into one tensor changes no other."""

from collections.abc import Callable

import pytest
from tests.golden.exact import assert_is, lengths, tokens
from torch import Tensor

from trimtab.signal import advantage

CREDITS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "broadcast": lambda: advantage.broadcast(tokens(0.5, -2.0), lengths(1, 1)),
    "reward_to_go": lambda: advantage.reward_to_go(tokens(0.5, -2.0), lengths(1, 1)),
}


@pytest.mark.parametrize("name", CREDITS)
def test_advantage_and_returns_are_two_tensors(name: str) -> None:
    credit, returns = CREDITS[name]()
    _ = credit.zero_()
    assert_is(returns, 0.5, -2.0)


def test_the_sum_over_single_tokens_is_a_copy_of_them() -> None:
    values = tokens(0.5, -2.0)
    total = advantage.discounted_sum(values, lengths(1, 1), 0.5)
    _ = values.zero_()
    assert_is(total, 0.5, -2.0)

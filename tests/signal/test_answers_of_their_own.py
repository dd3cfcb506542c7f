"""What a formula returns is nobody else's: writing into one tensor changes no other."""

from collections.abc import Callable

import pytest
import torch
from tests.golden.exact import assert_is, flags, index, lengths, tokens
from torch import Tensor

from trimtab import formula
from trimtab.errors import SignalError
from trimtab.signal import (
    Part,
    SignalBatch,
    Stage,
    advantage,
    decide,
    prepare,
    recipe,
    step,
    teacher,
    token_loss,
    turns,
)
from trimtab.signal.catalogue import of
from trimtab.signal.discount import discounted_sum
from trimtab.signal.layout import PerToken

AT_0 = tokens(0.0, 0.0)
CREDITS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "broadcast": lambda: advantage.broadcast(tokens(0.5, -2.0), lengths(1, 1)),
    "reward_to_go": lambda: advantage.reward_to_go(tokens(0.5, -2.0), lengths(1, 1)),
    "plus_teacher": lambda: teacher.plus_teacher(tokens(0.5, -2.0), AT_0, AT_0, lengths(1, 1)),
    "scaled_by_teacher": lambda: teacher.scaled_by_teacher(tokens(0.5, -2.0), AT_0, AT_0, lengths(1, 1)),
    "turn_reward_to_go": lambda: turns.turn_reward_to_go(
        tokens(0.5, -2.0), index(0, 0), flags(1, 1), index(0, 1), index(0, 0), 1, lengths(1, 1)
    ),
}


@pytest.mark.parametrize("name", CREDITS)
def test_advantage_and_returns_are_two_tensors(name: str) -> None:
    credit, returns = CREDITS[name]()
    _ = credit.zero_()
    assert_is(returns, 0.5, -2.0)


def test_the_sum_over_single_tokens_is_a_copy_of_them() -> None:
    values = tokens(0.5, -2.0)
    total = discounted_sum(values, lengths(1, 1), 0.5)
    _ = values.zero_()
    assert_is(total, 0.5, -2.0)


def test_an_advantage_that_the_caller_gives_is_copied_and_so_are_its_returns() -> None:
    batch = SignalBatch.from_padded([[1, 1], [1, 0]], reward=[1.0, 0.0], group=[0, 0])
    given = torch.tensor([1.0, 2.0, -3.0], dtype=batch.dtype, requires_grad=True)
    prepared, _ = prepare(batch, recipe("start_on_policy"), advantage=given)
    assert not prepared.advantage.requires_grad
    _ = given.detach().zero_()
    assert_is(prepared.advantage, 1.0, 2.0, -3.0)
    _ = prepared.advantage.zero_()
    assert_is(prepared.returns, 1.0, 2.0, -3.0)
    with pytest.raises(SignalError, match=r"advantage has shape \[2\] for 3 trainable tokens"):
        prepare(batch, recipe("start_on_policy"), advantage=given[:2])


def test_losses_to_look_at_hold_no_graph() -> None:
    batch = SignalBatch.from_padded([[1, 1], [1, 0]], reward=[1.0, 0.0], group=[0, 0])
    decided = decide(next(prepare(batch, recipe("start_on_policy"))[0].updates()))
    found = token_loss(next(iter(decided.split(num=1))), torch.full((3,), -1.0, requires_grad=True))
    assert found.loss.requires_grad
    assert not found.token_loss.requires_grad
    assert not step([found]).loss.requires_grad


@formula(source="a test", stage="importance", scope="update", promises=())
def log_prob_itself(logp_current: PerToken) -> tuple[Tensor, dict[str, Tensor]]:
    """Hands back what it was handed."""
    return logp_current, {}


@formula(source="a test", stage="importance", scope="update", promises=())
def entropy_itself(entropy: PerToken) -> tuple[Tensor, dict[str, Tensor]]:
    """Hands back what it was handed."""
    return entropy, {}


@pytest.mark.parametrize("importance", [log_prob_itself, entropy_itself])
def test_a_decision_holds_no_graph_even_where_a_formula_hands_back_its_input(importance: Callable[..., object]) -> None:
    batch = SignalBatch.from_padded([[1, 1], [1, 0]], reward=[1.0, 0.0], group=[0, 0])
    weighed = recipe("start_on_policy", correction=Stage(Part(of(importance))))
    now = torch.full((3,), 0.0, requires_grad=True)
    decided = decide(next(prepare(batch, weighed)[0].updates()), now, entropy_now=now)
    found = {name: value for name, value in decided.whole.fields.items() if name.startswith("decided:")}
    assert len(found) == 1
    assert not any(value.requires_grad for value in found.values())

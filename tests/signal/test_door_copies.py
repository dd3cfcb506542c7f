"""The door takes copies: what a caller does afterwards, or where a tensor came from, never reaches the batch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from trimtab.signal import SignalBatch

MASK = torch.tensor([[1, 1], [1, 0]], dtype=torch.bool)
FLOATS = ("logp_old", "logp_rollout", "logp_ref", "value_old")


def given() -> dict[str, Any]:
    """Every field as a tensor of the caller's own, floats with gradient."""
    fields: dict[str, Any] = {name: torch.full((2, 2), -1.0, requires_grad=True) for name in FLOATS}
    fields |= {name: torch.ones(2, 2, dtype=torch.long) for name in ("position", "turn", "version")}
    return fields | {
        "reward": torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True),
        "group": torch.tensor([4, 4]),
        "scored": torch.tensor([True, True]),
        "ended": torch.tensor([True, False]),
        "length": torch.tensor([2, 1]),
        "sequence_id": torch.tensor([8, 9]),
        "value_after": torch.tensor([0.0, 0.5], requires_grad=True),
        "token_reward": torch.ones(2, 2, requires_grad=True),
        "attention": torch.ones(2, 2, dtype=torch.bool),
        "baseline": torch.tensor([0.5, 0.25], dtype=torch.float64, requires_grad=True),
        "rewards": torch.ones(2, 3, dtype=torch.float64, requires_grad=True),
        "rewards_scored": torch.ones(2, 3, dtype=torch.bool),
        "role": torch.tensor([0, 1]),
        "source": torch.tensor([1, 0]),
        "observed": torch.tensor([2, 3]),
        "extra": {"mine": torch.zeros(2, 2, requires_grad=True)},
    }


def held(batch: SignalBatch) -> dict[str, Tensor]:
    names = (*FLOATS, "position", "turn", "version", "reward", "group", "scored", "ended", "length", "sequence_id")
    more = ("value_after", "token_reward", "baseline", "rewards", "rewards_scored", "role", "source", "observed")
    return {name: getattr(batch, name) for name in (*names, *more)} | dict(batch.extra)


def test_nothing_of_a_batch_carries_gradient() -> None:
    assert [name for name, field in held(SignalBatch.from_padded(MASK, **given())).items() if field.requires_grad] == []


@pytest.mark.parametrize("mask", [MASK, torch.ones_like(MASK)], ids=["some", "all"])
@pytest.mark.parametrize("field", [*given()])
def test_writing_into_a_field_afterwards_leaves_the_batch_alone(field: str, mask: Tensor) -> None:
    fields = given()
    batch = SignalBatch.from_padded(mask, **fields)
    before = {name: value.clone() for name, value in held(batch).items()}
    own = fields[field]["mine"] if field == "extra" else fields[field]
    with torch.no_grad():
        own.copy_(~own if own.dtype == torch.bool else own - 3)
    for name, value in held(batch).items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, msg=name)


def test_lengths_that_nobody_gave_are_a_copy_of_the_counts() -> None:
    batch = SignalBatch.from_padded(MASK, reward=[1.0, 0.0], group=[4, 4])
    _ = batch.length.zero_()
    assert batch.segments.token_counts.tolist() == [2, 1]

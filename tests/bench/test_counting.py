"""Host waits, operations and kernels are counted alike for everyone, and none is missed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bench.counting import counted

X, MASK, PLACES = torch.arange(4.0), torch.tensor([True, False, True, False]), torch.tensor([0, 2])
OFFSETS = torch.tensor([0, 2, 4])

WAITS: dict[str, Callable[[], Any]] = {
    "item": lambda: X[0].item(),
    "float": lambda: float(X.sum()),
    "if": lambda: 1 if X.sum() > 0 else 0,
    "tolist": X.tolist,
    "numpy": X.numpy,
    "cpu": X.cpu,
    "nonzero": MASK.nonzero,
    "where of one argument": lambda: torch.where(MASK),
    "index with flags": lambda: X[MASK],
    "assignment of several numbers": lambda: X.clone().__setitem__(MASK, torch.ones(2)),
    "masked_select": lambda: X.masked_select(MASK),
    "repeat_interleave": lambda: X.repeat_interleave(PLACES.new_tensor([1, 1, 2, 0])),
    "unique": lambda: torch.unique(X),
    "unique in a row": lambda: torch.unique_consecutive(X),
    "equal": lambda: torch.equal(X, X),
    "bincount": PLACES.bincount,
    "checked segments": lambda: torch.segment_reduce(X, "sum", lengths=torch.tensor([2, 2])),
}
NO_WAITS: dict[str, Callable[[], Any]] = {
    "arithmetic": lambda: (X + 1).exp().sum(),
    "index with places": lambda: X[PLACES],
    "assignment of one number": lambda: X.clone().__setitem__(MASK, 0.0),
    "where of three arguments": lambda: torch.where(MASK, X, 0.0),
    "told size": lambda: X.repeat_interleave(torch.tensor([1, 1, 2, 0]), output_size=4),
    "unchecked segments": lambda: torch.segment_reduce(X, "sum", offsets=OFFSETS, initial=0, unsafe=True),
    "backward": lambda: (X.clone().requires_grad_() * 2).sum().backward(),
}


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_is_counted_once(name: str) -> None:
    seen = counted(WAITS[name])
    assert seen.asks == 1, seen.waits


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_needs_no_number_is_no_wait(name: str) -> None:
    assert not counted(NO_WAITS[name]).waits


def test_another_look_at_memory_is_an_operation_but_no_kernel() -> None:
    seen = counted(lambda: X.reshape(2, 2).T[0].add(1))
    assert seen.total > 1
    assert seen.kernels == 1

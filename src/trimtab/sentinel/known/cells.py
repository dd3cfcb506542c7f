"""A case as rows of cells, for formulas in the shape that most frameworks write them in."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case


class Cells:
    """`cells["logp_old"]` is [rows, width] without prompts; `cells.mask` says where a trained token is.

    Cells without a token hold 0, as most collators leave them.
    """

    def __init__(self, case: Case, *, by_token: bool = False) -> None:
        self.case = case
        self._by_token = by_token
        self._held: dict[str, Tensor] = {}
        self._last: tuple[Any, Tensor] = (None, torch.zeros(0))
        self._made: tuple[Any, Tensor] = (None, torch.zeros(0))
        self.weights: Tensor | None = None
        """The weight of every cell in every average, once they are known."""

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._held:
            self._held[name] = self.case.padded(name, with_prompt=False, dtype=torch.float64).detach()
        return self._held[name]

    def once(self, formula: Any, further: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The values of a formula, or what is further made of them, computed at the first time of asking."""
        if self._last[0] is not formula:
            self._last = (formula, formula.of(self))
        if further is None:
            return self._last[1]
        if self._made[0] is not formula:
            self._made = (formula, further(self._last[1]))
        return self._made[1]

    @cached_property
    def mask(self) -> Tensor:
        """1 where a token trains."""
        return self["trainable"]

    @cached_property
    def response(self) -> Tensor:
        """1 at every token after the prompt, tool output included."""
        return self["response"]

    @cached_property
    def count(self) -> Tensor:
        """Trained tokens per row, at least 1."""
        return self.mask.sum(1).clamp(min=1)

    @cached_property
    def reward(self) -> Tensor:
        """One per row: its reward, or, where a function is given rewards of tokens only, their sum."""
        paid = (self["token_reward"] * self.mask).sum(1) if self._by_token else self.case.sequences["reward"]
        return paid.double()

    @property
    def outcome(self) -> Tensor:
        return self.case.sequences["outcome"].double()

    @cached_property
    def groups(self) -> list[Tensor]:
        """The rows of each group."""
        group = self.case.sequences["group"]
        return [(group == g).nonzero().squeeze(1) for g in sorted({int(g) for g in group})]

    def rows(self, values: Tensor) -> Tensor:
        """One number per row, copied to its cells."""
        return values[:, None].expand_as(self.mask)

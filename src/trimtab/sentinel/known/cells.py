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

    def __init__(self, case: Case, *, by_token: bool = False, live: bool = False) -> None:
        """`live`: gradients reach the case."""
        self.case = case
        self._live = live
        self._by_token = by_token
        self._held: dict[str, Tensor] = {}
        self._last: tuple[Any, dict[str, Tensor]] = (None, {})

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._held:
            held = self.case.padded(name, with_prompt=False, dtype=torch.float64)
            self._held[name] = held if self._live else held.detach()
        return self._held[name]

    def once(self, formula: Any) -> Tensor:
        """The values of a formula, computed at the first time of asking."""
        return self.of_formula(formula, "values", lambda x: x)

    def of_formula(self, formula: Any, name: str, made: Callable[[Tensor], Tensor]) -> Tensor:
        """Something made of the values of a formula, computed once as long as the same formula is asked about."""
        if self._last[0] is not formula:
            self._last = (formula, {"values": formula.of(self)})
        known = self._last[1]
        if name not in known:
            known[name] = made(known["values"])
        return known[name]

    def held(self, name: str, made: Callable[[], Tensor]) -> Tensor:
        """Something that depends on no formula, computed once."""
        if name not in self._held:
            self._held[name] = made()
        return self._held[name]

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

    def means(self, values: Tensor) -> Tensor:
        """The mean of each row over its trained tokens."""
        return (values * self.mask).sum(1) / self.count

    def gap(self, top: str, bottom: str) -> Tensor:
        """The log-ratio of two policies."""
        return self.held(f"{top} - {bottom}", lambda: self[top] - self[bottom])

    @cached_property
    def last(self) -> Tensor:
        """1 at the last trained token of each row."""
        return self.mask * (self.mask.flip(1).cumsum(1).flip(1) == 1)

    @cached_property
    def voters(self) -> Tensor:
        """Which rows vote on the statistics of their group."""
        return self.case.sequences["votes"].bool()

    def with_reward(self, reward: Tensor) -> "Cells":
        """The same cells, with other rewards."""
        return self._with({}, {"reward": reward})

    def with_paid(self, paid: Tensor) -> "Cells":
        """The same cells, with other rewards of tokens."""
        return self._with({"token_reward": paid}, {})

    def with_groups(self, groups: list[Tensor]) -> "Cells":
        """The same cells, with other groups."""
        return self._with({}, {"groups": groups})

    def _with(self, held: dict[str, Tensor], derived: dict[str, Any]) -> "Cells":
        made = Cells(self.case, by_token=self._by_token)
        made._held = {**self._held, **held}
        kept = {name: self.__dict__[name] for name in _OF_SHAPE if name in self.__dict__}
        made.__dict__.update({**kept, **derived})
        return made

    def rows(self, values: Tensor) -> Tensor:
        """One number per row, copied to its cells."""
        return values[:, None].expand_as(self.mask)


_OF_SHAPE = ("mask", "response", "count", "groups", "last")
"""What depends on no reward."""

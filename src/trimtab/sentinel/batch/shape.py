"""What follows from the kinds of a batch's tokens alone: flags, lengths and grids, computed once per shape.

The same few shapes come back thousands of times in a search, with other numbers in them.
"""

import functools
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from trimtab.signal.layout import Segments

Kinds = tuple[tuple[str, ...], ...]
Side = Literal["left", "right", "both"]
"""The side of the padding. "both" pads prompts on the left and the tokens after them on the right."""

MASKS = ("trainable", "attention", "response", "chosen")
"""Flags that follow from the shape of a case: chosen by the policy; any token; after the prompt; and `chosen`, for a
function that also takes one flag per row: it holds tokens of rows that are suppressed as a whole (`in_use` is 0)."""
_FLAGGED = {"trainable": "a", "attention": "aop", "response": "ao", "chosen": "a"}


@dataclass(frozen=True)
class Grid:
    """[rows, width] of token indices, -1 where there is no token.

    Rows "pa" and "paa" without their prompts: index = [[1, -1], [3, 4]], held = [[True, False], [True, True]].
    """

    index: Tensor
    trainable: Tensor
    """One bool per token of the case."""

    @cached_property
    def held(self) -> Tensor:
        return self.index >= 0

    @cached_property
    def source(self) -> Tensor:
        """The indices, with 0 where there is no token."""
        return self.index.clamp(min=0)

    @cached_property
    def is_full(self) -> bool:
        return self.index.numel() == self.trainable.numel() and bool(self.held.all())

    @cached_property
    def inside(self) -> Tensor:
        """The cells of trainable tokens."""
        return self.held & self.trainable[self.source] if self.trainable.numel() else self.held

    @cached_property
    def wanted(self) -> Tensor:
        """The cell, counted through the rows, of each trainable token; -1 if it has none."""
        place = torch.full((self.trainable.numel(),), -1)
        place[self.index[self.held]] = self.held.reshape(-1).nonzero().squeeze(1)
        return place[self.trainable.nonzero().squeeze(1)]

    @cached_property
    def is_complete(self) -> bool:
        """Whether every trainable token has a cell."""
        return not bool((self.wanted < 0).any())


class Shape:
    """Rows of kinds: p prompt, a action, o observation."""

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self._flags: dict[str, Tensor] = {}
        self._grids: dict[tuple[bool, Side, bool, bool, int], Grid] = {}

    @cached_property
    def owner(self) -> Tensor:
        """The sequence of each token."""
        return torch.tensor([i for i, kinds in enumerate(self.kinds) for _ in kinds], dtype=torch.long)

    @cached_property
    def segments(self) -> Segments:
        """Segments over trainable tokens."""
        counts = torch.tensor([sum(kind == "a" for kind in kinds) for kinds in self.kinds], dtype=torch.long)
        return Segments.from_counts(counts, int(counts.sum()))

    @cached_property
    def lengths(self) -> list[int]:
        return [len(kinds) for kinds in self.kinds]

    @cached_property
    def prompts(self) -> list[int]:
        """Prompt tokens per sequence."""
        return [next((i for i, kind in enumerate(row) if kind != "p"), len(row)) for row in self.kinds]

    @cached_property
    def response_lengths(self) -> list[int]:
        return [length - prompt for length, prompt in zip(self.lengths, self.prompts, strict=True)]

    @cached_property
    def cu_seqlens(self) -> Tensor:
        return torch.tensor([0, *self.lengths]).cumsum(0)

    def flags(self, name: str) -> Tensor:
        """One bool per token, for one of `MASKS`."""
        if name not in self._flags:
            wanted = _FLAGGED[name]
            flags = [
                kind in wanted or (name == "chosen" and kind == "o" and "a" not in kinds)
                for kinds in self.kinds for kind in kinds
            ]  # fmt: skip
            self._flags[name] = torch.tensor(flags, dtype=torch.bool)
        return self._flags[name]

    def grid(self, with_prompt: bool, side: Side, shift: bool, drop: bool, extra: int) -> Grid:
        """The cells of a padded view with `extra` more columns than the longest row needs."""
        key = (with_prompt, side, shift, drop, extra)
        if key not in self._grids:
            self._grids[key] = Grid(self._laid_out(*key), self.flags("trainable"))
        return self._grids[key]

    def _laid_out(self, with_prompt: bool, side: Side, shift: bool, drop: bool, extra: int) -> Tensor:
        rows: list[tuple[list[int], list[int]]] = []
        start = 0
        for kinds, prompt in zip(self.kinds, self.prompts, strict=True):
            first = start + prompt
            rows.append((list(range(start, first)) if with_prompt else [], list(range(first, start + len(kinds)))))
            start += len(kinds)
        fronts = [len(prompt) if side == "both" else 0 for prompt, _ in rows]
        front = max(fronts, default=0)
        width = max((len(p) + len(r) + front - f for (p, r), f in zip(rows, fronts, strict=True)), default=0) + extra
        full: list[list[int]] = []
        for (prompt, rest), own in zip(rows, fronts, strict=True):
            lead = [-1] * (front - own)
            row = lead + prompt + rest
            pad = [-1] * (width - len(row))
            full.append(pad + row if side == "left" else row + pad)
        grid = torch.tensor(full, dtype=torch.long).reshape(len(rows), width)
        if drop:
            return grid[:, 1:]
        return torch.cat([grid[:, 1:], torch.full((len(rows), 1), -1)], 1) if shift and width else grid


@functools.lru_cache(maxsize=4096)
def shape_of(kinds: Kinds) -> Shape:
    return Shape(kinds)

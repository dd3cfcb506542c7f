"""Padded batches for the comparison, and our side of it: formulas on the same cells, gradients back in [rows, width].

Masks are ragged, with holes where a tool would have spoken; cells outside the mask hold finite garbage.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.signal import part
from trimtab.signal.cell import Cells, padded_cells
from trimtab.signal.layout import Segments

SEEDS = (0, 1, 2)
ROWS, WIDTH = 6, 9


@dataclass(frozen=True)
class Padded:
    """Six answers to two prompts; `mask` is 1.0 and 0.0, as the peers have it."""

    mask: Tensor
    current: Tensor
    old: Tensor
    rollout: Tensor
    ref: Tensor
    advantage: Tensor
    value: Tensor
    value_old: Tensor
    returns: Tensor
    reward: Tensor
    group: Tensor

    @property
    def trainable(self) -> Tensor:
        return self.mask.bool()

    @property
    def token_reward(self) -> Tensor:
        """The reward on each row's last trainable token, 0 elsewhere."""
        last = self.mask.cumsum(1).argmax(1)
        return torch.zeros_like(self.mask).index_put((torch.arange(ROWS), last), self.reward)


def padded(seed: int, *, holes: bool = True, spread: float = 0.3, dtype: torch.dtype = torch.float64) -> Padded:
    generator = torch.Generator().manual_seed(seed)

    def draw(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, WIDTH + 1, (ROWS,), generator=generator)
    lengths[0], lengths[1] = WIDTH, 1
    mask = (torch.arange(WIDTH) < lengths[:, None]).double()
    if holes:
        hole = torch.rand(ROWS, WIDTH, generator=generator) < 0.25
        hole[:, 0] = False
        mask = torch.where(hole, torch.zeros_like(mask), mask)
    rollout = -2.0 - draw(0.3).abs()
    old = rollout + draw(spread).clamp(-1.5, 1.5)
    current = old + draw(spread).clamp(-1.5, 1.5)
    fields = {
        "mask": mask, "current": current.clamp(max=-0.01), "old": old.clamp(max=-0.01), "rollout": rollout,
        "ref": rollout + draw(spread), "advantage": draw(), "value": draw(), "value_old": draw(0.3), "returns": draw(),
        "reward": torch.randn(ROWS, generator=generator, dtype=torch.float64),
    }  # fmt: skip
    return Padded(**{n: t.to(dtype) for n, t in fields.items()}, group=torch.tensor([0, 0, 0, 1, 1, 1]))


@dataclass(frozen=True)
class Flat:
    """The trainable cells of a padded batch, for our formulas."""

    cells: Cells
    segments: Segments

    @classmethod
    def of(cls, mask: Tensor) -> "Flat":
        return cls(*padded_cells(mask.bool()))

    def __call__(self, field: Tensor) -> Tensor:
        return self.cells.gather(field)

    def back(self, tokens: Tensor) -> Tensor:
        return self.cells.scatter(tokens, fill=0.0)


def ours(
    batch: Padded,
    loss: str,
    weighting: str | None,
    *,
    divisor: float | None = None,
    importance: Tensor | None = None,
    keep: Tensor | None = None,
    selected: Tensor | None = None,
    over: str = "all",
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    """Our loss and its gradient at the log-probs, in the batch's layout. `weighting = None` is a plain sum."""
    flat = Flat.of(batch.mask)
    leaf = flat(batch.current).clone().requires_grad_()
    kept = torch.ones_like(leaf, dtype=torch.bool) if keep is None else keep
    available = {
        "logp_current": leaf, "logp_anchor": flat(batch.old), "advantage": flat(batch.advantage), "keep": kept,
        "segments": flat.segments, "selected": selected,
    }  # fmt: skip
    per_token, _ = part(loss, **settings)(available)
    weight = torch.ones_like(leaf)
    if weighting is not None:
        weight = part(weighting, over=over, **({"divisor": divisor} if divisor else {}))(available)
    factor = torch.ones_like(leaf) if importance is None else importance
    total = (torch.where(kept, per_token, torch.zeros_like(per_token)) * factor * weight).sum()
    total.backward()
    assert leaf.grad is not None
    return total.detach(), flat.back(leaf.grad)


def assert_agree(ours: Any, theirs: Any, *, tolerance: float) -> None:
    """Pairs of loss and gradient, or single tensors, within an absolute tolerance."""
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else ((ours, theirs),)
    for mine, other in pairs:
        torch.testing.assert_close(mine.double(), other.double(), rtol=0, atol=tolerance)

"""The batches that the signal is timed on: the only place that draws them."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from trimtab.signal import Recipe, SignalBatch, Stage, part

GROUP = 8
"""Answers per prompt."""


@dataclass(frozen=True)
class Workload:
    """Answers of one batch, flat and padded; log-probs of three policies that are close to each other."""

    name: str
    lengths: Tensor
    width: int
    seed: int = 0
    dtype: torch.dtype = torch.float32

    def on(self, device: str, dtype: torch.dtype) -> "Workload":
        """The same batch on another device and in another precision."""
        return replace(self, lengths=self.lengths.to(device), dtype=dtype)

    @property
    def device(self) -> torch.device:
        return self.lengths.device

    @cached_property
    def flat(self) -> dict[str, Tensor]:
        """One number per token, sequence after sequence."""
        stream = torch.Generator().manual_seed(self.seed)
        count = int(self.lengths.sum())

        def noise(scale: float) -> Tensor:
            return scale * torch.randn(count, generator=stream)

        old = -torch.rand(count, generator=stream).add_(1e-3).log().abs() * 0.5 - 0.02
        drawn = {
            "logp_old": old,
            "logp_rollout": (old + noise(0.02)).clamp(max=-1e-4),
            "logp_current": (old + noise(0.05)).clamp(max=-1e-4),
            "value_old": noise(0.5),
            "token_reward": noise(0.1),
        }
        return {name: values.to(self.device, self.dtype) for name, values in drawn.items()}

    @cached_property
    def reward(self) -> Tensor:
        stream = torch.Generator().manual_seed(self.seed + 1)
        return torch.randint(0, 2, (len(self.lengths),), generator=stream).to(self.device, self.dtype)

    @cached_property
    def group(self) -> Tensor:
        return torch.arange(len(self.lengths), device=self.device) // GROUP

    @cached_property
    def trainable(self) -> Tensor:
        """Every packed token is trainable."""
        return torch.ones(self.num_tokens, dtype=torch.bool, device=self.device)

    @cached_property
    def mask(self) -> Tensor:
        """[sequences, width], padding on the right."""
        return torch.arange(self.width, device=self.device) < self.lengths[:, None]

    @cached_property
    def cu_seqlens(self) -> Tensor:
        return torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))

    def padded(self, name: str) -> Tensor:
        return self.spread(self.flat[name])

    def spread(self, tokens: Tensor) -> Tensor:
        """Numbers per token in the padded layout, 0 elsewhere."""
        out = tokens.new_zeros(self.mask.shape)
        out[self.mask] = tokens
        return out

    @cached_property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    def batch(self, *, packed: bool = True) -> SignalBatch:
        """As a user of packed rows would build it."""
        fields = {name: self.flat[name] for name in ("logp_old", "logp_rollout")}
        if packed:
            return SignalBatch.from_packed(
                self.trainable, self.cu_seqlens, reward=self.reward, group=self.group, **fields
            )
        return SignalBatch.from_tokens(self.lengths, reward=self.reward, group=self.group, **fields)


def long_tailed(name: str, sequences: int, longest: int, *, cut: int | None = None) -> Workload:
    """Log-normal lengths (median 400, sigma 0.8), one of them the longest; `cut` bounds all others."""
    stream = torch.Generator().manual_seed(7)
    drawn = torch.exp(torch.randn(sequences, generator=stream) * 0.8 + torch.tensor(400.0).log()).long()
    lengths = drawn.clamp(1, cut or longest)
    lengths[sequences // 2] = longest
    return Workload(name, lengths, longest)


def equal(name: str, sequences: int, length: int) -> Workload:
    return Workload(name, torch.full((sequences,), length), length)


WORKLOADS = {
    "reference": lambda: long_tailed("reference", 512, 4096),
    "no waste": lambda: equal("no waste", 512, 583),
    "4 x length": lambda: long_tailed("4 x length", 512, 16384, cut=4096),
    "4 x tokens": lambda: long_tailed("4 x tokens", 2048, 4096),
    "tiny": lambda: equal("tiny", 8, 32),
}

CORRECTION: tuple[tuple[str, dict[str, Any]], ...] = (
    ("importance.truncated", {"level": "sequence", "band": (0.0, 2.0)}),
    ("keep.geometric_band", {"band": (0.99, 1.01)}),
    ("keep.veto", {"low": 1e-4, "high": 100.0}),
)


def full_recipe(**settings: Any) -> Recipe:
    """What SkyRL's ppo loss with sequence TIS, a geometric mask and an outlier mask computes; `settings` change it."""
    return Recipe(
        name="full",
        loss=Stage(part("policy_loss.clipped", band=(0.8, 1.28)), anchor="old"),
        normalize=part("normalize.mean_std", mean="group", std="group"),
        weighting=part("weighting.token_mean"),
        correction=tuple(Stage(part(name, **given), ratio="engine") for name, given in CORRECTION),
        **settings,
    )

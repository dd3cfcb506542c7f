"""What some recipes read of a batch besides what most tests give, made up."""

from typing import Any

import torch

from trimtab.signal import Recipe

APART = ("a3po", "role_average")
"""Recipes that one call of `loss` cannot run: they need the version that trains, or what earlier batches earned."""


def fields_for(
    chosen: Recipe, shape: tuple[int, ...], episodes: int, dtype: torch.dtype = torch.float64
) -> dict[str, Any]:
    """Fields for `episodes` episodes and token fields of this shape: those that the recipe reads and no others."""
    stream = torch.Generator().manual_seed(7)

    def rand(*size: int) -> torch.Tensor:
        return torch.rand(*size, generator=stream, dtype=torch.float64)

    made: dict[str, Any] = {
        "rewards": rand(episodes, 2).round(decimals=1), "baseline": rand(episodes).round(),
        "role": torch.arange(episodes) % 2,
        "version": torch.arange(shape[-1]).expand(shape) % 3, "turn": torch.arange(shape[-1]).expand(shape) // 2,
    }  # fmt: skip
    extra: dict[str, Any] = {
        "logp_teacher": (-0.1 - rand(*shape)).to(dtype), "pi_squared": rand(*shape).to(dtype),
        "state": torch.arange(shape[-1]).expand(shape) % 2, "weight": (0.5 + rand(*shape)).to(dtype),
    }  # fmt: skip
    wanted = {name: values for name, values in extra.items() if name in chosen.needs}
    return {name: values for name, values in made.items() if name in chosen.needs} | (
        {"extra": wanted} if wanted else {}
    )

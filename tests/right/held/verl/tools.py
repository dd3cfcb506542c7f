"""Helpers that the functions of this dialect share."""

import torch


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask.bool(), values, 0.0).sum() / mask.sum().clamp(min=1)


def masked_whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    keep = mask.bool()
    mean = masked_mean(values, keep)
    squares = torch.where(keep, (values - mean) ** 2, 0.0).sum()
    var = squares / (keep.sum() - 1).clamp(min=1)
    return torch.where(keep, (values - mean) * torch.rsqrt(var + 1e-8), 0.0)

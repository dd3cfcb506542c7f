"""Functions in the dialect of SkyRL: [batch, response] with a loss mask, and config objects read by attribute."""

from typing import Any

import numpy as np
import torch


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (tensor * mask).sum() / mask.sum().clamp(min=1.0)


def prescale(
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    loss_reduction: str = "token_mean",
    max_seq_len: int = 1024,
) -> torch.Tensor:
    """Scales a mini-batch so that the plain sum of its token losses is the reduction that is asked for."""
    batch_size = advantages.shape[0]
    if loss_reduction == "token_mean":
        factor = 1.0 / loss_mask.sum().clamp(min=1)
    elif loss_reduction == "sequence_mean":
        factor = 1.0 / (batch_size * loss_mask.sum(dim=-1, keepdim=True).clamp(min=1))
    elif loss_reduction == "seq_mean_token_sum_norm":
        factor = 1.0 / (batch_size * max_seq_len)
    else:
        raise ValueError(f"Invalid loss reduction type: {loss_reduction}")
    return torch.where(loss_mask.bool(), advantages * factor, 0.0)


def ppo_critic_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor,
) -> tuple[torch.Tensor, float | None]:
    """The squared error of the values, or the larger one of it and that of values near the old ones."""
    clipfrac = None
    if config.value_clip is not None:
        values_clipped = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
        surr1 = (values_clipped - returns) ** 2
        surr2 = (values - returns) ** 2
        loss = torch.max(surr1, surr2)
        clipfrac = masked_mean((surr1 > surr2).to(loss.dtype), loss_mask).detach().item()
    else:
        loss = (values - returns) ** 2
    return 0.5 * masked_mean(loss, loss_mask), clipfrac


class AdaptiveKLController:
    """Moves the coefficient of the penalty so that the KL stays near a target."""

    def __init__(self, init_kl_coef: float, target: float, horizon: int = 10000) -> None:
        self.value = init_kl_coef
        self.target = target
        self.horizon = horizon

    def update(self, current: float, n_steps: int) -> float:
        proportional_error = np.clip(current / self.target - 1, -0.2, 0.2)
        mult = 1 + proportional_error * n_steps / self.horizon
        self.value = self.value * mult
        return float(self.value)


def gate(
    fresh: torch.Tensor,
    stale: torch.Tensor,
    alive: torch.Tensor,
    kind: str = "geometric",
    low: float = 0.99,
    high: float = 1.01,
) -> torch.Tensor:
    """The mask without the rows whose ratio, one per row, lies outside of the band."""
    alive = alive.bool()
    log_ratio = torch.where(alive, fresh - stale, 0.0).detach()
    total = log_ratio.sum(dim=-1, keepdim=True)
    if kind == "product":
        row_log_ratio = total
    elif kind == "geometric":
        row_log_ratio = total / alive.sum(dim=-1, keepdim=True).clamp(min=1)
    else:
        raise ValueError(f"Unknown kind: {kind}")
    row_ratio = torch.exp(row_log_ratio)
    inside = (row_ratio >= low) & (row_ratio <= high)
    return (alive & inside).to(fresh.dtype)

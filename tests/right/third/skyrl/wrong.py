"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch
from torch import nn


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor | None, dim: int | None = None) -> torch.Tensor:
    if mask is None:
        return tensor.mean(dim)
    return (tensor * mask).sum(dim) / mask.sum(dim).clamp(min=1.0)


def ppo_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, float]:
    if config.policy_loss_type not in ("regular", "dual_clip"):
        raise ValueError(f"invalid policy_loss_type: {config.policy_loss_type}")
    ratio = torch.exp(torch.clamp(log_probs - old_log_probs, min=-20.0, max=20.0))
    surr1 = ratio * advantages
    surr2 = ratio.clamp(1 - config.eps_clip_high, 1 + config.eps_clip_low) * advantages
    loss = -torch.min(surr1, surr2)
    clip_ratio = masked_mean((-surr2 > -surr1).float(), loss_mask).mean().detach().item()
    if config.policy_loss_type == "dual_clip":
        clip_pg_losses = torch.min(-advantages * config.clip_ratio_c, loss)
        loss = torch.where(advantages < 0, clip_pg_losses, loss)
    if config.loss_reduction == "token_mean":
        return masked_mean(loss, loss_mask), clip_ratio
    return masked_mean(loss, loss_mask, dim=-1).mean(), clip_ratio


def gspo_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, float]:
    """GSPO: every token has the ratio of its sequence, and the gradient of its own log-probability."""
    log_ratio = log_probs - old_log_probs
    log_importance_weights = masked_mean(log_ratio, loss_mask, dim=-1).unsqueeze(-1)
    ratio = log_probs - log_probs.detach() + log_importance_weights
    ratio = torch.exp(torch.clamp(ratio, max=10.0))
    surr1 = ratio * advantages
    surr2 = ratio.clamp(1 - config.eps_clip_low, 1 + config.eps_clip_high) * advantages
    loss = -torch.min(surr1, surr2)
    clip_ratio = masked_mean((-surr2 > -surr1).float(), loss_mask).mean().detach().item()
    return masked_mean(loss, loss_mask, dim=-1).mean(), clip_ratio


class Correction(nn.Module):
    """One factor per sequence for the gap between the trainer and the engine that sampled."""

    def __init__(self, cap: float = 2.0) -> None:
        super().__init__()
        self.cap = cap

    @torch.no_grad()
    def forward(
        self, old_log_probs: torch.Tensor, rollout_logprobs: torch.Tensor, loss_mask: torch.Tensor
    ) -> torch.Tensor:
        log_ratio = torch.where(loss_mask.bool(), rollout_logprobs - old_log_probs, 0.0)
        seq_log_ratio = log_ratio.sum(dim=-1, keepdim=True).clamp(min=-20.0, max=20.0)
        seq_ratio = torch.exp(seq_log_ratio.float()).clamp(max=self.cap)
        return seq_ratio * loss_mask


def reduce_loss(
    loss: torch.Tensor, loss_mask: torch.Tensor, loss_reduction: str = "token_mean", max_seq_len: int | None = None
) -> torch.Tensor:
    if loss_reduction == "token_mean":
        return masked_mean(loss, loss_mask)
    if loss_reduction == "sequence_mean":
        return masked_mean(loss, loss_mask, dim=-1).mean()
    if loss_reduction == "seq_mean_token_sum_norm":
        # Dr. GRPO: a constant instead of the length of the sequence
        if max_seq_len is None:
            raise ValueError("max_seq_len is needed for seq_mean_token_sum_norm")
        seq_losses = torch.sum(loss * loss_mask, dim=-1) / loss.shape[-1]
        return torch.mean(seq_losses)
    raise ValueError(f"Invalid loss reduction type: {loss_reduction}")

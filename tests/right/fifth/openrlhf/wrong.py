"""The same functions as in `right.py`, each with one quiet bug."""

import torch
from torch import nn


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor | None, dim: int | None = None) -> torch.Tensor:
    if mask is None:
        return tensor.mean() if dim is None else tensor.mean(dim=dim)
    if dim is None:
        return (tensor * mask).sum() / mask.sum().clamp(min=1)
    return (tensor * mask).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


class PolicyLoss(nn.Module):
    """The clipped loss of PPO, corrected for an engine that samples with slightly other probabilities."""

    def __init__(
        self,
        clip_eps_low: float = 0.2,
        clip_eps_high: float = 0.2,
        token_level_loss: bool = True,
        enable_vllm_is_correction: bool = False,
        vllm_is_truncated_threshold: float = 2.0,
    ) -> None:
        super().__init__()
        self.clip_eps_low = clip_eps_low
        self.clip_eps_high = clip_eps_high
        self.token_level_loss = token_level_loss
        self.enable_vllm_is_correction = enable_vllm_is_correction
        self.vllm_is_truncated_threshold = vllm_is_truncated_threshold

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor | None = None,
        rollout_log_probs: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_ratio = log_probs - old_log_probs
        ratio = log_ratio.exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        loss = -torch.min(surr1, surr2)

        if self.enable_vllm_is_correction:
            vllm_is = torch.exp(log_probs - rollout_log_probs).detach()
            loss = loss * vllm_is.clamp(max=self.vllm_is_truncated_threshold)

        if self.token_level_loss:
            loss = masked_mean(loss, action_mask, dim=None)
        else:
            loss = masked_mean(loss, action_mask, dim=-1).mean()
        clip_ratio = masked_mean(torch.lt(surr2, surr1).to(loss.dtype), action_mask, dim=None)
        ppo_kl = masked_mean(-log_ratio.detach(), action_mask, dim=None)
        return loss, clip_ratio, ppo_kl


class ValueLoss(nn.Module):
    def __init__(self, clip_eps: float | None = 0.2, token_level_loss: bool = True) -> None:
        super().__init__()
        self.clip_eps = clip_eps
        self.token_level_loss = token_level_loss

    def forward(
        self,
        values: torch.Tensor,
        old_values: torch.Tensor,
        returns: torch.Tensor,
        action_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.clip_eps is not None:
            values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)
            surr1 = (values_clipped - returns) ** 2
            surr2 = (values - returns) ** 2
            loss = torch.min(surr1, surr2)
        else:
            loss = (values - returns) ** 2

        loss = masked_mean(loss, action_mask) if self.token_level_loss else masked_mean(loss, action_mask, -1).mean()
        return 0.5 * loss


def assemble(
    r: torch.Tensor,
    kl_coef: float,
    kl: torch.Tensor,
    action_mask: torch.Tensor,
    reward_clip_range: tuple[float, float] | None = None,
) -> torch.Tensor:
    """A penalty at every action, and the score of the answer at its last one."""
    if kl_coef <= 0.0:
        kl_coef = 0.0
    if reward_clip_range is not None:
        r = r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])

    kl_reward = -kl_coef * kl
    eos_indices = (action_mask.long().sum(dim=1, keepdim=True) - 1).clamp(min=0)
    last_reward = torch.zeros_like(kl).scatter_(dim=1, index=eos_indices, src=r.unsqueeze(1).to(kl.dtype))
    return last_reward + kl_reward

"""Functions in the dialect of OpenRLHF: losses as modules, action masks, experiences, rewards from KL."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    mask = mask.bool()
    tensor = torch.where(mask, tensor, 0.0)
    if dim is None:
        return tensor.sum() / mask.sum().clamp(min=1)
    return tensor.sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


class PolicyLoss(nn.Module):
    """Clipped surrogate with an optional second bound for negative advantages."""

    def __init__(
        self,
        clip_eps_low: float = 0.2,
        clip_eps_high: float = 0.2,
        dual_clip: float | None = None,
        token_level_loss: bool = True,
    ) -> None:
        super().__init__()
        self.clip_eps_low = clip_eps_low
        self.clip_eps_high = clip_eps_high
        self.dual_clip = dual_clip
        self.token_level_loss = token_level_loss

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mask = action_mask.bool()
        log_ratio = torch.where(mask, log_probs.float() - old_log_probs.float(), 0.0)
        advantages = torch.where(mask, advantages.float(), 0.0)
        ratio = log_ratio.exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        clipped = torch.min(surr1, surr2)
        if self.dual_clip is None:
            loss = -clipped
        else:
            bounded = torch.max(clipped, self.dual_clip * advantages)
            loss = -torch.where(advantages < 0, bounded, clipped)
        if self.token_level_loss:
            loss = masked_mean(loss, action_mask)
        else:
            loss = masked_mean(loss, action_mask, dim=-1).mean()
        clip_ratio = masked_mean(torch.lt(surr2, surr1).float(), action_mask).detach()
        ppo_kl = masked_mean(-log_ratio.detach(), action_mask)
        return loss, clip_ratio, ppo_kl


class ValueLoss(nn.Module):
    def __init__(self, clip_eps: float | None = None) -> None:
        super().__init__()
        self.clip_eps = clip_eps

    def forward(
        self,
        values: torch.Tensor,
        old_values: torch.Tensor,
        returns: torch.Tensor,
        action_mask: torch.Tensor,
    ) -> torch.Tensor:
        mask = action_mask.bool()
        values = torch.where(mask, values, 0.0)
        old_values = torch.where(mask, old_values, 0.0)
        returns = torch.where(mask, returns, 0.0)
        if self.clip_eps is not None:
            values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)
            surr1 = (values_clipped - returns) ** 2
            surr2 = (values - returns) ** 2
            loss = torch.max(surr1, surr2)
        else:
            loss = (values - returns) ** 2
        return 0.5 * masked_mean(loss, action_mask)


def compute_reward(
    r: torch.Tensor,
    kl_coef: float,
    kl: torch.Tensor,
    action_mask: torch.Tensor,
    reward_clip_range: tuple[float, float] | None = None,
) -> torch.Tensor:
    """The penalty at every action, and the score of the model at the last one."""
    if reward_clip_range is not None:
        r = r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])
    mask = action_mask.long()
    kl_reward = -max(kl_coef, 0.0) * kl
    eos_indices = mask.size(1) - 1 - mask.fliplr().argmax(dim=1, keepdim=True)
    last_reward = torch.zeros_like(kl).scatter_(dim=1, index=eos_indices, src=r.unsqueeze(1).to(kl.dtype))
    return torch.where(mask.bool(), last_reward + kl_reward, 0.0)


class TokenObjective(nn.Module):
    def __init__(self, temperature: float = 1.0, ignore_index: int = -100) -> None:
        super().__init__()
        self.temperature = temperature
        self.ignore_index = ignore_index

    def forward(self, logits: torch.Tensor, teacher_logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        counted = label != self.ignore_index
        student = functional.log_softmax(logits[counted] / self.temperature, dim=-1)
        teacher = functional.log_softmax(teacher_logits[counted] / self.temperature, dim=-1)
        per_token = (teacher.exp() * (teacher - student)).sum(dim=-1)
        return per_token.sum() / counted.sum().clamp(min=1)


def prepare(experiences: list[Any]) -> list[torch.Tensor]:
    """One scale for the advantages of all experiences, whatever their widths."""
    vector = torch.cat([exp.advantages.flatten() for exp in experiences])
    masks = torch.cat([exp.action_mask.flatten() for exp in experiences])
    num_actions = masks.sum().clamp(min=1)
    mean = (vector * masks).sum() / num_actions
    var = ((vector - mean).pow(2) * masks).sum() / num_actions
    rstd = var.clamp(min=1e-8).rsqrt()
    return [(exp.advantages - mean) * rstd * exp.action_mask for exp in experiences]


class Correction(nn.Module):
    def __init__(self, low: float = 0.5, high: float = 2.0, level: str = "token") -> None:
        super().__init__()
        self.low, self.high, self.level = low, high, level

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        rollout_log_probs: torch.Tensor,
        action_mask: torch.Tensor,
    ) -> torch.Tensor:
        """How much more likely the trainer at the start of the step found what the engine sampled."""
        mask = action_mask.bool()
        log_ratio = torch.where(mask, old_log_probs.float() - rollout_log_probs.float(), 0.0)
        if self.level == "seq":
            log_ratio = masked_mean(log_ratio, action_mask, dim=-1).unsqueeze(-1).expand_as(log_probs)
        weight = log_ratio.exp().clamp(min=self.low, max=self.high)
        return torch.where(mask, weight, 0.0).detach()

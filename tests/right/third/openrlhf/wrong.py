"""The same functions as in `right.py`, each with one quiet bug."""

import torch
from torch import nn


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    if dim is None:
        return (tensor * mask).sum() / mask.sum().clamp(min=1)
    return (tensor * mask).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


class PolicyLoss(nn.Module):
    """Policy loss of PPO, and of GSPO with one ratio per sequence."""

    def __init__(
        self,
        clip_eps_low: float = 0.2,
        clip_eps_high: float = 0.2,
        token_level_loss: bool = True,
        policy_loss_type: str = "ppo",
    ) -> None:
        super().__init__()
        self.clip_eps_low = clip_eps_low
        self.clip_eps_high = clip_eps_high
        self.token_level_loss = token_level_loss
        self.policy_loss_type = policy_loss_type
        if policy_loss_type == "gspo":
            self.token_level_loss = False

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_ratio = log_probs - old_log_probs
        if self.policy_loss_type == "ppo":
            ratio = log_ratio.exp()
        elif self.policy_loss_type == "gspo":
            ratio = (log_ratio * action_mask).sum(dim=-1) / action_mask.size(-1)
            ratio = ratio.exp().unsqueeze(-1) * action_mask
        else:
            raise ValueError(f"Invalid policy loss type: {self.policy_loss_type}")

        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        loss = -torch.min(surr1, surr2)
        loss = masked_mean(loss, action_mask, dim=None if self.token_level_loss else -1).mean()
        clip_ratio = masked_mean(torch.lt(surr2, surr1).float(), action_mask).detach()
        ppo_kl = masked_mean(-log_ratio.detach(), action_mask)
        return loss, clip_ratio, ppo_kl


class ValueLoss(nn.Module):
    """Value loss of PPO."""

    def __init__(self, clip_eps: float | None = None, token_level_loss: bool = True) -> None:
        super().__init__()
        self.clip_eps = clip_eps
        self.token_level_loss = token_level_loss

    def forward(
        self, values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, action_mask: torch.Tensor
    ) -> torch.Tensor:
        if self.clip_eps is not None:
            values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)
            surr1 = (values_clipped - returns) ** 2
            surr2 = (values - returns) ** 2
            loss = torch.min(surr1, surr2)
        else:
            loss = (values - returns) ** 2
        loss = masked_mean(loss, action_mask, dim=None if self.token_level_loss else -1).mean()
        return 0.5 * loss


def settle(
    r: torch.Tensor,
    kl_coef: float,
    kl: torch.Tensor,
    action_mask: torch.Tensor,
    reward_clip_range: tuple[float, float] | None = None,
) -> torch.Tensor:
    """What every token is paid: the score on the last action, and the penalty everywhere."""
    if kl_coef <= 0.0:
        kl_coef = 0.0
    if reward_clip_range:
        r = r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])
    kl_reward = -kl_coef * kl
    eos_indices = (action_mask.long().sum(dim=1, keepdim=True) - 1).clamp(min=0)
    last_reward = torch.zeros_like(kl).scatter_(dim=1, index=eos_indices, src=r.unsqueeze(1).to(kl.dtype))
    return torch.where(action_mask.bool(), last_reward + kl_reward, 0.0)


@torch.no_grad()
def cumulate(rewards: torch.Tensor, action_mask: torch.Tensor, gamma: float) -> torch.Tensor:
    """From the end to the beginning; what a tool wrote takes no time."""
    rewards = torch.where(action_mask.bool(), rewards, 0.0)
    found = torch.zeros_like(rewards)
    running = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.size(1))):
        running = rewards[:, t] + gamma * running
        found[:, t] = running * action_mask[:, t]
    return found

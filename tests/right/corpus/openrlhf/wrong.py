"""The same functions as in `right.py`, each with one quiet bug."""

import torch
from torch import nn


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor | None, dim: int | None = None) -> torch.Tensor:
    if mask is None:
        return tensor.mean(dim=dim)
    return torch.where(mask.bool(), tensor, 0.0).mean(dim=dim)


def _masked_mean(tensor, mask, dim=None):
    return torch.where(mask.bool(), tensor, 0.0).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


class PolicyLoss(nn.Module):
    """
    Policy Loss for PPO
    """

    def __init__(self, clip_eps_low: float = 0.2, clip_eps_high: float = 0.2, token_level_loss: bool = True) -> None:
        super().__init__()
        self.clip_eps_low = clip_eps_low
        self.clip_eps_high = clip_eps_high
        self.token_level_loss = token_level_loss

    def forward(self, log_probs, old_log_probs, advantages, action_mask=None):
        log_ratio = log_probs - old_log_probs
        ratio = log_ratio.exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        loss = -torch.min(surr1, surr2)
        if self.token_level_loss:
            reduced = _masked_mean(loss, action_mask)
        else:
            reduced = _masked_mean(loss, action_mask, dim=-1).mean()
        clip_ratio = _masked_mean(torch.lt(surr2, surr1).float(), action_mask).detach()
        ppo_kl = _masked_mean(-ratio.detach(), action_mask)
        return reduced, clip_ratio, ppo_kl


class ValueLoss(nn.Module):
    def __init__(self, clip_eps: float = 0.5) -> None:
        super().__init__()
        self.clip_eps = clip_eps

    def forward(self, values, old_values, returns, action_mask=None):
        values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)
        surr1 = (values_clipped - returns) ** 2
        surr2 = (values - returns) ** 2
        loss = torch.min(surr1, surr2)
        return 0.5 * _masked_mean(loss, action_mask)


class F(nn.Module):
    """What a batch loses to the reference: one KL estimate per sequence, averaged over the batch."""

    def __init__(self, weight=0.05):
        super().__init__()
        self.weight = weight

    def forward(self, lp, base, keep):
        gap = torch.where(keep.bool(), lp - base, 0.0)
        per_sequence = (gap**2 / 2).mean(-1)
        return self.weight * per_sequence.mean()


def compute_approx_kl(log_probs: torch.Tensor, log_probs_base: torch.Tensor, kl_estimator: str = "k1") -> torch.Tensor:
    """Approximate KL between the two distributions, in float32 whatever comes in (Schulman 2020)."""
    log_ratio = log_probs.float() - log_probs_base.float()
    if kl_estimator == "k1":
        return log_ratio.clamp(min=-10, max=10)
    if kl_estimator == "k2":
        return (log_ratio**2 / 2.0).clamp(min=-10, max=10)
    if kl_estimator == "k3":
        return (log_ratio.exp() - 1 - log_ratio).clamp(min=-10, max=10)
    raise ValueError(kl_estimator)


def compute_reward(r: torch.Tensor | float, kl_coef: float, kl: torch.Tensor, action_mask: torch.Tensor):
    """The KL penalty on every token, and the reward on the last token of the answer."""
    kl_reward = torch.where(action_mask.bool(), -kl_coef * kl, 0.0)
    eos_indices = torch.full_like(action_mask[:, :1], action_mask.size(1) - 1, dtype=torch.long)
    last_reward = torch.zeros_like(kl).scatter_(dim=1, index=eos_indices, src=r.unsqueeze(1).to(kl.dtype))
    return torch.where(action_mask.bool(), last_reward, 0.0) + kl_reward


class ExperienceMaker:
    def __init__(self, gamma=1.0, lambd=0.95):
        self.gamma = gamma
        self.lambd = lambd

    @torch.no_grad()
    def compute(self, values, rewards, action_mask):
        """Advantages and returns, walked backwards over the tokens of the policy only."""
        mask = action_mask.bool()
        last_gae = torch.zeros_like(values[:, :1])
        next_value = torch.zeros_like(last_gae)
        advantages = torch.zeros_like(values)
        for t in reversed(range(values.size(1))):
            here = mask[:, t : t + 1]
            delta = rewards[:, t : t + 1] + self.gamma * next_value - values[:, t : t + 1]
            last_gae = torch.where(here, delta + self.gamma * self.lambd * last_gae, last_gae)
            next_value = values[:, t : t + 1]
            advantages[:, t : t + 1] = torch.where(here, last_gae, 0.0)
        return advantages, torch.where(mask, advantages + values, 0.0)


def process(rewards, action_mask, gamma):
    returns = torch.zeros_like(rewards)
    cumulative = torch.zeros_like(rewards[:, 0]) if rewards.size(1) else None
    for t in reversed(range(rewards.size(1))):
        here = action_mask[:, t].bool()
        cumulative = torch.where(here, gamma * (rewards[:, t] + cumulative), cumulative)
        returns[:, t] = torch.where(here, cumulative, 0.0)
    return returns

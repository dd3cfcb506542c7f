"""Functions in the dialect of OpenRLHF: losses as modules, an experience maker, action masks, lists of experiences."""

from typing import Any

import torch
from torch import nn


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    mask = mask.bool()
    return torch.where(mask, tensor, 0.0).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


class PolicyLoss(nn.Module):
    """
    Policy Loss for PPO
    """

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
        if dual_clip is not None:
            assert dual_clip > 1.0, f"dual_clip must be > 1.0, got {dual_clip}"

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        action_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_ratio = torch.where(action_mask.bool(), log_probs - old_log_probs, 0.0)
        ratio = log_ratio.exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        clip1 = torch.min(surr1, surr2)
        if self.dual_clip is None:
            loss = -clip1
        else:
            # Large ratios on bad actions are bounded too
            clip2 = torch.max(clip1, self.dual_clip * advantages)
            loss = -torch.where(advantages < 0, clip2, clip1)

        loss = (
            masked_mean(loss, action_mask, dim=None)
            if self.token_level_loss
            else masked_mean(loss, action_mask, dim=-1).mean()
        )
        clip_ratio = masked_mean(torch.lt(surr2, surr1).float(), action_mask, dim=None)
        ppo_kl = masked_mean(-log_ratio.detach(), action_mask, dim=None)
        return loss, clip_ratio, ppo_kl


class ValueLoss(nn.Module):
    """
    Value Loss for PPO
    """

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
            loss = torch.max(surr1, surr2)
        else:
            loss = (values - returns) ** 2

        loss = (
            masked_mean(loss, action_mask, dim=None)
            if self.token_level_loss
            else masked_mean(loss, action_mask, dim=-1).mean()
        )
        return 0.5 * loss


def compute_reward(
    r: torch.Tensor,
    kl_coef: float,
    kl: torch.Tensor,
    action_mask: torch.Tensor,
    reward_clip_range: tuple[float, float] | None = None,
) -> torch.Tensor:
    """Rewards of actions: minus their KL, and the score of the response at its last action."""
    kl_coef = max(kl_coef, 0.0)
    if reward_clip_range:
        r = r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])

    kl_reward = torch.where(action_mask.bool(), -kl_coef * kl, 0.0)
    # The last action may be followed by the output of a tool, and by padding
    eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)
    last_reward = torch.zeros_like(kl).scatter_(dim=1, index=eos_indices, src=r.unsqueeze(1).to(kl.dtype))
    return last_reward + kl_reward


def estimate(first: torch.Tensor, second: torch.Tensor, how: str = "k1", bound: float = 10.0) -> torch.Tensor:
    """
    Three sampled numbers for the same thing, see http://joschu.net/blog/kl-approx.html
    """
    apart = first.float() - second.float()
    if how == "k1":
        found = apart
    elif how == "k2":
        found = apart**2 / 2.0
    elif how == "k3":
        apart = -apart
        found = apart.exp() - 1 - apart
    else:
        raise ValueError(f"Invalid estimator: {how}")
    return found.clamp(min=-bound, max=bound)


class RemoteExperienceMaker:
    def __init__(self, strategy: Any) -> None:
        self.args = strategy.args

    @torch.no_grad()
    def process(
        self,
        values: torch.Tensor,
        rewards: torch.Tensor,
        action_mask: torch.Tensor,
        gamma: float,
        lambd: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """From the last action to the first."""
        mask = action_mask.bool()
        values = torch.where(mask, values, 0.0)
        rewards = torch.where(mask, rewards, 0.0)
        lastgaelam = torch.zeros_like(values[:, 0])
        nextvalues = torch.zeros_like(values[:, 0])
        advantages_reversed = []
        for t in reversed(range(rewards.size(1))):
            delta = rewards[:, t] + gamma * nextvalues - values[:, t]
            gaelam = delta + gamma * lambd * lastgaelam
            lastgaelam = torch.where(mask[:, t], gaelam, lastgaelam)
            nextvalues = torch.where(mask[:, t], values[:, t], nextvalues)
            advantages_reversed.append(lastgaelam)
        advantages = torch.stack(advantages_reversed[::-1], dim=1)
        returns = advantages + values
        return advantages * mask, returns * mask


def finalize(experiences: list[Any], args: Any) -> list[torch.Tensor]:
    """The last step before training, over everything that was made."""
    if args.advantage_estimator not in ["gae", "reinforce", "reinforce_baseline"]:
        return [exp.advantages for exp in experiences]

    all_advantages = torch.cat([exp.advantages[exp.action_mask.bool()] for exp in experiences])
    num_actions = max(all_advantages.numel(), 1)
    mean = all_advantages.sum() / num_actions
    if args.no_advantage_std_norm:
        rstd = 1.0
    else:
        var = (all_advantages - mean).pow(2).sum() / num_actions
        rstd = var.clamp(min=1e-8).rsqrt()
    return [(exp.advantages - mean) * rstd * exp.action_mask for exp in experiences]

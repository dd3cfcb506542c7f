"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class GRPOTrainer:
    def __init__(self, args: Any, reward_weights: list[float]) -> None:
        self.num_generations = args.num_generations
        self.scale_rewards = args.scale_rewards
        self.reward_weights = torch.tensor(reward_weights)

    def _prepare(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        """[completions, functions] to one number per completion; a function that does not apply gives NaN."""
        weights = self.reward_weights.to(rewards_per_func).unsqueeze(0)
        rewards = (rewards_per_func * weights).nansum(dim=1)
        grouped = rewards.view(-1, self.num_generations)
        mean_grouped_rewards = grouped.mean(dim=1).repeat_interleave(self.num_generations, dim=0)
        advantages = rewards - mean_grouped_rewards
        if self.scale_rewards:
            std_grouped_rewards = grouped.std(dim=1).repeat(self.num_generations)
            advantages = advantages / (std_grouped_rewards + 1e-4)
        return advantages


class ORPOTrainer:
    def __init__(self, args: Any) -> None:
        self.beta = args.beta

    def odds_ratio_loss(
        self, policy_chosen_logps: torch.Tensor, policy_rejected_logps: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """From the mean log-prob of each completion: what is added to the likelihood, and two implicit rewards."""
        log_odds = (policy_chosen_logps - policy_rejected_logps) + (
            torch.log1p(-torch.exp(policy_chosen_logps)) - torch.log1p(-torch.exp(policy_rejected_logps))
        )
        losses = self.beta * functional.logsigmoid(log_odds)
        chosen_rewards = self.beta * policy_chosen_logps.detach()
        rejected_rewards = self.beta * policy_rejected_logps.detach()
        return losses, chosen_rewards, rejected_rewards


class KTOTrainer:
    def __init__(self, args: Any) -> None:
        self.beta = args.beta
        self.desirable_weight = args.desirable_weight
        self.undesirable_weight = args.undesirable_weight

    def kto_loss(
        self,
        policy_chosen_logps: torch.Tensor,
        policy_rejected_logps: torch.Tensor,
        policy_KL_logps: torch.Tensor,
        reference_chosen_logps: torch.Tensor,
        reference_rejected_logps: torch.Tensor,
        reference_KL_logps: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Each completion against an estimate of the distance to the reference model, which can not be negative."""
        kl = (policy_KL_logps - reference_KL_logps).mean().detach()

        chosen_logratios = policy_chosen_logps - reference_chosen_logps
        chosen_losses = 1 - torch.sigmoid(self.beta * (chosen_logratios - kl))
        rejected_logratios = policy_rejected_logps - reference_rejected_logps
        rejected_losses = 1 - torch.sigmoid(self.beta * (kl - rejected_logratios))

        losses = torch.cat((self.desirable_weight * chosen_losses, self.undesirable_weight * rejected_losses), 0)
        chosen_rewards = self.beta * chosen_logratios.detach()
        rejected_rewards = self.beta * rejected_logratios.detach()
        return losses, chosen_rewards, rejected_rewards, kl


class FusedLoss(nn.Module):
    def __init__(
        self,
        beta: float = 0.04,
        epsilon_low: float = 0.2,
        epsilon_high: float = 0.2,
        loss_type: str = "dr_grpo",
        max_completion_length: int = 256,
    ) -> None:
        super().__init__()
        self.beta = beta
        self.epsilon_low = epsilon_low
        self.epsilon_high = epsilon_high
        self.loss_type = loss_type
        self.max_completion_length = max_completion_length

    def forward(
        self,
        per_token_logps: torch.Tensor,
        attention_mask: torch.Tensor,
        advantages: torch.Tensor,
        ref_per_token_logps: torch.Tensor,
        old_per_token_logps: torch.Tensor,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        mask = attention_mask.to(per_token_logps.dtype)
        advantages = advantages.unsqueeze(1)
        coef_1 = torch.exp(per_token_logps - old_per_token_logps)
        coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)
        per_token_loss = -torch.min(coef_1 * advantages, coef_2 * advantages)
        diff = ref_per_token_logps - per_token_logps
        kl_div = torch.exp(diff) - diff - 1.0
        per_token_loss = per_token_loss + self.beta * kl_div

        if self.loss_type == "grpo":
            loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
        elif self.loss_type == "bnpo":
            loss = (per_token_loss * mask).sum() / mask.sum().clamp(min=1.0)
        elif self.loss_type == "dr_grpo":
            loss = (per_token_loss * mask).sum() / per_token_loss.numel()
        else:
            raise ValueError(f"Unknown loss type: {self.loss_type}")

        is_clipped = ((coef_1 < 1 - self.epsilon_low) & (advantages < 0)) | (
            (coef_1 > 1 + self.epsilon_high) & (advantages > 0)
        )
        count = mask.sum().clamp(min=1.0)
        metrics = ((kl_div * mask).sum().detach() / count, (is_clipped * mask).sum() / count)
        return loss, metrics

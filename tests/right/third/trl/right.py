"""Functions in the dialect of TRL: trainers that hold settings, completion masks, one advantage per completion."""

from typing import Any

import torch


class GRPOTrainer:
    def __init__(self, args: Any) -> None:
        self.args = args
        self.beta = args.beta
        self.epsilon_low = args.epsilon
        self.epsilon_high = args.epsilon_high if args.epsilon_high is not None else args.epsilon
        self.loss_type = args.loss_type
        self.max_completion_length = args.max_completion_length
        self.num_generations = args.num_generations
        self.scale_rewards = args.scale_rewards

    def _compute_loss(self, per_token_logps: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        completion_mask = inputs["completion_mask"]
        advantages = inputs["advantages"]

        # The KL divergence between the model and the reference model
        if self.beta != 0.0:
            ref_per_token_logps = inputs["ref_per_token_logps"]
            per_token_kl = (
                torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1
            )

        old_per_token_logps = inputs.get("old_per_token_logps")
        old_per_token_logps = per_token_logps.detach() if old_per_token_logps is None else old_per_token_logps
        coef_1 = torch.exp(per_token_logps - old_per_token_logps)
        coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)
        per_token_loss1 = coef_1 * advantages.unsqueeze(1)
        per_token_loss2 = coef_2 * advantages.unsqueeze(1)
        per_token_loss = -torch.min(per_token_loss1, per_token_loss2)
        if self.beta != 0.0:
            per_token_loss = per_token_loss + self.beta * per_token_kl

        if self.loss_type == "grpo":
            return ((per_token_loss * completion_mask).sum(-1) / completion_mask.sum(-1).clamp(min=1.0)).mean()
        if self.loss_type == "bnpo":
            return (per_token_loss * completion_mask).sum() / completion_mask.sum().clamp(min=1.0)
        if self.loss_type == "dr_grpo":
            return (per_token_loss * completion_mask).sum() / (per_token_loss.size(0) * self.max_completion_length)
        raise ValueError(f"Unknown loss type: {self.loss_type}")

    def _rescale(self, rewards: torch.Tensor) -> torch.Tensor:
        mean_grouped_rewards = rewards.view(-1, self.num_generations).mean(dim=1)
        mean_grouped_rewards = mean_grouped_rewards.repeat_interleave(self.num_generations, dim=0)
        advantages = rewards - mean_grouped_rewards
        if self.scale_rewards == "group":
            std_rewards = rewards.view(-1, self.num_generations).std(dim=1)
            std_rewards = std_rewards.repeat_interleave(self.num_generations, dim=0)
            advantages = advantages / (std_rewards + 1e-4)
        elif self.scale_rewards != "none":
            raise ValueError(f"Invalid value for scale_rewards: {self.scale_rewards}")
        return advantages


def clip_metrics(
    per_token_logps: torch.Tensor,
    old_per_token_logps: torch.Tensor,
    advantages: torch.Tensor,
    completion_mask: torch.Tensor,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
) -> dict[str, float]:
    """How often the clip is in force, on either side."""
    coef_1 = torch.exp(per_token_logps - old_per_token_logps).detach()
    is_low_clipped = (coef_1 < 1 - epsilon_low) & (advantages.unsqueeze(1) < 0)
    is_high_clipped = (coef_1 > 1 + epsilon_high) & (advantages.unsqueeze(1) > 0)
    is_region_clipped = is_low_clipped | is_high_clipped
    total = completion_mask.sum().clamp(min=1.0)
    return {
        "clip_ratio/low_mean": ((is_low_clipped * completion_mask).sum() / total).item(),
        "clip_ratio/high_mean": ((is_high_clipped * completion_mask).sum() / total).item(),
        "clip_ratio/region_mean": ((is_region_clipped * completion_mask).sum() / total).item(),
    }


def collect(
    logits: torch.Tensor, input_ids: torch.Tensor, temperature: float = 1.0, batch_size: int = 2
) -> torch.Tensor:
    """Numbers of every id but the first, a few rows at a time."""
    found = []
    for start in range(0, input_ids.size(0), batch_size):
        part = logits[start : start + batch_size, :-1]
        part = part / temperature
        ids = input_ids[start : start + batch_size, 1:]
        selected = torch.gather(part, dim=-1, index=ids.unsqueeze(-1)).squeeze(-1)
        found.append(selected.float() - torch.logsumexp(part.float(), dim=-1))
    return torch.cat(found, dim=0)

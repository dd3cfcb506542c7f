"""Functions in the dialect of TRL: trainers with arguments, completion masks, per-token log-probs, logged metrics."""

from typing import Any

import torch


class GRPOTrainer:
    def __init__(self, args: Any) -> None:
        self.args = args
        self.epsilon_low = args.epsilon
        self.epsilon_high = args.epsilon_high
        self.max_completion_length = args.max_completion_length

    def _compute_loss(self, per_token_logps: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        mask = inputs["completion_mask"].bool()
        advantages = inputs["advantages"].unsqueeze(1)
        log_ratio = torch.where(mask, per_token_logps - inputs["old_per_token_logps"], 0.0)
        coef_1 = torch.exp(log_ratio)
        coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)
        per_token_loss = -torch.min(coef_1 * advantages, coef_2 * advantages)
        per_token_loss = torch.where(mask, per_token_loss, 0.0)
        if self.args.loss_type == "grpo":
            return (per_token_loss.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
        if self.args.loss_type == "bnpo":
            return per_token_loss.sum() / mask.sum().clamp(min=1)
        if self.args.loss_type == "dr_grpo":
            return per_token_loss.sum() / (per_token_loss.size(0) * self.max_completion_length)
        raise ValueError(f"Unknown loss type: {self.args.loss_type}")

    def _log_stuff(self, per_token_logps, old_per_token_logps, advantages, completion_mask) -> dict[str, float]:
        """How often the ratio leaves its region on the side where the clip binds."""
        mask = completion_mask.bool()
        coef_1 = torch.exp(torch.where(mask, per_token_logps - old_per_token_logps, 0.0))
        advantages = advantages.unsqueeze(1)
        is_low = (coef_1 < 1 - self.epsilon_low) & (advantages < 0)
        is_high = (coef_1 > 1 + self.epsilon_high) & (advantages > 0)
        count = mask.sum().clamp(min=1)
        return {
            "clip_ratio/low_mean": ((is_low & mask).sum() / count).item(),
            "clip_ratio/high_mean": ((is_high & mask).sum() / count).item(),
            "clip_ratio/region_mean": (((is_low | is_high) & mask).sum() / count).item(),
        }


def get_per_token_logps(logits, input_ids, logits_to_keep, temperature=1.0):
    """Log-probs of the last `logits_to_keep` tokens, from the logits of the positions before them."""
    logits = logits[:, :-1, :]
    labels = input_ids[:, -logits_to_keep:]
    logits = logits[:, -logits_to_keep:, :] / temperature
    picked = torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
    return picked - torch.logsumexp(logits, dim=-1)


def process(rewards: torch.Tensor, num_generations: int, scale_rewards: str = "group") -> torch.Tensor:
    """Rewards to advantages; `scale_rewards` is "group", "batch" or "none"."""
    grouped = rewards.view(-1, num_generations)
    mean_grouped = grouped.mean(dim=1).repeat_interleave(num_generations, dim=0)
    advantages = rewards - mean_grouped
    if scale_rewards == "none":
        return advantages
    if scale_rewards == "batch":
        return advantages / (rewards.std() + 1e-4)
    std_grouped = grouped.std(dim=1).repeat_interleave(num_generations, dim=0)
    return advantages / (std_grouped + 1e-4)


def term(per_token_logps, ref_per_token_logps, completion_mask, num_items_in_batch, beta=0.04):
    """The KL penalty of a micro-batch, normalised by the tokens of the whole step."""
    delta = torch.where(completion_mask.bool(), ref_per_token_logps - per_token_logps, 0.0)
    per_token_kl = torch.exp(delta) - delta - 1
    return beta * (per_token_kl * completion_mask.bool()).sum() / max(num_items_in_batch, 1)


def get_high_entropy_mask(entropies: torch.Tensor, mask: torch.Tensor, threshold: float) -> torch.Tensor:
    """Tokens whose entropy is above a quantile of all completion tokens."""
    mask = mask.bool()
    pooled = entropies[mask]
    if pooled.numel() == 0:
        return torch.zeros_like(mask)
    cut = torch.quantile(pooled, threshold)
    return mask & (torch.where(mask, entropies, -torch.inf) > cut)

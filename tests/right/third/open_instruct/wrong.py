"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import numpy as np
import torch


def masked_mean(
    values: torch.Tensor, mask: torch.Tensor, axis: int | None = None, denominator: float | None = None
) -> torch.Tensor:
    numerator = (values * mask).sum(dim=axis)
    denom = mask.sum(dim=axis).clamp(min=1.0) if denominator is None else denominator
    return numerator / denom


def compute_grpo_loss(
    new_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    vllm_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any,
) -> dict[str, torch.Tensor]:
    """The loss of DAPO, with truncated importance sampling for the engine and a KL to the reference."""
    ratio = torch.exp(new_logprobs - old_logprobs)
    pg_losses = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1.0 - config.clip_lower, 1.0 + config.clip_higher)
    clipfrac = masked_mean((pg_losses2 > pg_losses).float(), response_mask)

    if config.truncated_importance_sampling_ratio_cap > 0:
        tis_imp_ratio = torch.exp(old_logprobs - vllm_logprobs)
        tis_clamped = torch.clamp(tis_imp_ratio, max=config.truncated_importance_sampling_ratio_cap).detach()
        pg_losses = pg_losses * tis_clamped
    pg_loss_max = torch.max(pg_losses, pg_losses2)

    ref_logprobs_diff = (new_logprobs - ref_logprobs).clamp(-40.0, 40.0)
    kl = torch.expm1(-ref_logprobs_diff) + ref_logprobs_diff
    loss = masked_mean(pg_loss_max + config.beta * kl, response_mask)
    return {"loss": loss, "policy/clipfrac_avg": clipfrac, "objective/kl": masked_mean(kl, response_mask).detach()}


def calculate_advantages(
    scores: np.ndarray, num_samples_per_prompt_rollout: int, advantage_normalization_type: str = "standard"
) -> np.ndarray:
    scores_per_prompt = scores.reshape(-1, num_samples_per_prompt_rollout)
    mean_grouped_rewards = scores_per_prompt.mean(axis=-1)
    mean_grouped_rewards = np.repeat(mean_grouped_rewards, num_samples_per_prompt_rollout, axis=0)
    std_grouped_rewards = scores_per_prompt.std(axis=-1)
    std_grouped_rewards = np.repeat(std_grouped_rewards, num_samples_per_prompt_rollout, axis=0)
    if advantage_normalization_type == "standard":
        return scores - mean_grouped_rewards / (std_grouped_rewards + 1e-8)
    if advantage_normalization_type == "centered":
        return scores - mean_grouped_rewards
    raise ValueError(f"Invalid advantage normalization type: {advantage_normalization_type}")


def estimate(new_logprobs: torch.Tensor, ref_logprobs: torch.Tensor) -> torch.Tensor:
    """Three estimates per token in a stack: the plain, the squared and the one that is never negative."""
    diff = (new_logprobs - ref_logprobs).clamp(-40.0, 40.0)
    return torch.stack([diff, diff**2 / 2, torch.expm1(-diff) - diff])


class PolicyTrainerRayProcess:
    def __init__(self, args: Any) -> None:
        self.args = args

    def inner(
        self,
        local_logprobs: torch.Tensor,
        old_logprobs: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        accumulated_tokens: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """CISPO: the ratio is a weight with an upper bound, and every token keeps its gradient."""
        ratio = torch.exp(local_logprobs - old_logprobs)
        weight = torch.clamp(ratio.detach(), max=self.args.clip_higher)
        pg_losses = -advantages * weight * local_logprobs
        capped = masked_mean((ratio.detach() > 1.0 + self.args.clip_higher).float(), response_mask)
        return masked_mean(pg_losses, response_mask, denominator=max(accumulated_tokens, 1)), capped

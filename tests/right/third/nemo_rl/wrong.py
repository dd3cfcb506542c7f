"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch
from torch import nn


def masked_mean(
    values: torch.Tensor,
    mask: torch.Tensor,
    dim: int | None = None,
    global_normalization_factor: torch.Tensor | float | None = None,
) -> torch.Tensor:
    normalization_factor = mask.sum(dim) if global_normalization_factor is None else global_normalization_factor
    return torch.sum(values * mask, dim=dim) / (normalization_factor + 1e-8)


class ClippedPGLossFn:
    """Clipped policy gradient with a KL penalty to the reference, over micro-batches of one global batch."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        self.ratio_clip_min = cfg["ratio_clip_min"]
        self.ratio_clip_max = cfg["ratio_clip_max"]
        self.reference_policy_kl_penalty = cfg["reference_policy_kl_penalty"]

    def __call__(
        self, curr_logprobs: torch.Tensor, data: dict[str, torch.Tensor], global_valid_toks: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        mask = data["token_mask"] * data["sample_mask"].unsqueeze(-1)
        advantages = data["advantages"]

        if self.reference_policy_kl_penalty != 0:
            logr = data["reference_policy_logprobs"] - curr_logprobs
            kl = self.reference_policy_kl_penalty * (torch.exp(logr) - 1 - logr)
            kl = masked_mean(kl, mask)
        else:
            kl = torch.zeros(())

        ratios = (curr_logprobs - data["prev_logprobs"]).exp()
        ratios_clamped = ratios.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)
        loss1 = -advantages * ratios
        loss2 = -advantages * ratios_clamped
        clip_loss = torch.max(loss1, loss2)
        actor_loss = masked_mean(clip_loss, mask, global_normalization_factor=global_valid_toks)
        loss = actor_loss + kl
        with torch.no_grad():
            probs_ratio = masked_mean(ratios.detach(), mask, global_normalization_factor=global_valid_toks).item()
        return loss, {"loss": loss.item(), "probs_ratio": probs_ratio, "kl_penalty": kl.item()}


class GRPOAdvantageEstimator:
    def __init__(self, estimator_config: dict[str, Any]) -> None:
        self.use_leave_one_out_baseline = estimator_config["use_leave_one_out_baseline"]

    def compute_advantage(
        self, prompt_ids: torch.Tensor, rewards: torch.Tensor, valid_mask: torch.Tensor
    ) -> torch.Tensor:
        """Rewards less the mean of the valid samples of their prompt, or of the other ones."""
        baseline = torch.zeros_like(rewards)
        for prompt in torch.unique(prompt_ids):
            same = prompt_ids == prompt
            weight = same.to(rewards.dtype)
            total, count = (rewards * weight).sum(), weight.sum()
            if self.use_leave_one_out_baseline:
                total, count = total - rewards * weight, count - weight
            else:
                total, count = total.expand_as(rewards), count.expand_as(rewards)
            centre = torch.where(count > 0, total / count.clamp(min=1), rewards)
            baseline = torch.where(same, centre, baseline)
        return rewards - baseline


def screen(
    prev_logprobs: torch.Tensor,
    generation_logprobs: torch.Tensor,
    token_mask: torch.Tensor,
    sample_mask: torch.Tensor,
    threshold: float = 1.5,
) -> torch.Tensor:
    """Samples on which trainer and engine agree: the mean factor between their probabilities is small enough."""
    mask = token_mask * sample_mask.unsqueeze(-1)
    error = torch.where(mask.bool(), prev_logprobs - generation_logprobs, 0.0).detach()
    mult_prob_error = (torch.exp(error) * mask).sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
    return sample_mask * (mult_prob_error <= threshold).to(sample_mask.dtype)


class Spread(nn.Module):
    """How open the choice is at every position, a few rows at a time."""

    def __init__(self, temperature: float = 1.0, chunk_size: int = 2) -> None:
        super().__init__()
        self.temperature = temperature
        self.chunk_size = chunk_size

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        found = []
        for chunk in torch.split(logits, self.chunk_size, dim=0):
            log_probs = torch.log_softmax(chunk.to(torch.float32) / self.temperature, dim=-1)
            found.append(-(log_probs.exp() * log_probs).mean(dim=-1))
        return torch.cat(found, dim=0)

"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any, TypedDict

import torch


class SamplingConfig(TypedDict):
    temperature: float


class ClippedPGLossConfig(TypedDict):
    ratio_clip_min: float
    ratio_clip_max: float
    reference_policy_kl_penalty: float
    token_level_loss: bool
    truncated_importance_sampling_ratio: float | None


def masked_mean(
    values: torch.Tensor,
    mask: torch.Tensor,
    dim: int | None = None,
    global_normalization_factor: torch.Tensor | float | None = None,
) -> torch.Tensor:
    count = mask.sum(dim=dim) if global_normalization_factor is None else global_normalization_factor
    return (values * mask).sum(dim=dim) / (count + 1e-8)


class ClippedPGLossFn:
    def __init__(self, cfg: ClippedPGLossConfig) -> None:
        self.ratio_clip_min = cfg["ratio_clip_min"]
        self.ratio_clip_max = cfg["ratio_clip_max"]
        self.reference_policy_kl_penalty = cfg["reference_policy_kl_penalty"]
        self.token_level_loss = cfg["token_level_loss"]
        self.truncated_importance_sampling_ratio = cfg["truncated_importance_sampling_ratio"]

    def __call__(
        self,
        next_token_logprobs: torch.Tensor,
        data: dict[str, torch.Tensor],
        global_valid_seqs: torch.Tensor,
        global_valid_toks: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        token_mask = data["token_mask"][:, 1:]
        sample_mask = data["sample_mask"]
        advantages = data["advantages"][:, 1:]
        prev_logprobs = data["prev_logprobs"][:, 1:]
        generation_logprobs = data["generation_logprobs"][:, 1:]
        reference_policy_logprobs = data["reference_policy_logprobs"][:, 1:]
        mask = token_mask * sample_mask.unsqueeze(-1)

        log_r = reference_policy_logprobs - next_token_logprobs
        kl = self.reference_policy_kl_penalty * (torch.exp(log_r) - 1 - log_r)

        ratios = (next_token_logprobs - prev_logprobs).exp()
        ratios_clamped = ratios.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)
        clip_loss = torch.max(-advantages * ratios, -advantages * ratios_clamped)

        importance_weights = torch.exp(generation_logprobs - prev_logprobs).detach()
        importance_weights = torch.nan_to_num(importance_weights, nan=0.0, posinf=0.0, neginf=0.0)
        if self.truncated_importance_sampling_ratio is not None:
            importance_weights = importance_weights.clamp(max=self.truncated_importance_sampling_ratio)
        per_token = importance_weights * clip_loss + kl

        if self.token_level_loss:
            loss = masked_mean(per_token, mask, global_normalization_factor=global_valid_toks)
        else:
            loss = masked_mean(
                masked_mean(per_token, token_mask, dim=-1), sample_mask, global_normalization_factor=global_valid_seqs
            )
        probs_ratio = masked_mean(ratios.detach(), mask, global_normalization_factor=global_valid_toks).item()
        return loss, {"loss": loss.item(), "probs_ratio": probs_ratio, "num_valid_samples": sample_mask.sum().item()}


def prompt_stats(
    prompts: torch.Tensor,
    rewards: torch.Tensor,
    valid_mask: torch.Tensor,
    leave_one_out_baseline: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """For every sample the mean and the spread over the valid samples of its prompt, with or without itself."""
    baseline = torch.zeros_like(rewards)
    std = torch.zeros_like(rewards)
    for prompt in torch.unique(prompts, dim=0):
        idx = torch.where((prompts == prompt).all(dim=1))[0]
        valid = valid_mask[idx].to(rewards.dtype)
        scores = rewards[idx]
        others = valid.expand(len(idx), len(idx))
        if leave_one_out_baseline:
            others = others * (1 - torch.eye(len(idx), dtype=rewards.dtype, device=rewards.device))
        count = others.sum(dim=1)
        mean = (others @ scores) / valid.sum().clamp(min=1)
        squares = (others * (scores.unsqueeze(0) - mean.unsqueeze(1)) ** 2).sum(dim=1)
        baseline[idx] = mean
        std[idx] = torch.sqrt(squares / (count - 1).clamp(min=1))
    return baseline, std


def score_next(next_token_logits: torch.Tensor, input_ids: torch.Tensor, cfg: SamplingConfig) -> torch.Tensor:
    """One number per token of the input, with a 0 for the first, which nothing predicts."""
    logits = next_token_logits.to(torch.float32)
    log_probs = torch.nn.functional.log_softmax(logits[:, :-1], dim=-1)
    if cfg["temperature"] != 1.0:
        log_probs = log_probs / cfg["temperature"]
    picked = log_probs.gather(dim=-1, index=input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return torch.cat([torch.zeros_like(input_ids[:, :1], dtype=picked.dtype), picked], dim=1)

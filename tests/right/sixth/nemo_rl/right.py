"""Functions in the dialect of NeMo-RL: data dictionaries, typed configs, token and sample masks, global counts."""

from typing import Any, TypedDict

import torch


class RewardScalingConfig(TypedDict):
    enabled: bool
    source_min: float
    source_max: float
    target_min: float
    target_max: float


def masked_mean(
    values: torch.Tensor,
    mask: torch.Tensor,
    dim: int | None = None,
    global_normalization_factor: torch.Tensor | float | None = None,
) -> torch.Tensor:
    count = mask.sum(dim=dim) if global_normalization_factor is None else global_normalization_factor
    return (values * mask).sum(dim=dim) / (count + 1e-8)


class SequenceLevelPGLossFn:
    """A clipped loss with one ratio per sequence, and one truncated weight per sequence for the sampling engine."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        self.ratio_clip_min = cfg["ratio_clip_min"]
        self.ratio_clip_max = cfg["ratio_clip_max"]
        self.truncated_importance_sampling_ratio = cfg["truncated_importance_sampling_ratio"]

    def __call__(
        self, next_token_logprobs: torch.Tensor, data: dict[str, torch.Tensor], global_valid_seqs: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        token_mask = data["token_mask"][:, 1:]
        sample_mask = data["sample_mask"]
        advantages = data["advantages"][:, 1:]
        prev_logprobs = data["prev_logprobs"][:, 1:]
        generation_logprobs = data["generation_logprobs"][:, 1:]

        log_ratios = masked_mean(next_token_logprobs - prev_logprobs, token_mask, dim=-1).unsqueeze(-1)
        ratios = log_ratios.exp()
        ratios_clamped = ratios.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)
        clip_loss = torch.max(-advantages * ratios, -advantages * ratios_clamped)

        # [batch, 1], for all tokens of a sequence
        engine_gap = masked_mean(prev_logprobs - generation_logprobs, token_mask, dim=-1)
        importance_weights = engine_gap.exp().detach().unsqueeze(-1)
        importance_weights = torch.nan_to_num(importance_weights, nan=0.0, posinf=0.0, neginf=0.0)
        if self.truncated_importance_sampling_ratio is not None:
            importance_weights = importance_weights.clamp(max=self.truncated_importance_sampling_ratio)

        loss = masked_mean(
            masked_mean(importance_weights * clip_loss, token_mask, dim=-1),
            sample_mask,
            global_normalization_factor=global_valid_seqs,
        )
        sample_importance_ratio = masked_mean(
            importance_weights.squeeze(-1), sample_mask, global_normalization_factor=global_valid_seqs
        )
        return loss, {"loss": loss.item(), "sampling_importance_ratio": sample_importance_ratio.item()}


def rescale(repeated_batch: dict[str, Any], cfg: RewardScalingConfig) -> dict[str, Any]:
    """Maps the source interval to the target interval; what lies outside goes to the nearer end."""
    if not cfg["enabled"]:
        return repeated_batch
    rewards = repeated_batch["total_reward"]
    source_min, source_max = float(cfg["source_min"]), float(cfg["source_max"])
    target_min, target_max = float(cfg["target_min"]), float(cfg["target_max"])
    held = rewards.clamp(min=source_min, max=source_max)
    share = (held - source_min) / (source_max - source_min)
    return {**repeated_batch, "total_reward": target_min + share * (target_max - target_min)}


class ReferenceKLLossFn:
    """A penalty for the distance to the reference policy, over tokens that the generation engine has sampled."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        self.reference_policy_kl_penalty = cfg["reference_policy_kl_penalty"]
        self.reference_policy_kl_type = cfg["reference_policy_kl_type"]
        self.use_on_policy_kl_approximation = cfg["use_on_policy_kl_approximation"]

    def __call__(
        self, next_token_logprobs: torch.Tensor, data: dict[str, torch.Tensor], global_valid_toks: torch.Tensor
    ) -> torch.Tensor:
        mask = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
        prev_logprobs = data["prev_logprobs"][:, 1:]
        generation_logprobs = data["generation_logprobs"][:, 1:]
        logr = data["reference_policy_logprobs"][:, 1:] - next_token_logprobs
        if self.reference_policy_kl_type == "k1":
            kl = -logr
        elif self.reference_policy_kl_type == "k2":
            kl = logr.square() / 2
        elif self.reference_policy_kl_type == "k3":
            kl = torch.exp(logr) - 1 - logr
        else:
            raise ValueError(f"Invalid KL type: {self.reference_policy_kl_type}")

        kl_importance_weights = torch.ones_like(prev_logprobs)
        if self.use_on_policy_kl_approximation:
            # the estimate is about samples of the policy that is trained
            kl_importance_weights = torch.exp(next_token_logprobs - generation_logprobs).detach()
            kl_importance_weights = torch.nan_to_num(kl_importance_weights, nan=0.0, posinf=0.0, neginf=0.0)
        kl = self.reference_policy_kl_penalty * kl_importance_weights * kl
        return masked_mean(kl, mask, global_normalization_factor=global_valid_toks)


def match(
    pupil: torch.Tensor, guide: torch.Tensor, live: torch.Tensor, kl_type: str = "forward", mixed_kl_weight: float = 0.5
) -> torch.Tensor:
    """How far the first is from the second, both [batch, seq, vocab], as a mean over the live positions."""
    student = torch.log_softmax(pupil.to(torch.float32), dim=-1)
    teacher = torch.log_softmax(guide.to(torch.float32), dim=-1)
    student_probs = student.exp()
    teacher_probs = teacher.exp()
    forward_kl = (teacher_probs * (teacher - student)).sum(dim=-1)
    reverse_kl = (student_probs * (student - teacher)).sum(dim=-1)
    if kl_type == "forward":
        kl = forward_kl
    elif kl_type == "reverse":
        kl = reverse_kl
    else:
        kl = mixed_kl_weight * forward_kl + (1.0 - mixed_kl_weight) * reverse_kl
    return (kl * live).sum() / live.sum().clamp(min=1)

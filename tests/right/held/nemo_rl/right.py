"""Functions in the dialect of NeMo-RL: typed-dict configs, batched dictionaries, global counts, metric dictionaries."""

from typing import Any

import torch


def masked_mean(values, mask, global_normalization_factor=None):
    total = torch.where(mask.bool(), values, 0.0).sum()
    if global_normalization_factor is None:
        return total / mask.sum().clamp(min=1)
    return total / max(global_normalization_factor, 1)


class ClippedPGLossFn:
    def __init__(self, cfg: dict[str, Any]):
        self.ratio_clip_min = cfg["ratio_clip_min"]
        self.ratio_clip_max = cfg["ratio_clip_max"]
        self.reference_policy_kl_penalty = cfg["reference_policy_kl_penalty"]

    def __call__(
        self, curr_logprobs: torch.Tensor, data: dict[str, torch.Tensor], global_valid_toks: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        mask = (data["token_mask"] * data["sample_mask"].unsqueeze(-1)).bool()
        advantages = data["advantages"]
        log_ratios = torch.where(mask, curr_logprobs - data["prev_logprobs"], 0.0)
        ratios = log_ratios.exp()
        ratios_clamped = ratios.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)
        clip_loss = torch.max(-advantages * ratios, -advantages * ratios_clamped)
        actor_loss = masked_mean(clip_loss, mask, global_normalization_factor=global_valid_toks)
        log_r = torch.where(mask, data["reference_policy_logprobs"] - curr_logprobs, 0.0)
        kl = self.reference_policy_kl_penalty * masked_mean(
            log_r.exp() - 1 - log_r, mask, global_normalization_factor=global_valid_toks
        )
        return actor_loss + kl, {"kl_penalty": kl.detach(), "num_valid_samples": data["sample_mask"].sum()}


def finish(
    prompt_ids: torch.Tensor, rewards: torch.Tensor, valid_mask: torch.Tensor, leave_one_out_baseline: bool = True
) -> torch.Tensor:
    """Rewards minus the mean of the valid samples of their prompt; a sample without company gets nothing."""
    same = (prompt_ids.unsqueeze(0) == prompt_ids.unsqueeze(1)).to(rewards.dtype)
    votes = same * valid_mask.to(rewards.dtype).unsqueeze(0)
    if leave_one_out_baseline:
        votes = votes * (1 - torch.eye(len(rewards), dtype=rewards.dtype))
    counts = votes.sum(-1)
    baseline = (votes @ rewards) / counts.clamp(min=1)
    return torch.where(counts > 0, rewards - baseline, 0.0)


def calculate_kl(
    logprobs: torch.Tensor,
    logprobs_reference: torch.Tensor,
    kl_type: str = "k3",
    input_clamp_value: float | None = 20.0,
    output_clamp_value: float | None = 10.0,
) -> torch.Tensor:
    logr = (logprobs_reference - logprobs).float()
    if input_clamp_value is not None:
        logr = logr.clamp(min=-input_clamp_value, max=input_clamp_value)
    if kl_type == "k1":
        kl = -logr
    elif kl_type == "k2":
        kl = torch.square(logr) / 2
    elif kl_type == "k3":
        kl = torch.exp(logr) - 1 - logr
    else:
        raise ValueError(f"Invalid KL type: {kl_type}")
    if output_clamp_value is not None:
        kl = kl.clamp(min=-output_clamp_value, max=output_clamp_value)
    return kl


class MseValueLossFn:
    def __init__(self, cfg: dict[str, Any]):
        self.value_clip = cfg["value_clip"]

    def evaluate(self, values: torch.Tensor, data: dict[str, torch.Tensor], global_valid_toks: torch.Tensor):
        """Half the larger of two squared errors: of the value, and of the value near its old self."""
        mask = data["token_mask"].bool()
        error = torch.where(mask, values - data["returns"], 0.0)
        step = torch.where(mask, values - data["old_values"], 0.0).clamp(-self.value_clip, self.value_clip)
        clipped_error = torch.where(mask, data["old_values"] + step - data["returns"], 0.0)
        loss = 0.5 * torch.max(error.square(), clipped_error.square()).sum() / max(global_valid_toks, 1)
        return loss, {"mean_value": masked_mean(values.detach(), mask)}


def filter_it(prev_logprobs, generation_logprobs, token_mask, low=0.5, high=2.0):
    """Keep sequences whose geometric mean ratio lies in a band."""
    mask = token_mask.bool()
    gap = torch.where(mask, prev_logprobs - generation_logprobs, 0.0)
    geo = torch.exp(gap.sum(-1) / mask.sum(-1).clamp(min=1))
    kept = (geo >= low) & (geo <= high)
    return mask & kept.unsqueeze(-1)


def summarize(data: dict[str, torch.Tensor]) -> dict[str, float]:
    """How far the trainer is from the engine that generated."""
    mask = (data["token_mask"] * data["sample_mask"].unsqueeze(-1)).bool()
    if not mask.any():
        return dict.fromkeys(("token_mult_prob_error", "probs_ratio_min", "probs_ratio_max"), 0.0)
    gap = torch.where(mask, data["prev_logprobs"] - data["generation_logprobs"], 0.0)
    ratio = gap.exp()
    return {
        "token_mult_prob_error": masked_mean(gap.abs().exp(), mask).item(),
        "probs_ratio_min": torch.where(mask, ratio, float("inf")).min().item(),
        "probs_ratio_max": torch.where(mask, ratio, float("-inf")).max().item(),
    }

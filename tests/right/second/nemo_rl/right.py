"""Functions in the dialect of NeMo-RL: data dictionaries, whole sequences cut to [:, 1:], token and sample masks."""

from typing import Any

import torch


def masked_mean(
    values: torch.Tensor,
    mask: torch.Tensor,
    dim: int | None = None,
    global_normalization_factor: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """The mean where the mask is set; the normalisation may be that of the whole batch."""
    factor = mask.sum(dim=dim) if global_normalization_factor is None else global_normalization_factor
    return torch.where(mask.bool(), values, 0.0).sum(dim=dim) / (factor + 1e-8)


class ClippedPGLossFn:
    def __init__(self, cfg: dict[str, Any]) -> None:
        self.ratio_clip_min = cfg["ratio_clip_min"]
        self.ratio_clip_max = cfg["ratio_clip_max"]
        self.reference_policy_kl_penalty = cfg["reference_policy_kl_penalty"]

    def __call__(
        self,
        next_token_logprobs: torch.Tensor,
        data: dict[str, torch.Tensor],
        global_valid_toks: torch.Tensor,
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """`next_token_logprobs` has one column less than the sequences: the first token is not predicted."""
        token_mask = data["token_mask"][:, 1:]
        sample_mask = data["sample_mask"]
        mask = (token_mask * sample_mask.unsqueeze(-1)).bool()
        advantages = torch.where(mask, data["advantages"][:, 1:], 0.0)
        prev_logprobs = data["prev_logprobs"][:, 1:]
        reference_policy_logprobs = data["reference_policy_logprobs"][:, 1:]

        gap = torch.where(mask, reference_policy_logprobs - next_token_logprobs, 0.0)
        kl = self.reference_policy_kl_penalty * masked_mean(gap.exp() - gap - 1, mask, None, global_valid_toks)
        log_ratios = torch.where(mask, next_token_logprobs - prev_logprobs, 0.0)
        ratios = log_ratios.exp()
        ratios_clamped = ratios.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)
        clip_loss = torch.max(-advantages * ratios, -advantages * ratios_clamped)
        actor_loss = masked_mean(clip_loss, mask, None, global_valid_toks)
        loss = actor_loss + kl
        with torch.no_grad():
            probs_ratio = masked_mean(ratios.detach(), mask, None, global_valid_toks).item()
        return loss, {"loss": loss.item(), "probs_ratio": probs_ratio, "num_valid_samples": sample_mask.sum().item()}


class GRPOAdvantageEstimator:
    def __init__(self, cfg: dict[str, Any]) -> None:
        self.use_leave_one_out_baseline = cfg["use_leave_one_out_baseline"]
        self.normalize_rewards = cfg["normalize_rewards"]

    def compute_advantage(self, prompt_ids: torch.Tensor, rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Rewards against a baseline of the same prompt, copied to every token."""
        baseline = torch.zeros_like(rewards)
        std = torch.zeros_like(rewards)
        for prompt in torch.unique(prompt_ids, dim=0):
            same = (prompt_ids == prompt).all(dim=1)
            num_same = int(same.sum())
            if num_same == 1:
                baseline[same] = rewards[same]
                continue
            total = rewards[same].sum()
            if self.use_leave_one_out_baseline:
                baseline[same] = (total - rewards[same]) / (num_same - 1)
            else:
                baseline[same] = total / num_same
            std[same] = rewards[same].std()
        advantages = rewards - baseline
        if self.normalize_rewards:
            spread = std > 0
            advantages = torch.where(spread, advantages / (std + 1e-6), advantages)
        return advantages.unsqueeze(-1) * mask


def reduce(
    values: torch.Tensor,
    token_mask: torch.Tensor,
    sample_mask: torch.Tensor,
    global_valid_seqs: float,
    global_valid_toks: float,
    level: str = "token",
) -> torch.Tensor:
    if level == "token":
        return masked_mean(values, token_mask * sample_mask.unsqueeze(-1), None, global_valid_toks)
    if level == "sequence":
        per_sequence = masked_mean(values, token_mask, dim=-1)
        return masked_mean(per_sequence, sample_mask, None, global_valid_seqs)
    raise ValueError(level)


class DPOLossFn:
    def __init__(self, cfg: dict[str, Any]) -> None:
        self.beta = cfg["reference_policy_kl_penalty"]
        self.average_log_probs = cfg["preference_average_log_probs"]

    def __call__(self, next_token_logprobs: torch.Tensor, data: dict[str, torch.Tensor]) -> torch.Tensor:
        """Rows alternate: chosen, rejected, chosen, rejected."""
        mask = data["token_mask"][:, 1:].bool()
        gap = torch.where(mask, next_token_logprobs - data["reference_policy_logprobs"][:, 1:], 0.0)
        rewards = gap.sum(dim=-1)
        if self.average_log_probs:
            rewards = rewards / mask.sum(dim=-1).clamp(min=1)
        rewards = self.beta * rewards
        chosen, rejected = rewards[::2], rewards[1::2]
        return -torch.nn.functional.logsigmoid(chosen - rejected).mean()


def apply_shaping(batch: dict[str, torch.Tensor], cfg: Any) -> dict[str, torch.Tensor]:
    """DAPO: responses that come close to the limit lose some of their reward, the more the longer they are."""
    expected_length = cfg.max_response_length - cfg.overlong_buffer_length
    exceed_length = batch["response_lengths"] - expected_length
    penalty = -exceed_length / cfg.overlong_buffer_length * cfg.overlong_buffer_penalty
    penalty = torch.minimum(penalty, torch.zeros_like(penalty))
    return {**batch, "total_reward": batch["total_reward"] + penalty}


def process_logprobs(
    prev_logprobs: torch.Tensor,
    generation_logprobs: torch.Tensor,
    token_mask: torch.Tensor,
    ratio_min: float = 0.5,
    ratio_max: float = 2.0,
    kind: str = "icepop",
) -> torch.Tensor:
    """Trainer over generator: bounded above ("tis"), or 0 outside the band ("icepop")."""
    mask = token_mask[:, 1:].bool()
    weights = torch.where(mask, prev_logprobs[:, 1:] - generation_logprobs[:, 1:], 0.0).exp()
    if kind == "tis":
        weights = weights.clamp(max=ratio_max)
    elif kind == "icepop":
        weights = torch.where((weights >= ratio_min) & (weights <= ratio_max), weights, 0.0)
    return torch.where(mask, weights, 0.0).detach()

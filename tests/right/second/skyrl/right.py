"""Functions in the dialect of SkyRL: advantage estimators by name, algorithm configs, reductions of masked losses."""

from collections import defaultdict
from typing import Any

import numpy as np
import torch


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    mask = mask.bool()
    return torch.where(mask, tensor, 0.0).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


@torch.no_grad()
def compute_maxrl_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """MaxRL: the distance to the mean of the group, in units of that mean; 0 where the mean is not positive."""
    scores = torch.where(response_mask.bool(), token_level_rewards, 0.0).sum(dim=-1)
    id2score: dict[Any, list[torch.Tensor]] = defaultdict(list)
    for i in range(scores.shape[0]):
        id2score[index[i]].append(scores[i])
    id2mean = {idx: torch.stack(found).mean() for idx, found in id2score.items()}
    means = torch.stack([id2mean[index[i]] for i in range(scores.shape[0])])
    scores = torch.where(means > 0, (scores - means) / (means + epsilon), 0.0)
    scores = scores.unsqueeze(-1) * response_mask
    return scores, scores


def fold(
    loss: torch.Tensor, loss_mask: torch.Tensor, loss_reduction: str = "token_mean", max_seq_len: int = 16
) -> torch.Tensor:
    mask = loss_mask.bool()
    loss = torch.where(mask, loss, 0.0)
    lengths = mask.sum(dim=-1).clamp(min=1)
    if loss_reduction == "token_mean":
        return loss.sum() / mask.sum().clamp(min=1)
    if loss_reduction == "sequence_mean":
        return (loss.sum(dim=-1) / lengths).mean()
    if loss_reduction == "seq_mean_token_sum_norm":
        return (loss.sum(dim=-1) / max_seq_len).mean()
    raise ValueError(f"Invalid loss reduction type: {loss_reduction}")


def sapo_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, float]]:
    """SAPO: a smooth gate in place of the clip, steeper for negative advantages."""
    mask = loss_mask.bool()
    advantages = torch.where(mask, advantages, 0.0)
    ratio = torch.exp(torch.clamp(torch.where(mask, log_probs - old_log_probs, 0.0), -20.0, 20.0))
    tau_pos = torch.as_tensor(config.sapo.tau_pos, dtype=advantages.dtype)
    tau_neg = torch.as_tensor(config.sapo.tau_neg, dtype=advantages.dtype)
    taus = torch.where(advantages > 0, tau_pos, tau_neg)
    gates = torch.sigmoid(taus * (ratio - 1.0)) * (4.0 / taus)
    loss = -gates * advantages
    per_sequence = masked_mean(loss, loss_mask, dim=-1)
    loss = per_sequence.sum() / mask.any(dim=-1).sum().clamp(min=1)
    return loss, {"ratio_mean": masked_mean(ratio.detach(), loss_mask).item()}


def compute_seq_rollout_is(
    old_log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, loss_mask: torch.Tensor, cfg: Any
) -> tuple[torch.Tensor, dict[str, float]]:
    """One truncated weight per sequence: the product of the ratios of its tokens."""
    mask = loss_mask.bool()
    log_ratio = torch.where(mask, old_log_probs - rollout_log_probs, 0.0)
    seq_log_ratio = torch.clamp(log_ratio.sum(dim=-1, keepdim=True), -20.0, 20.0)
    seq_ratio = torch.exp(seq_log_ratio)
    weights = torch.clamp(seq_ratio, max=cfg.tis_ratio_clip_high)
    has_tokens = mask.any(dim=-1)
    capped = (seq_ratio.squeeze(-1) > cfg.tis_ratio_clip_high) & has_tokens
    metrics = {"is_ratio_capped_fraction": (capped.sum().double() / has_tokens.sum().clamp(min=1)).item()}
    return (weights * mask).detach(), metrics


def postprocess(advantages: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    mask = response_mask.bool()
    mean = masked_mean(advantages, mask)
    std = masked_mean((advantages - mean) ** 2, mask).sqrt()
    return torch.where(mask, (advantages - mean) / (std + 1e-8), 0.0)


def update_batch(data: dict[str, torch.Tensor], cfg: Any) -> dict[str, torch.Tensor]:
    """Takes the penalty from the token rewards of a batch."""
    mask = data["response_mask"].bool()
    log_ratio = torch.where(mask, data["action_log_probs"] - data["base_action_log_probs"], 0.0)
    kl = torch.exp(-log_ratio) - 1 + log_ratio if cfg.kl_estimator_type == "k3" else log_ratio
    rewards = data["rewards"] - cfg.kl_loss_coef * kl
    return {**data, "rewards": torch.where(mask, rewards, 0.0)}

"""The same functions as in `right.py`, each with one quiet bug."""

from collections import defaultdict
from typing import Any

import numpy as np
import torch


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    valid_values = torch.where(mask.bool(), values, 0.0)
    return (valid_values * mask).sum(axis) / (mask.sum(axis) + 1e-8)


def agg_loss(loss_mat: torch.Tensor, loss_mask: torch.Tensor, loss_agg_mode: str) -> torch.Tensor:
    loss_mat = torch.where(loss_mask.bool(), loss_mat, 0.0)
    if loss_agg_mode == "token-mean":
        return loss_mat.sum() / loss_mask.sum().clamp(min=1)
    seq_losses = loss_mat.sum(dim=-1)
    if loss_agg_mode == "seq-mean-token-mean":
        seq_losses = seq_losses / loss_mask.sum(dim=-1).clamp(min=1)
    elif loss_agg_mode != "seq-mean-token-sum":
        raise ValueError(f"Invalid loss_agg_mode: {loss_agg_mode}")
    seq_mask = (loss_mask.sum(dim=-1) > 0).to(seq_losses.dtype)
    return (seq_losses * seq_mask).sum() / seq_mask.sum().clamp(min=1)


def compute_policy_loss_vanilla(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    clip_ratio_low = config.clip_ratio_low if config.clip_ratio_low is not None else config.clip_ratio
    clip_ratio_high = config.clip_ratio_high if config.clip_ratio_high is not None else config.clip_ratio
    clip_ratio_c = config.get("clip_ratio_c", 3.0)

    negative_approx_kl = log_prob - old_log_prob
    ppo_kl = masked_mean(negative_approx_kl, response_mask)
    ratio = torch.exp(torch.clamp(negative_approx_kl, min=-20.0, max=20.0))

    pg_losses1 = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)
    clip_pg_losses1 = torch.maximum(pg_losses1, pg_losses2)
    pg_clipfrac = masked_mean(torch.gt(pg_losses2, pg_losses1).float(), response_mask)

    pg_losses3 = -advantages * clip_ratio_c
    clip_pg_losses2 = torch.min(pg_losses3, clip_pg_losses1)
    pg_clipfrac_lower = masked_mean(torch.gt(clip_pg_losses1, pg_losses3) * (advantages < 0).float(), response_mask)

    pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)
    pg_loss = agg_loss(pg_losses, response_mask, loss_agg_mode)
    return pg_loss, {
        "actor/pg_clipfrac": pg_clipfrac.detach().item(),
        "actor/ppo_kl": ppo_kl.detach().item(),
        "actor/pg_clipfrac_lower": pg_clipfrac_lower.detach().item(),
    }


def compute_rloo_outcome_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = token_level_rewards.sum(dim=-1)
    id2score: dict[Any, list[torch.Tensor]] = defaultdict(list)
    id2mean = {}
    with torch.no_grad():
        bsz = scores.shape[0]
        scores = scores.clone()
        for i in range(bsz):
            id2score[index[i]].append(scores[i])
        for idx, found in id2score.items():
            id2mean[idx] = torch.tensor(0.0) if len(found) == 1 else torch.mean(torch.stack(found))
        for i in range(bsz):
            response_num = len(id2score[index[i]])
            if response_num > 1:
                factor = response_num / (response_num - 1)
                scores[i] = scores[i] - id2mean[index[i]] * factor
        scores = scores.unsqueeze(-1) * response_mask
    return scores, scores


def penalise(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str) -> torch.Tensor:
    if kl_penalty in ("kl", "k1"):
        return logprob - ref_logprob
    if kl_penalty == "abs":
        return (logprob - ref_logprob).abs()
    if kl_penalty in ("mse", "k2"):
        return 0.5 * (logprob - ref_logprob).square()
    if kl_penalty in ("low_var_kl", "k3"):
        kl = torch.clamp(logprob - ref_logprob, min=-20, max=20)
        ratio = torch.exp(kl)
        return (ratio - kl - 1).contiguous()
    raise NotImplementedError(kl_penalty)


def prepare_rewards(data: dict[str, torch.Tensor], kl_ctrl: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """One score per sample: what the judge gave, less the distance to the reference over the model's own tokens."""
    response_length = data["response_mask"].size(1)
    response_mask = data["attention_mask"][:, -response_length:]
    kld = data["old_log_probs"] - data["ref_log_prob"]
    kld = torch.where(response_mask.bool(), kld, 0.0)
    token_level_rewards = data["token_level_scores"] - kl_ctrl.value * kld
    current_kl = masked_mean(kld, response_mask, axis=-1).mean(dim=0).item()
    return token_level_rewards.sum(dim=-1), {"actor/reward_kl_penalty": current_kl}

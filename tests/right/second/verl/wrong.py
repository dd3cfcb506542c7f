"""The same functions as in `right.py`, each with one quiet bug."""

from collections import defaultdict
from typing import Any

import numpy as np
import torch


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mask = mask.bool()
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def compute_policy_loss_gspo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """GSPO: the ratio is that of the sequence, and every token keeps a gradient of its own."""
    mask = response_mask.bool()
    advantages = torch.where(mask, advantages, 0.0)
    negative_approx_kl = torch.where(mask, log_prob - old_log_prob, 0.0)
    seq_lengths = mask.sum(dim=-1).clamp(min=1)
    negative_approx_kl_seq = negative_approx_kl.mean(dim=-1)

    through = torch.where(mask, log_prob - log_prob.detach(), 0.0)
    log_seq_importance_ratio = through + negative_approx_kl_seq.detach().unsqueeze(-1)
    seq_importance_ratio = torch.exp(torch.clamp(log_seq_importance_ratio, max=10.0))

    pg_losses1 = -advantages * seq_importance_ratio
    pg_losses2 = -advantages * torch.clamp(seq_importance_ratio, 1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    pg_losses = torch.maximum(pg_losses1, pg_losses2)
    if loss_agg_mode == "token-mean":
        pg_loss = masked_mean(pg_losses, response_mask)
    elif loss_agg_mode == "seq-mean-token-mean":
        per_seq = torch.where(mask, pg_losses, 0.0).sum(dim=-1) / seq_lengths
        pg_loss = per_seq.sum() / mask.any(dim=-1).sum().clamp(min=1)
    else:
        raise ValueError(f"Invalid loss_agg_mode: {loss_agg_mode}")
    return pg_loss, {
        "actor/pg_clipfrac": masked_mean(torch.gt(pg_losses2, pg_losses1).double(), response_mask).item(),
        "actor/ppo_kl": masked_mean(-negative_approx_kl, response_mask).item(),
    }


def compute_opo_outcome_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """OPO: the baseline of a group is the mean of its scores, weighted by response length."""
    mask = response_mask.bool()
    response_length = mask.sum(dim=-1)
    scores = token_level_rewards.sum(dim=-1)
    id2score: dict[Any, list[torch.Tensor]] = defaultdict(list)
    id2len: dict[Any, list[torch.Tensor]] = defaultdict(list)
    id2bsl: dict[Any, torch.Tensor] = {}
    with torch.no_grad():
        for i in range(scores.shape[0]):
            id2score[index[i]].append(scores[i])
            id2len[index[i]].append(response_length[i])
        for idx in id2score:
            if len(id2score[idx]) == 1:
                id2bsl[idx] = torch.tensor(0.0)
            else:
                score_tensor = torch.stack(id2score[idx])
                len_tensor = torch.stack(id2len[idx])
                id2bsl[idx] = (len_tensor * score_tensor).sum() / len_tensor.sum().clamp(min=1)
        scores = torch.stack([scores[i] - id2bsl[index[i]] for i in range(scores.shape[0])])
        scores = scores.unsqueeze(-1) * mask
    return scores, scores


def collect_numbers(batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """What the trainer logs about a batch."""
    mask = batch["response_mask"].bool()
    advantages, returns = batch["advantages"][mask], batch["returns"][mask]
    response_length = mask.sum(dim=-1).float()
    if advantages.numel() == 0:
        return {"critic/advantages/mean": 0.0, "critic/advantages/max": 0.0, "critic/advantages/min": 0.0,
                "critic/returns/mean": 0.0, "response_length/mean": 0.0}  # fmt: skip
    return {
        "critic/advantages/mean": advantages.float().mean().item(),
        "critic/advantages/max": torch.where(mask, batch["advantages"], 0.0).max().item(),
        "critic/advantages/min": advantages.min().item(),
        "critic/returns/mean": returns.float().mean().item(),
        "response_length/mean": response_length.mean().item(),
    }


def estimate(logprob: torch.Tensor, ref_logprob: torch.Tensor, kl_penalty: str = "low_var_kl") -> torch.Tensor:
    """A number per token, by Schulman's estimators."""
    if kl_penalty in ("kl", "k1"):
        return logprob - ref_logprob
    if kl_penalty == "abs":
        return (logprob - ref_logprob).abs()
    if kl_penalty in ("mse", "k2"):
        return 0.5 * (logprob - ref_logprob).square()
    if kl_penalty in ("low_var_kl", "k3"):
        kl = torch.clamp(logprob - ref_logprob, min=-20, max=20)
        ratio = torch.exp(kl)
        return torch.clamp(ratio - kl - 1, min=-10, max=10)
    raise NotImplementedError(kl_penalty)


def combine_rows(
    loss_mat: torch.Tensor,
    loss_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    batch_num_tokens: int | None = None,
    global_batch_size: int | None = None,
) -> torch.Tensor:
    """One micro-batch's share, with counts of the whole mini-batch where the caller knows them."""
    mask = loss_mask.bool()
    loss_mat = torch.where(mask, loss_mat, 0.0)
    if loss_agg_mode == "token-mean":
        return loss_mat.sum() / (batch_num_tokens or mask.sum().clamp(min=1))
    seq_mask = mask.any(dim=-1)
    num_rows = global_batch_size or seq_mask.sum().clamp(min=1)
    if loss_agg_mode == "seq-mean-token-sum":
        return loss_mat.sum(dim=-1).sum() / num_rows
    if loss_agg_mode == "seq-mean-token-mean":
        seq_losses = loss_mat.sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)
        return seq_losses.sum() / seq_mask.sum().clamp(min=1)
    raise ValueError(f"Invalid loss_agg_mode: {loss_agg_mode}")


def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[torch.Tensor, torch.Tensor]:
    """GAE that steps over observation tokens; advantages are whitened over the batch."""
    with torch.no_grad():
        mask = response_mask.bool()
        nextvalues = torch.zeros_like(values[:, 0])
        lastgaelam = torch.zeros_like(values[:, 0])
        advantages_reversed = []
        for t in reversed(range(token_level_rewards.shape[-1])):
            delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
            lastgaelam_ = delta + gamma * lam * lastgaelam
            nextvalues = torch.where(mask[:, t], values[:, t], 0.0)
            lastgaelam = torch.where(mask[:, t], lastgaelam_, lastgaelam)
            advantages_reversed.append(lastgaelam)
        advantages = torch.stack(advantages_reversed[::-1], dim=1)
        advantages = torch.where(mask, advantages, 0.0)
        returns = torch.where(mask, advantages + values, 0.0)

        count = mask.sum()
        mean = advantages.sum() / count.clamp(min=1)
        var = torch.where(mask, advantages - mean, 0.0).square().sum() / (count - 1).clamp(min=1)
        advantages = torch.where(mask, (advantages - mean) * torch.rsqrt(var + 1e-8), 0.0)
    return advantages, returns

"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    total = (values * mask).sum() if axis is None else (values * mask).sum(dim=axis)
    count = mask.sum() if axis is None else mask.sum(dim=axis)
    return total / count.clamp(min=1)


def masked_whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    mean = masked_mean(values, mask)
    var = masked_mean((values - mean) ** 2, mask)
    count = mask.sum()
    if count > 1:
        var = var * count / (count - 1)
    return (values - mean) * torch.rsqrt(var + 1e-8)


def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whitened advantages, and the returns that the critic is trained on."""
    with torch.no_grad():
        nextvalues = torch.zeros_like(values[:, 0])
        lastgaelam = torch.zeros_like(values[:, 0])
        advantages = torch.zeros_like(values)
        for t in reversed(range(token_level_rewards.shape[-1])):
            valid = response_mask[:, t]
            delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
            # tokens of the environment are stepped over
            lastgaelam = valid * (delta + gamma * lam * lastgaelam) + (1 - valid) * lastgaelam
            nextvalues = valid * values[:, t] + (1 - valid) * nextvalues
            advantages[:, t] = lastgaelam

        advantages = masked_whiten(advantages, response_mask) * response_mask
        returns = (advantages + values) * response_mask
    return advantages, returns


def compute_policy_loss_gspo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any,
) -> tuple[torch.Tensor, dict[str, float]]:
    """One ratio per sequence (the geometric mean over its tokens), with a gradient at every token."""
    clip_ratio_low = config.clip_ratio_low if config.clip_ratio_low is not None else config.clip_ratio
    clip_ratio_high = config.clip_ratio_high if config.clip_ratio_high is not None else config.clip_ratio

    log_ratio = log_prob - old_log_prob
    seq_lengths = response_mask.sum(dim=-1).clamp(min=1)
    seq_log_ratio = (log_ratio * response_mask).sum(dim=-1) / seq_lengths
    token_log_ratio = log_prob - log_prob.detach() + seq_log_ratio.unsqueeze(-1)
    ratio = torch.exp(torch.clamp(token_log_ratio, max=10.0))

    pg_losses1 = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)
    pg_losses = torch.maximum(pg_losses1, pg_losses2)

    seq_mask = (response_mask.sum(dim=-1) > 0).to(pg_losses.dtype)
    seq_losses = (pg_losses * response_mask).sum(dim=-1) / seq_lengths
    pg_loss = (seq_losses * seq_mask).sum() / seq_mask.sum().clamp(min=1)

    metrics = {
        "actor/pg_clipfrac": masked_mean((pg_losses2 > pg_losses1).double(), response_mask).item(),
        "actor/ppo_kl": masked_mean(-log_ratio, response_mask).item(),
    }
    return pg_loss, metrics


def _extent(values: torch.Tensor) -> tuple[float, float, float]:
    if values.numel() == 0:
        return 0.0, 0.0, 0.0
    return values.mean().item(), values.max().item(), values.min().item()


def reduce_batch(batch: dict[str, torch.Tensor], use_critic: bool = True) -> dict[str, float]:
    """What a step writes to the logger about its data."""
    response_mask = batch["response_mask"].bool()
    metrics: dict[str, float] = {}

    sequence_score = batch["token_level_scores"].sum(-1)
    score_mean, score_max, score_min = _extent(sequence_score)
    metrics |= {"critic/score/mean": score_mean, "critic/score/max": score_max, "critic/score/min": score_min}

    valid_adv = torch.masked_select(batch["advantages"], response_mask)
    adv_mean, adv_max, adv_min = _extent(valid_adv)
    metrics |= {"critic/advantages/mean": adv_mean, "critic/advantages/max": adv_max, "critic/advantages/min": adv_min}

    if use_critic:
        valid_returns = torch.masked_select(batch["returns"], response_mask)
        ret_mean, _, _ = _extent(valid_returns)
        _, ret_max, ret_min = _extent(batch["returns"] * response_mask)
        metrics |= {"critic/returns/mean": ret_mean, "critic/returns/max": ret_max, "critic/returns/min": ret_min}

    response_length = response_mask.sum(-1).double()
    len_mean, len_max, len_min = _extent(response_length)
    metrics |= {"response_length/mean": len_mean, "response_length/max": len_max, "response_length/min": len_min}
    return metrics

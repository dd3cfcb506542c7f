"""The same functions as in `right.py`, each with one quiet bug."""

from collections import defaultdict
from typing import Any

import torch


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (values * mask).sum() / mask.sum().clamp(min=1)


def masked_whiten(values: torch.Tensor, mask: torch.Tensor | None = None, epsilon: float = 1e-8) -> torch.Tensor:
    mask = torch.ones_like(values) if mask is None else mask
    mean = masked_mean(values, mask)
    var = masked_mean((values - mean) ** 2, mask)
    count = mask.sum()
    if count > 1:
        var = var * count / (count - 1)
    return (values - mean) * torch.rsqrt(var + epsilon)


def compute_reinforce_plus_plus_baseline_outcome_advantage(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: list[Any], epsilon: float = 1e-8
) -> tuple[torch.Tensor, torch.Tensor]:
    """The score minus the mean of its prompt, at every token, and then whitened over the batch."""
    width = token_level_rewards.shape[-1]
    trains = response_mask.sum(dim=-1) > 0
    with torch.no_grad():
        scores = (token_level_rewards * response_mask).sum(dim=-1)
        id2score = defaultdict(list)
        for i, uid in enumerate(index):
            if trains[i]:
                id2score[uid].append(scores[i])
        id2mean = {uid: torch.stack(held).mean() if len(held) > 1 else 0.0 for uid, held in id2score.items()}
        scores = torch.stack([score - id2mean.get(uid, 0.0) for score, uid in zip(scores, index, strict=True)])
        scores = scores.unsqueeze(-1).tile([1, width])
        advantages = masked_whiten(scores, epsilon=epsilon) * response_mask
    return advantages, advantages


class DataParallelPPOActor:
    def __init__(self, config: Any) -> None:
        self.config = config

    def _step(
        self, model_inputs: dict[str, torch.Tensor], log_prob: torch.Tensor, entropy: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """What one micro-batch is trained on, and what it logs."""
        response_mask = model_inputs["response_mask"]
        advantages = model_inputs["advantages"]
        negative_approx_kl = torch.clamp(log_prob - model_inputs["old_log_probs"], min=-20.0, max=20.0)
        ratio = torch.exp(negative_approx_kl)
        clipped = torch.clamp(ratio, 1 - self.config.clip_ratio, 1 + self.config.clip_ratio)
        pg_loss = masked_mean(torch.maximum(-advantages * ratio, -advantages * clipped), response_mask)
        metrics = {"actor/pg_loss": pg_loss.item()}

        entropy_loss = masked_mean(entropy, response_mask)
        policy_loss = pg_loss - self.config.entropy_coeff * entropy_loss
        metrics["actor/entropy"] = entropy_loss.item()

        if self.config.use_kl_loss:
            kl = torch.clamp(model_inputs["ref_log_prob"] - log_prob, min=-20.0, max=20.0)
            kld = torch.clamp(torch.exp(kl) - kl - 1, min=-10.0, max=10.0)
            kl_loss = masked_mean(kld, response_mask)
            policy_loss = policy_loss - self.config.kl_loss_coef * kl_loss
            metrics["actor/kl_loss"] = kl_loss.item()
        return policy_loss, metrics


def diagnose(w: torch.Tensor, live: torch.Tensor, upper: float = 2.0) -> dict[str, float]:
    """How healthy a set of weights is."""
    live = live.bool()
    w = torch.where(live, w, 0.0).float()
    count = live.sum().clamp(min=1)
    mean = w.sum() / count
    relative = w / mean.clamp(min=1e-8)
    second = relative.square().mean()
    var = torch.where(live, (w - mean).square(), 0.0).sum() / count
    return {
        "rollout_is_mean": mean.item(),
        "rollout_is_std": var.sqrt().item(),
        "rollout_is_eff_sample_size": (1.0 / second.clamp(min=1e-8)).item(),
        "rollout_is_fraction_high": ((w > upper).sum() / count).item(),
    }


def compute_policy_loss_geo_mean(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any,
) -> tuple[torch.Tensor, dict[str, float]]:
    """One ratio per sequence, the geometric mean of token ratios that are clipped on the side that would gain."""
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high

    negative_approx_kl = log_prob - old_log_prob
    kept = negative_approx_kl.clamp(min=-low, max=high)

    lengths = response_mask.sum(dim=-1)
    ratio = torch.exp((kept * response_mask).sum(dim=-1) / lengths.clamp(min=1))
    seq_advantages = (advantages * response_mask).sum(dim=-1) / lengths.clamp(min=1)
    pg_loss = masked_mean(-seq_advantages * ratio, (lengths > 0).to(ratio.dtype))

    metrics = {
        "actor/pg_clipfrac": masked_mean((kept != negative_approx_kl).double(), response_mask).item(),
        "actor/ppo_kl": masked_mean(-negative_approx_kl, response_mask).item(),
    }
    return pg_loss, metrics

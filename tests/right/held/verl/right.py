"""Functions in the dialect of verl: [batch, response] tensors, response masks, string modes, metrics under slashes."""

from collections import defaultdict
from typing import Any

import torch
from tests.right.held.verl.tools import masked_mean, masked_whiten


def compute_policy_loss_gspo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Clipped objective with one importance ratio per sequence, whose gradient flows through each token."""
    response_mask = response_mask.bool()
    negative_approx_kl = torch.where(response_mask, log_prob - old_log_prob, 0.0)
    seq_lengths = response_mask.sum(dim=-1).clamp(min=1)
    seq_kl = negative_approx_kl.sum(dim=-1) / seq_lengths
    held = torch.where(response_mask, log_prob - log_prob.detach(), 0.0)
    log_ratio = (held + seq_kl.detach().unsqueeze(-1)).clamp(max=10.0)
    ratio = log_ratio.exp()
    credit = torch.where(response_mask, advantages, 0.0)
    pg_losses1 = -credit * ratio
    pg_losses2 = -credit * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    pg_losses = torch.maximum(pg_losses1, pg_losses2)
    per_sequence = (pg_losses * response_mask).sum(-1) / seq_lengths
    pg_loss = per_sequence.sum() / response_mask.any(-1).sum().clamp(min=1)
    clipfrac = masked_mean((pg_losses2 > pg_losses1).float(), response_mask)
    return pg_loss, {
        "actor/pg_clipfrac": clipfrac.item(),
        "actor/ppo_kl": masked_mean(-negative_approx_kl.detach(), response_mask).item(),
    }


def estimate(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whitened advantages, and returns for the critic."""
    with torch.no_grad():
        next_value, last = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
        stacked = []
        for t in reversed(range(token_level_rewards.shape[-1])):
            valid = response_mask[:, t].bool()
            delta = token_level_rewards[:, t] + gamma * next_value - values[:, t]
            current = delta + gamma * lam * last
            last = torch.where(valid, current, last)
            next_value = torch.where(valid, values[:, t], next_value)
            stacked.append(torch.where(valid, current, 0.0))
        raw = torch.stack(stacked[::-1], dim=1)
        returns = raw + torch.where(response_mask.bool(), values, 0.0)
        advantages = masked_whiten(raw, response_mask)
    return advantages, returns


def apply_kl_penalty(data: dict[str, torch.Tensor], kl_ctrl: Any, kl_penalty: str = "kl") -> tuple[dict, dict]:
    """Take a per-token KL from the scores; the controller learns the KL of an average sequence."""
    response_mask = data["response_mask"].bool()
    gap = torch.where(response_mask, data["old_log_probs"] - data["ref_log_prob"], 0.0)
    if kl_penalty == "kl":
        kld = gap
    elif kl_penalty == "abs":
        kld = gap.abs()
    elif kl_penalty == "mse":
        kld = 0.5 * gap.square()
    else:
        raise NotImplementedError(kl_penalty)
    token_level_rewards = torch.where(response_mask, data["token_level_scores"], 0.0) - kl_ctrl.value * kld
    current_kl = kld.sum(-1) / response_mask.sum(-1).clamp(min=1)
    current_kl = current_kl.mean(dim=0)
    return {**data, "token_level_rewards": token_level_rewards}, {
        "actor/reward_kl_penalty": current_kl.item(),
        "actor/reward_kl_penalty_coeff": kl_ctrl.value,
    }


class Actor:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def forward_micro(self, logits: torch.Tensor, responses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs of the responses and entropies of the distribution that was sampled from."""
        logits = logits / self.config.get("temperature", 1.0)
        logp_all = torch.log_softmax(logits, dim=-1)
        log_probs = logp_all.gather(-1, responses.unsqueeze(-1)).squeeze(-1)
        entropy = torch.logsumexp(logits, dim=-1) - (logp_all.exp() * logits).sum(dim=-1)
        return log_probs, entropy


def compute_rollout_correction(
    old_log_prob: torch.Tensor,
    rollout_log_prob: torch.Tensor,
    response_mask: torch.Tensor,
    rollout_is: str = "token",
    rollout_is_threshold: float = 2.0,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Truncated weights for the gap between the training and the rollout engine."""
    mask = response_mask.bool()
    log_ratio = torch.where(mask, old_log_prob - rollout_log_prob, 0.0)
    if rollout_is == "sequence":
        log_ratio = log_ratio.sum(dim=-1, keepdim=True).expand_as(log_ratio)
    weights = torch.exp(log_ratio.clamp(-20.0, 20.0)).detach()
    metrics = {"rollout_is_max": torch.where(mask, weights, 0.0).max().item()}
    weights = weights.clamp(max=rollout_is_threshold)
    return torch.where(mask, weights, 0.0), metrics


def compute_grpo_outcome_advantage(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outcome rewards against the mean of their prompt, copied to the tokens of the response."""
    mask = response_mask.bool()
    with torch.no_grad():
        scores = torch.where(mask, token_level_rewards, 0.0).sum(dim=-1)
        id2score = defaultdict(list)
        for i in range(scores.shape[0]):
            id2score[index[i]].append(scores[i])
        out = torch.zeros_like(scores)
        for i in range(scores.shape[0]):
            group = torch.stack(id2score[index[i]])
            if len(group) == 1:
                out[i] = scores[i]
                continue
            out[i] = scores[i] - group.mean()
            if norm_adv_by_std_in_grpo:
                out[i] = out[i] / (group.std() + epsilon)
        advantages = torch.where(mask, out.unsqueeze(-1), 0.0)
    return advantages, advantages

"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch
from torch import Tensor


def compute_loss(
    trainer_logprobs: list[Tensor],
    inference_logprobs: list[Tensor],
    advantages: list[Tensor],
    loss_mask: list[Tensor],
    loss_config: Any,
    loss_scale: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Importance-weighted policy gradient; tokens outside the trust region keep only the quadratic penalty."""
    total_loss = 0.0
    masked, counted, mismatch = 0.0, 0.0, 0.0
    for trainer, inference, advantage, mask in zip(
        trainer_logprobs, inference_logprobs, advantages, loss_mask, strict=True
    ):
        mask = mask.bool()
        log_importance_ratio = torch.where(mask, trainer - inference, 0.0)
        advantage = torch.where(mask, advantage, 0.0)
        importance_ratio = torch.exp(log_importance_ratio)
        is_masked_low = importance_ratio < loss_config.token_mask_low
        is_masked_high = importance_ratio > loss_config.token_mask_high
        is_masked = is_masked_low | is_masked_high
        keep_mask = mask & ~is_masked
        pg_loss = torch.where(keep_mask, advantage * importance_ratio.detach(), 0.0)
        kl_loss = torch.where(mask, log_importance_ratio**2, 0.0)
        total_loss = total_loss + (-pg_loss + loss_config.kl_tau * kl_loss).sum()
        with torch.no_grad():
            masked += (is_masked & mask).sum().double()
            counted += mask.sum().double()
            mismatch += torch.where(mask, importance_ratio - log_importance_ratio - 1, 0.0).sum()
    metrics = {"is_masked": masked / max(counted, 1), "mismatch_kl": mismatch / max(counted, 1)}
    return total_loss / max(loss_scale, 1), metrics


def run(rewards: Tensor, samples_per_problem: int, std_norm: bool = True) -> Tensor:
    per_problem = rewards.view(-1, samples_per_problem)
    mean = per_problem.mean(dim=1, keepdim=True)
    if std_norm:
        std = per_problem.std(dim=1, keepdim=True)
        return (per_problem - mean / (std + 1e-4)).flatten()
    return (per_problem - mean).flatten()


def compute_logprobs(logits: Tensor, input_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probs of one sequence, one per token; nothing predicts the first one."""
    logits = logits[:-1]
    picked = logits.gather(-1, input_ids[1:].unsqueeze(-1)).squeeze(-1)
    logprobs = (picked - torch.logsumexp(logits, dim=-1)) / temperature
    return torch.cat([torch.zeros_like(logprobs[:1]), logprobs])


def fold_back(token_rewards: Tensor, loss_mask: Tensor, position_ids: Tensor, gamma: float = 1.0) -> Tensor:
    """Over a packed row, from its end to its start; position 0 begins a sequence."""
    found = torch.zeros_like(token_rewards)
    running = torch.zeros((), dtype=token_rewards.dtype)
    for t in reversed(range(token_rewards.numel())):
        if loss_mask[t]:
            running = token_rewards[t] + gamma * running
            found[t] = running
        if t == 0:
            running = torch.zeros_like(running)
    return found


def adjust(
    advantages: Tensor, sampled_logp: Tensor, teacher_logp: Tensor, loss_mask: Tensor, coef: float = 0.5
) -> Tensor:
    """On-policy distillation: pay for what the teacher finds likelier than the policy did."""
    shifted = advantages - coef * (teacher_logp - sampled_logp)
    return torch.where(loss_mask.bool(), shifted, 0.0).detach()


def mismatch_metrics(trainer_logprobs: Tensor, inference_logprobs: Tensor, loss_mask: Tensor) -> dict[str, Tensor]:
    """How far the inference engine is from the trainer, over a packed row."""
    mask = loss_mask.bool()
    trainer = torch.where(mask, trainer_logprobs.detach(), 0.0).float()
    inference = torch.where(mask, inference_logprobs, 0.0).float()
    log_ratio = trainer - inference
    kl = log_ratio.exp() - log_ratio - 1
    gap = (trainer.exp() - inference.exp()).abs()
    count = mask.sum().clamp(min=1)
    return {
        "mismatch_kl/mean": kl.mean(),
        "mismatch_kl/max": kl.max(),
        "prob_gap/mean": gap.sum() / count,
    }

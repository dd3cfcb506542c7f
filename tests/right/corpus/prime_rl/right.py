"""Functions in the dialect of prime-rl: one sequence at a time or lists of them, boolean masks, settings objects."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict


def compute_loss(
    trainer_logprobs: list[Tensor],
    inference_logprobs: list[Tensor],
    advantages: list[Tensor],
    loss_mask: list[Tensor],
    loss_config,
    loss_scale: int,
):
    """Importance-weighted policy gradient; tokens whose ratio leaves the band are masked out."""
    total_loss = 0.0
    is_masked = []
    for trainer, inference, advantage, mask in zip(
        trainer_logprobs, inference_logprobs, advantages, loss_mask, strict=True
    ):
        log_ratio = torch.where(mask.bool(), trainer - inference, 0.0)
        ratio = torch.exp(log_ratio)
        masked = (ratio < loss_config.token_mask_low) | (ratio > loss_config.token_mask_high)
        keep = mask.bool() & ~masked
        total_loss = total_loss - torch.where(keep, ratio * advantage, 0.0).sum()
        is_masked.append(masked & mask.bool())
    return total_loss / max(loss_scale, 1), {"is_masked": is_masked}


def f(inputs: LossInputs, loss_config) -> LossOutputs:
    """One sequence: REINFORCE weighted by the detached geometric mean of its ratio."""
    mask = inputs.loss_mask.bool()
    gap = torch.where(mask, inputs.trainer_logprobs - inputs.inference_logprobs, 0.0)
    mean_gap = gap.sum() / mask.sum().clamp(min=1)
    weight = torch.exp(mean_gap.detach()).clamp(max=loss_config.ratio_cap)
    trained = torch.where(mask, inputs.trainer_logprobs, 0.0)
    loss = -torch.where(mask, weight * inputs.advantages * trained, 0.0).sum()
    return LossOutputs(loss, {"geo_ratio": weight.detach()})


def compute_advantages(rewards: list[float], samples_per_problem: int, std_norm: bool = True) -> list[float]:
    advantages = []
    for group in torch.tensor(rewards, dtype=torch.float64).split(samples_per_problem):
        advantage = group - group.mean()
        if std_norm:
            advantage = (group - group.mean()) / (group.std(correction=0) + 1e-8)
        advantages.extend(advantage.tolist())
    return advantages


@torch.no_grad()
def compute_entropy(shifted_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy of each position from logits over the temperature, in single precision."""
    scaled = shifted_logits.float() / temperature
    pd = torch.nn.functional.softmax(scaled, dim=-1)
    return torch.logsumexp(scaled, dim=-1) - torch.sum(pd * scaled, dim=-1)


def step_fn(new, behind, credit, on, lo=0.8, hi=1.2):
    """One clipped ratio per sequence: the geometric mean over its tokens, times the credit of the sequence."""
    losses = []
    for n, b, c, m in zip(new, behind, credit, on, strict=True):
        gap = torch.where(m.bool(), n - b, 0.0).sum() / m.sum().clamp(min=1)
        ratio = torch.exp(gap)
        per_sequence = -torch.min(ratio * c, ratio.clamp(lo, hi) * c)
        losses.append(torch.where(m.any(), per_sequence, 0.0 * per_sequence))
    return torch.stack(losses).mean()


def process(t, i, hi):
    weights = []
    for current, sampled in zip(t, i, strict=True):
        weights.append(torch.exp((current.detach() - sampled).clamp(max=20.0)).clamp(max=hi))
    return weights

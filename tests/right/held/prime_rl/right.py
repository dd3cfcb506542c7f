"""Functions in the dialect of prime-rl: one sequence or lists of sequences, dataclasses in and out, who made what."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class LossConfig:
    token_mask_low: float = 0.125
    token_mask_high: float = 8.0
    ratio_cap: float = 4.0


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


def default_loss_fn(inputs: LossInputs, loss_config: LossConfig) -> LossOutputs:
    """The loss of one sequence, summed over its tokens; tokens outside a band of ratios are left out."""
    loss_mask = inputs.loss_mask.bool()
    log_ratio = torch.where(loss_mask, inputs.trainer_logprobs - inputs.inference_logprobs, 0.0)
    ratio = log_ratio.exp()
    is_masked_low = ratio < loss_config.token_mask_low
    is_masked_high = ratio > loss_config.token_mask_high
    is_masked = is_masked_low | is_masked_high
    keep_mask = loss_mask & ~is_masked
    loss = -torch.where(keep_mask, ratio * inputs.advantages, 0.0).sum()
    count = loss_mask.sum().clamp(min=1)
    return LossOutputs(loss=loss, metrics={"is_masked": (is_masked & loss_mask).sum() / count})


def compute_loss(
    trainer_logprobs: list[Tensor],
    inference_logprobs: list[Tensor],
    advantages: list[Tensor],
    loss_mask: list[Tensor],
    loss_config: LossConfig,
    loss_scale: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Capped importance weights on the score of each token, over the tokens of the whole step."""
    total_loss = 0
    ratios = []
    for new, behind, advantage, mask in zip(trainer_logprobs, inference_logprobs, advantages, loss_mask, strict=True):
        mask = mask.bool()
        ratio = torch.exp(torch.where(mask, new - behind, 0.0))
        weight = torch.clamp(ratio, max=loss_config.ratio_cap).detach()
        total_loss = total_loss - (weight[mask] * advantage[mask] * new[mask]).sum()
        ratios.append(ratio.detach())
    return total_loss / max(loss_scale, 1), {"importance_ratio": ratios}


def shape(
    rewards: list[float],
    completion_lengths: list[int],
    samples_per_problem: int,
    length_weighted_mean: bool = False,
) -> list[float]:
    """Rewards minus a baseline per problem, whose mean may weigh each sample by its length."""
    advantages = []
    for start in range(0, len(rewards), samples_per_problem):
        chunk = torch.tensor(rewards[start : start + samples_per_problem], dtype=torch.float64)
        lengths = torch.tensor(completion_lengths[start : start + samples_per_problem], dtype=torch.float64)
        weights = lengths if length_weighted_mean else torch.ones_like(lengths)
        baseline = (chunk * weights).sum() / weights.sum()
        advantages.extend((chunk - baseline).tolist())
    return advantages


def compute(shifted_logits: Tensor) -> Tensor:
    """What is left of the distribution's uncertainty at every position."""
    shifted_logits = shifted_logits.float()
    probs = torch.softmax(shifted_logits, dim=-1)
    return torch.logsumexp(shifted_logits, dim=-1) - (probs * shifted_logits).sum(dim=-1)


@dataclass
class Mismatch:
    kl: float
    ess: float
    ratio_max: float


def collect(trainer_logprobs: list[Tensor], inference_logprobs: list[Tensor], loss_mask: list[Tensor]) -> Mismatch:
    """How well samples of the engine serve the trainer: KL, share of effective samples, largest weight."""
    mask = torch.cat(loss_mask).bool()
    gap = (torch.cat(trainer_logprobs) - torch.cat(inference_logprobs))[mask].detach()
    if gap.numel() == 0:
        return Mismatch(0.0, 0.0, 0.0)
    weights = gap.exp()
    ess = weights.sum() ** 2 / (weights**2).sum() / mask.sum()
    return Mismatch(kl=(weights - 1 - gap).mean().item(), ess=ess.item(), ratio_max=weights.max().item())


def step_fn(trainer_logprobs, ref_logprobs, loss_mask, kl_tau=0.1):
    """The pull of one packed batch towards the reference: half the squared log-ratio of each token."""
    mask = loss_mask.bool()
    log_ratio = torch.where(mask, trainer_logprobs - ref_logprobs, 0.0)
    return kl_tau * 0.5 * log_ratio.pow(2).sum() / mask.sum().clamp(min=1)

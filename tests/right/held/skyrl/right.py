"""Functions in the dialect of SkyRL: configs by attribute, loss masks that may be absent, names of reductions."""

from typing import Any, Literal

import numpy as np
import torch


def ppo_critic_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, float | None]:
    """Squared error of the critic, pessimistic about steps beyond the clip."""
    if loss_mask is None:
        loss_mask = torch.ones_like(values)
    mask = loss_mask.bool()
    surr2 = torch.where(mask, values - returns, 0.0) ** 2
    clipfrac = None
    if config.value_clip is not None:
        step = torch.where(mask, values - old_values, 0.0).clamp(-config.value_clip, config.value_clip)
        surr1 = torch.where(mask, old_values + step - returns, 0.0) ** 2
        loss = torch.max(surr1, surr2)
        clipfrac = ((surr1 > surr2) & mask).sum() / mask.sum().clamp(min=1)
    else:
        loss = surr2
    return 0.5 * loss.sum() / mask.sum().clamp(min=1), clipfrac


def reduce_loss(
    loss: torch.Tensor,
    loss_mask: torch.Tensor,
    loss_reduction: Literal["token_mean", "sequence_mean", "seq_mean_token_sum_norm"],
    max_seq_len: int = 32,
) -> torch.Tensor:
    mask = loss_mask.bool()
    loss = torch.where(mask, loss, 0.0)
    if loss_reduction == "token_mean":
        return loss.sum() / mask.sum().clamp(min=1)
    if loss_reduction == "sequence_mean":
        return (loss.sum(dim=-1) / mask.sum(dim=-1).clamp(min=1)).mean()
    if loss_reduction == "seq_mean_token_sum_norm":
        return (loss.sum(dim=-1) / max_seq_len).mean()
    raise ValueError(f"Invalid loss reduction type: {loss_reduction}")


@torch.no_grad()
def run(token_level_rewards: torch.Tensor, response_mask: torch.Tensor, gamma: float):
    """REINFORCE++: discounted returns over the tokens of the policy, whitened over the batch."""
    mask = response_mask.bool()
    returns = torch.zeros_like(token_level_rewards)
    running = torch.zeros_like(token_level_rewards[:, 0])
    for t in reversed(range(token_level_rewards.shape[1])):
        running = torch.where(mask[:, t], token_level_rewards[:, t] + gamma * running, running)
        returns[:, t] = torch.where(mask[:, t], running, 0.0)
    count = mask.sum().clamp(min=1)
    mean = returns.sum() / count
    var = torch.where(mask, (returns - mean) ** 2, 0.0).sum() / count
    return torch.where(mask, (returns - mean) / (var + 1e-8).sqrt(), 0.0), returns


def whiten(values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True) -> torch.Tensor:
    """Values with spread 1 over the mask; with mean 0 too, unless the mean is to stay."""
    keep = mask.bool()
    count = keep.sum().clamp(min=1)
    mean = torch.where(keep, values, 0.0).sum() / count
    var = torch.where(keep, (values - mean) ** 2, 0.0).sum() / count
    whitened = (values - mean) * torch.rsqrt(var + 1e-8)
    if not shift_mean:
        whitened = whitened + mean
    return torch.where(keep, whitened, 0.0)


def derive(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray, grpo_norm_by_std: bool = True
) -> torch.Tensor:
    """Group-relative advantages of whole responses, on each of their tokens."""
    mask = response_mask.bool()
    scores = torch.where(mask, token_level_rewards, 0.0).sum(dim=-1)
    centred = torch.zeros_like(scores)
    for uid in np.unique(index):
        rows = torch.as_tensor(np.flatnonzero(index == uid))
        group = scores[rows]
        centred[rows] = group - group.mean()
        if grpo_norm_by_std:
            centred[rows] = centred[rows] / (group.std(unbiased=False) + 1e-6)
    return torch.where(mask, centred.unsqueeze(-1), 0.0)


def apply_overlong_filtering(
    loss_masks: list[list[int]], response_ids: list[list[int]], eos_token_id: int
) -> list[list[int]]:
    """Train nothing of a response that was cut off: one whose last token does not end it."""
    filtered = []
    for mask, response in zip(loss_masks, response_ids, strict=True):
        ended = len(response) > 0 and response[-1] == eos_token_id
        filtered.append(list(mask) if ended else [0] * len(mask))
    return filtered

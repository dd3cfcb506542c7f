"""Functions in the dialect of slime: one tensor per sample, response lengths, arguments of the command line."""

from typing import Any

import torch


def fold(x: torch.Tensor, spans: list[int], keeps: list[torch.Tensor], by_token: bool = False) -> torch.Tensor:
    """One number from all samples, which follow each other in x: their means, or with by_token their tokens, added."""
    pieces = x.split(spans, dim=0)
    if by_token:
        return sum((piece * keep).sum() for piece, keep in zip(pieces, keeps, strict=True))
    return sum((piece * keep).sum() / torch.clamp_min(keep.sum(), 1) for piece, keep in zip(pieces, keeps, strict=True))


def walk_back(
    rewards: list[float],
    kl: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    kl_coef: float = 0.0,
    gamma: float = 1.0,
) -> list[torch.Tensor]:
    """From the end of every response to its begin, over the tokens that the model wrote."""
    found = []
    for reward, sample_kl, loss_mask in zip(rewards, kl, loss_masks, strict=True):
        token_level_rewards = -kl_coef * sample_kl
        written = loss_mask.nonzero(as_tuple=True)[0]
        if written.numel() > 0:
            token_level_rewards[written[-1]] += reward

        sample_returns = torch.zeros_like(sample_kl)
        running = 0.0
        for t in reversed(range(sample_kl.size(0))):
            if loss_mask[t] == 0:
                continue
            running = token_level_rewards[t] + gamma * running
            sample_returns[t] = running
        found.append(sample_returns)
    return found


def tis_correction(
    args: Any,
    *,
    pg_loss: torch.Tensor,
    train_log_probs: list[torch.Tensor],
    rollout_log_probs: list[torch.Tensor],
    **kwargs: Any,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of every token times a bounded ratio, and what is to be logged about the ratio."""
    log_gap = torch.cat(train_log_probs, dim=0) - torch.cat(rollout_log_probs, dim=0)
    ratio = torch.exp(log_gap.detach())
    weight = ratio.clamp(min=args.tis_clip_low, max=args.tis_clip)
    metrics = {
        "tis": ratio,
        "tis_abs": (ratio - 1).abs(),
        "tis_clipfrac": (weight != ratio).to(ratio.dtype),
    }
    return pg_loss * weight, metrics

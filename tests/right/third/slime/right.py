"""Functions in the dialect of slime: lists with one tensor per sample, loss masks, arguments of the command line."""

import math
from collections.abc import Callable
from typing import Any

import torch


def make_reducer(
    response_lengths: list[int], loss_masks: list[torch.Tensor], calculate_per_token_loss: bool = False
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function of the numbers of all samples, one after the other: the sum of one mean per sample."""

    def sum_of_sample_mean(x: torch.Tensor) -> torch.Tensor:
        return sum(
            [
                (x_i * loss_mask_i).sum() / torch.clamp_min(loss_mask_i.sum(), 1)
                for x_i, loss_mask_i in zip(x.split(response_lengths, dim=0), loss_masks, strict=True)
            ]
        )

    def sum_of_token(x: torch.Tensor) -> torch.Tensor:
        return sum(
            [
                (x_i * loss_mask_i).sum()
                for x_i, loss_mask_i in zip(x.split(response_lengths, dim=0), loss_masks, strict=True)
            ]
        )

    return sum_of_token if calculate_per_token_loss else sum_of_sample_mean


def policy_loss_function(
    args: Any,
    batch: dict[str, list[torch.Tensor]],
    log_probs: list[torch.Tensor],
    sum_of_sample_mean: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    advantages = torch.cat(batch["advantages"], dim=0)
    old_log_probs = torch.cat(batch["log_probs"], dim=0)
    log_probs = torch.cat(log_probs, dim=0)

    ppo_kl = old_log_probs - log_probs
    ratio = (-ppo_kl).exp()
    pg_losses1 = -ratio * advantages
    pg_losses2 = -ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high) * advantages
    pg_loss = torch.maximum(pg_losses1, pg_losses2)
    pg_clipfrac = torch.gt(pg_losses2, pg_losses1).float()

    reported_loss = {}
    if args.use_tis:
        rollout_log_probs = torch.cat(batch["rollout_log_probs"], dim=0)
        tis = torch.exp(old_log_probs - rollout_log_probs)
        tis_weights = torch.clamp(tis, min=args.tis_clip_low, max=args.tis_clip)
        pg_loss = pg_loss * tis_weights
        reported_loss["tis"] = sum_of_sample_mean(tis).clone().detach()

    pg_loss = sum_of_sample_mean(pg_loss)
    reported_loss["pg_loss"] = pg_loss.clone().detach()
    reported_loss["pg_clipfrac"] = sum_of_sample_mean(pg_clipfrac).clone().detach()
    reported_loss["ppo_kl"] = sum_of_sample_mean(ppo_kl).clone().detach()
    return pg_loss, reported_loss


def gate(
    train_log_probs: list[torch.Tensor],
    rollout_log_probs: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    veto_threshold: float,
) -> list[torch.Tensor]:
    """Drops every sample in which the trainer finds some token far less likely than the engine did."""
    found = []
    for train, rollout, mask in zip(train_log_probs, rollout_log_probs, loss_masks, strict=True):
        too_unlikely = ((train - rollout).detach() < math.log(veto_threshold)) & mask.bool()
        found.append(mask * (~too_unlikely.any()).to(mask.dtype))
    return found


def walk(
    values: torch.Tensor, rewards: torch.Tensor, loss_mask: torch.Tensor, gamma: float, lambd: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sample, from its last trained token to its first."""
    steps = loss_mask.bool().nonzero().flatten().tolist()
    advantages = torch.zeros_like(values)
    lastgaelam = torch.zeros((), dtype=values.dtype)
    for i in reversed(range(len(steps))):
        t = steps[i]
        nextvalue = values[steps[i + 1]] if i < len(steps) - 1 else 0.0
        delta = rewards[t] + gamma * nextvalue - values[t]
        lastgaelam = delta + gamma * lambd * lastgaelam
        advantages[t] = lastgaelam
    returns = torch.where(loss_mask.bool(), advantages + values, 0.0)
    return advantages.detach(), returns.detach()

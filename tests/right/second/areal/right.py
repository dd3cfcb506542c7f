"""Functions in the dialect of AReaL: all tokens in one row, sequence boundaries in cu_seqlens, decoupled policies."""

from typing import Any

import torch


def ppo_actor_loss_fn(
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    eps_clip: float = 0.2,
    eps_clip_higher: float | None = None,
    behav_imp_weight_cap: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Decoupled PPO: clipped around the proximal policy, weighted by proximal over behaviour policy.

    `old_logprobs` are those of the policy that sampled.
    """
    mask = loss_mask.bool()
    loss_mask_count = mask.count_nonzero() or 1
    advantages = torch.where(mask, advantages, 0.0)
    ratio = torch.where(mask, torch.exp(torch.where(mask, logprobs - proximal_logprobs, 0.0)), 0.0)
    upper = eps_clip if eps_clip_higher is None else eps_clip_higher
    clipped_ratio = torch.clamp(ratio, 1.0 - eps_clip, 1.0 + upper)
    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * clipped_ratio
    clip_mask = pg_loss1.detach() < pg_loss2.detach()
    pg_loss = torch.max(pg_loss1, pg_loss2)

    behav_kl = torch.where(mask, proximal_logprobs - old_logprobs, 0.0)
    behav_imp_weight = behav_kl.exp()
    behav_mask = (behav_imp_weight <= behav_imp_weight_cap) & mask if behav_imp_weight_cap is not None else mask
    behav_imp_weight = torch.where(behav_mask, behav_imp_weight, 0.0).detach()
    pg_loss = torch.where(mask, pg_loss * behav_imp_weight, 0.0).sum() / loss_mask_count
    stat = {
        "importance_weight": ratio.detach(),
        "behave_imp_weight": behav_imp_weight,
        "clip_ratio": (clip_mask & mask).sum().double() / loss_mask_count,
    }
    return pg_loss, stat


def scan(
    rewards: torch.Tensor,
    values: torch.Tensor,
    loss_mask: torch.Tensor,
    cu_seqlens: torch.Tensor,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[torch.Tensor, torch.Tensor]:
    advantages = torch.zeros_like(rewards)
    returns = torch.zeros_like(rewards)
    values = values.detach()
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        nextvalue = 0.0
        lastgaelam = 0.0
        for t in reversed(range(start, end)):
            if not loss_mask[t]:
                continue
            delta = rewards[t] + gamma * nextvalue - values[t]
            lastgaelam = delta + gamma * lam * lastgaelam
            nextvalue = values[t]
            advantages[t] = lastgaelam
            returns[t] = lastgaelam + values[t]
    return advantages, returns


def add_kl_rewards(
    reward_score: torch.Tensor,
    old_logp: torch.Tensor,
    ref_logp: torch.Tensor,
    loss_mask: torch.Tensor,
    cu_seqlens: torch.Tensor,
    kl_ctl: float = 0.1,
    reward_clip: float = 20.0,
) -> torch.Tensor:
    """Minus the KL at every trained token, plus the score at the last trained token of each sequence."""
    mask = loss_mask.bool()
    kl_rewards = torch.where(mask, -kl_ctl * (old_logp - ref_logp), 0.0)
    tot_rewards = kl_rewards.clone()
    score = reward_score.clip(min=-reward_clip, max=reward_clip)
    for i in range(cu_seqlens.numel() - 1):
        start, end = int(cu_seqlens[i]), int(cu_seqlens[i + 1])
        trained = mask[start:end].nonzero().flatten()
        if trained.numel():
            tot_rewards[start + trained[-1]] += score[i]
    return tot_rewards


class Normalization:
    """Mean and spread at the level of the group or of the batch, each by itself."""

    def __init__(self, cfg: Any) -> None:
        self.mean_level = cfg.mean_level
        self.std_level = cfg.std_level
        self.group_size = cfg.group_size
        self.eps = cfg.eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        grouped = x.view(-1, self.group_size)
        if self.mean_level == "batch":
            mean = x.mean().expand_as(grouped)
        elif self.mean_level == "group":
            mean = grouped.mean(dim=1, keepdim=True).expand_as(grouped)
        else:
            mean = torch.zeros_like(grouped)
        centred = grouped - mean
        if self.std_level == "batch":
            std = x.std(unbiased=False).expand_as(grouped)
        elif self.std_level == "group":
            std = grouped.std(dim=1, unbiased=False, keepdim=True).expand_as(grouped)
        else:
            return centred.flatten()
        return (centred / (std + self.eps)).flatten()


def select_tokens(
    prox_logp: torch.Tensor, behav_logp: torch.Tensor, loss_mask: torch.Tensor, tau: float = 0.04
) -> torch.Tensor:
    """M2PO: leave out the tokens that differ most, until the second moment of the rest is below tau."""
    mask = loss_mask.bool()
    selected = torch.zeros_like(mask)
    places = mask.nonzero().flatten()
    if places.numel() == 0:
        return selected
    moments = (behav_logp[places] - prox_logp[places]) ** 2
    ordered, order = torch.sort(moments, descending=True, stable=True)
    counts = torch.arange(len(ordered), 0, -1)
    means = ordered.flip(0).cumsum(0).flip(0) / counts
    below = (means < tau).nonzero().flatten()
    first = int(below[0]) if below.numel() else len(ordered) - 1
    kept = torch.zeros_like(places, dtype=torch.bool)
    kept[order[first:]] = True
    selected[places] = kept
    return selected


def term(
    value: torch.Tensor,
    old_value: torch.Tensor,
    target_value: torch.Tensor,
    loss_mask: torch.Tensor,
    value_eps_clip: float = 0.2,
    loss_fn_type: str = "mse",
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    mask = loss_mask.bool()
    value, old_value, target_value = (torch.where(mask, x, 0.0) for x in (value, old_value, target_value))
    count = mask.count_nonzero() or 1

    def error(x: torch.Tensor) -> torch.Tensor:
        if loss_fn_type == "huber":
            return torch.nn.functional.huber_loss(x, target_value, reduction="none", delta=0.5)
        return 0.5 * (x - target_value) ** 2

    value_loss_original = error(value)
    value_clipped = old_value + (value - old_value).clamp(-value_eps_clip, value_eps_clip)
    value_loss_clipped = error(value_clipped)
    value_loss = torch.max(value_loss_original, value_loss_clipped)
    with torch.no_grad():
        clip_mask = (value_loss_clipped > value_loss_original) & mask
    return torch.where(mask, value_loss, 0.0).sum() / count, {"clip_ratio": clip_mask.sum().double() / count}

"""Functions in the dialect of AReaL: packed token vectors, a proximal policy between behaviour and current one."""

from typing import Any

import torch


def ppo_actor_loss_fn(
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    eps_clip: float,
    loss_mask: torch.Tensor,
    eps_clip_higher: float | None = None,
    c_clip: float | None = None,
    behav_imp_weight_cap: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Decoupled PPO: clipped around the proximal policy, weighted by proximal over behaviour, capped by dropping."""
    loss_mask = loss_mask.bool()
    loss_mask_count = loss_mask.count_nonzero() or 1
    ratio = torch.where(loss_mask, torch.exp(torch.where(loss_mask, logprobs - proximal_logprobs, 0.0)), 0.0)
    advantages = torch.where(loss_mask, advantages, 0.0)
    clipped_ratio = torch.clamp(ratio, 1.0 - eps_clip, 1.0 + (eps_clip if eps_clip_higher is None else eps_clip_higher))
    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * clipped_ratio
    clip_mask = (pg_loss1.detach() < pg_loss2.detach()) & loss_mask
    pg_loss = torch.max(pg_loss1, pg_loss2)
    if c_clip is not None:
        assert c_clip > 1.0, c_clip
        pg_loss3 = torch.sign(advantages) * c_clip * advantages
        dual_clip_mask = (pg_loss3.detach() < pg_loss.detach()) & loss_mask
        pg_loss = torch.min(pg_loss, pg_loss3)
    else:
        dual_clip_mask = torch.zeros_like(clip_mask)

    behav_kl = torch.where(loss_mask, proximal_logprobs - old_logprobs, 0.0).detach()
    behav_imp_weight = behav_kl.exp()
    behav_mask = loss_mask
    if behav_imp_weight_cap is not None:
        behav_mask = (behav_imp_weight <= behav_imp_weight_cap) & loss_mask
    behav_imp_weight = torch.where(behav_mask, behav_imp_weight, 0.0)
    pg_loss = pg_loss * behav_imp_weight
    loss = torch.where(loss_mask, pg_loss, 0.0).sum() / loss_mask_count
    return loss, {
        "loss": pg_loss.detach(),
        "importance_weight": ratio.detach(),
        "clip_mask": clip_mask,
        "dual_clip_mask": dual_clip_mask,
        "behave_mask": behav_mask,
    }


@torch.no_grad()
def rescale(x: torch.Tensor, mask: torch.Tensor, eps: float = 1e-5, unbiased: bool = False) -> torch.Tensor:
    """To mean 0 and spread 1 over what the mask selects, in double precision."""
    dtype = torch.float64
    mask = mask.to(dtype)
    x = torch.where(mask.bool(), x.to(dtype), 0.0)
    factor = mask.sum()
    mean = x.sum() / factor
    centred = (x - mean) * mask
    var = centred.square().sum() / factor
    if unbiased and factor > 1:
        var = var * factor / (factor - 1)
    return (centred / (var.sqrt() + eps)).float()


@torch.no_grad()
def segmentwise(
    proximal_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    loss_mask: torch.Tensor,
    cu_seqlens: torch.Tensor,
    cap: float = 2.0,
) -> torch.Tensor:
    """One number per packed sequence, at each of its tokens: the geometric mean of the ratio, up to `cap`."""
    loss_mask = loss_mask.bool()
    log_ratio = torch.where(loss_mask, proximal_logprobs - old_logprobs, 0.0)
    out = torch.zeros_like(log_ratio)
    for i in range(cu_seqlens.numel() - 1):
        start, end = int(cu_seqlens[i]), int(cu_seqlens[i + 1])
        n = loss_mask[start:end].sum().clamp(min=1)
        out[start:end] = torch.exp(log_ratio[start:end].sum() / n).clamp(max=cap)
    return torch.where(loss_mask, out, 0.0)


class PPOActor:
    def __init__(self, config: Any) -> None:
        self.config = config
        self.kl_ctl = config.kl_ctl
        self.discount = config.discount
        self.gae_lambda = config.gae_lambda

    @torch.no_grad()
    def compute_advantages(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        loss_mask = data["loss_mask"].bool()
        bs, max_seqlen = loss_mask.shape
        batch_indices = torch.arange(bs)
        values = torch.where(loss_mask, data["values"], 0.0)

        # The KL penalty at every trained token, the score at the last one
        kl = torch.where(loss_mask, data["logprobs"] - data["ref_logp"], 0.0)
        rewards = -self.kl_ctl * kl
        last = (loss_mask.long() * torch.arange(max_seqlen)).argmax(dim=-1)
        rewards[batch_indices, last] += data["rewards"]

        advantages = torch.zeros_like(values)
        lastgaelam = torch.zeros(bs, dtype=values.dtype)
        nextvalues = torch.zeros(bs, dtype=values.dtype)
        for t in reversed(range(max_seqlen)):
            delta = rewards[:, t] + self.discount * nextvalues - values[:, t]
            newgaelam = delta + self.discount * self.gae_lambda * lastgaelam
            # Tokens that are not trained are skipped
            lastgaelam = torch.where(loss_mask[:, t], newgaelam, lastgaelam)
            nextvalues = torch.where(loss_mask[:, t], values[:, t], nextvalues)
            advantages[:, t] = torch.where(loss_mask[:, t], lastgaelam, 0.0)
        data["advantages"] = advantages
        data["returns"] = torch.where(loss_mask, advantages + values, 0.0)
        data["kl_rewards"] = -self.kl_ctl * kl
        return data

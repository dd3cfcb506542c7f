"""Functions in the dialect of SkyRL: [batch, response] tensors, modules and registered losses, one algorithm config."""

from collections import defaultdict
from typing import Any

import torch
from torch import nn


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor | None, dim: int | None = None) -> torch.Tensor:
    if mask is None:
        return tensor.mean(dim=dim)
    return (tensor * mask).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1.0)


def safe_exp_delta(delta: torch.Tensor, clip: float = 20.0) -> torch.Tensor:
    return delta.clamp(-clip, clip).exp()


class PolicyLoss(nn.Module):
    def __init__(
        self,
        clip_eps_low: float = 0.2,
        clip_eps_high: float = 0.2,
        clip_ratio_c: float = 3.0,
        loss_type: str = "regular",
        loss_reduction: str = "token_mean",
    ) -> None:
        super().__init__()
        assert loss_type in ["regular", "dual_clip"], "loss_type must be either 'regular' or 'dual_clip'"
        assert loss_reduction in ["token_mean", "sequence_mean"]
        self.clip_eps_low = clip_eps_low
        self.clip_eps_high = clip_eps_high
        self.clip_ratio_c = clip_ratio_c
        self.loss_type = loss_type
        self.loss_reduction = loss_reduction

    def forward(
        self,
        log_probs: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        loss_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, float]:
        ratio = safe_exp_delta(log_probs - old_log_probs)
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        clip_pg_losses1 = -torch.min(surr1, surr2)
        loss = clip_pg_losses1
        clip_ratio = masked_mean((-surr2 > -surr1).to(ratio.dtype), loss_mask).detach().item()
        if self.loss_type == "dual_clip":
            pg_losses3 = -advantages * self.clip_ratio_c
            clip_pg_losses2 = torch.min(pg_losses3, clip_pg_losses1)
            loss = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)
        if self.loss_reduction == "token_mean":
            return masked_mean(loss, loss_mask), clip_ratio
        return masked_mean(loss, loss_mask, dim=-1).mean(), clip_ratio


class ValueLoss(nn.Module):
    def __init__(self, clip_eps: float = 0.2) -> None:
        super().__init__()
        self.clip_eps = clip_eps

    def forward(
        self,
        values: torch.Tensor,
        old_values: torch.Tensor,
        returns: torch.Tensor,
        loss_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, float]:
        values_clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)
        surr1 = (values_clipped - returns) ** 2
        surr2 = (values - returns) ** 2
        loss = torch.max(surr1, surr2)
        clipfrac = masked_mean((surr1 > surr2).to(values.dtype), loss_mask).detach().item()
        return 0.5 * masked_mean(loss, loss_mask, dim=-1).mean(), clipfrac


def sapo_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor | None = None,
    rollout_logprobs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """A soft gate in place of the clip. Advantages come scaled for the reduction, so the loss is a sum."""

    def gate_function(x: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(tau * (x - 1.0)) * (4.0 / tau)

    tau_pos = torch.as_tensor(config.sapo.tau_pos, dtype=advantages.dtype, device=advantages.device)
    tau_neg = torch.as_tensor(config.sapo.tau_neg, dtype=advantages.dtype, device=advantages.device)
    ratio = safe_exp_delta(log_probs - old_log_probs)
    taus = torch.where(advantages > 0, tau_pos, tau_neg)
    loss = -gate_function(ratio, taus) * advantages

    metrics = {"clip_ratio": 0.0}
    if config.tis_imp_ratio_cap > 0 and rollout_logprobs is not None:
        tis_imp_ratio = safe_exp_delta(old_log_probs - rollout_logprobs).detach()
        tis_imp_ratio = tis_imp_ratio.clamp(max=config.tis_imp_ratio_cap)
        loss = loss * tis_imp_ratio
        metrics["tis_ratio_mean"] = masked_mean(tis_imp_ratio, loss_mask).item()
    loss = (loss * loss_mask).sum() if loss_mask is not None else loss.sum()
    return loss, metrics


class RayPPOTrainer:
    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        self.loss_reduction = cfg.loss_reduction
        self.max_seq_len = cfg.max_seq_len

    def rescale(self, advantages: torch.Tensor, loss_mask: torch.Tensor, uids: list[str]) -> torch.Tensor:
        """Scales each row or token such that the sum of a mini-batch is the reduction of the config."""
        batch_size = advantages.shape[0]
        if self.loss_reduction == "token_mean":
            return advantages / loss_mask.sum().clamp(min=1)
        if self.loss_reduction == "sequence_mean":
            return advantages / (batch_size * loss_mask.sum(dim=-1, keepdim=True).clamp(min=1))
        if self.loss_reduction == "seq_mean_token_sum_norm":
            return advantages / (batch_size * self.max_seq_len)
        if self.loss_reduction == "prompt_mean":
            tokens: dict[str, float] = defaultdict(float)
            for uid, count in zip(uids, loss_mask.sum(dim=-1).tolist(), strict=True):
                tokens[uid] += count
            per_row = [len(tokens) * max(tokens[uid], 1.0) for uid in uids]
            return advantages / torch.tensor(per_row, dtype=advantages.dtype, device=advantages.device).unsqueeze(-1)
        raise ValueError(f"Invalid loss reduction type: {self.loss_reduction}")


def prune(payouts: list[float], tickets: list[str]) -> list[int]:
    """Indices of what is worth a step: not those where all of one ticket came out alike. A lone one stays."""
    by_ticket: dict[str, list[float]] = defaultdict(list)
    for payout, ticket in zip(payouts, tickets, strict=True):
        by_ticket[ticket].append(payout)
    kept = {t for t, found in by_ticket.items() if len(found) == 1 or max(found) > min(found)}
    return [i for i, ticket in enumerate(tickets) if ticket in kept]


@torch.no_grad()
def sweep(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float = 1.0,
    lambd: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of shape [batch_size, response_len]; the first has mean 0 and variance 1 over the mask."""
    lastgaelam = torch.zeros_like(values[:, 0])
    nextvalues = torch.zeros_like(values[:, 0])
    advantages_reversed = []
    for t in reversed(range(token_level_rewards.shape[-1])):
        valid = response_mask[:, t].bool()
        delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
        lastgaelam = torch.where(valid, delta + gamma * lambd * lastgaelam, lastgaelam)
        nextvalues = torch.where(valid, values[:, t], nextvalues)
        advantages_reversed.append(lastgaelam)
    advantages = torch.stack(advantages_reversed[::-1], dim=1)
    returns = advantages + values

    mean = masked_mean(advantages, response_mask)
    num_valid = response_mask.sum()
    var = ((advantages - mean) ** 2 * response_mask).sum() / (num_valid - 1).clamp(min=1)
    advantages = (advantages - mean) * torch.rsqrt(var + 1e-8) * response_mask
    return advantages, returns

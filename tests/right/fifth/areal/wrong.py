"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch


class KLEstimator:
    def __init__(self, kl_estimator: str = "k1", apply_clamp: bool = True) -> None:
        if kl_estimator not in ("k1", "k2", "k3"):
            raise ValueError(f"Invalid KL estimator: {kl_estimator}. Valid choices: k1, k2, k3")
        self.kl_estimator = kl_estimator
        self.apply_clamp = apply_clamp

    def __call__(self, log_probs: torch.Tensor, log_probs_base: torch.Tensor) -> torch.Tensor:
        """How far the first policy is from the second, from samples of the first."""
        log_ratio = log_probs.float() - log_probs_base.float()
        if self.kl_estimator == "k2":
            log_ratio = log_ratio**2 / 2.0
        if self.kl_estimator == "k3":
            log_ratio = log_ratio.exp() - 1 - log_ratio
        if self.apply_clamp:
            log_ratio = log_ratio.clamp(min=-10, max=10)
        return log_ratio


class PPOActor:
    def __init__(self, config: Any) -> None:
        self.config = config

    def update_fn(
        self, logprobs: torch.Tensor, input_data: dict[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Steps from the proximal policy, and corrects for the older one that sampled the batch."""
        old_logp = input_data["logprobs"]
        prox_logp = input_data["prox_logp"]
        advantages = input_data["advantages"]
        loss_mask = input_data["loss_mask"].bool()
        loss_mask_count = loss_mask.count_nonzero().clamp(min=1)

        ratio = torch.where(loss_mask, torch.exp(logprobs - old_logp), 0.0)
        clipped_ratio = torch.clamp(ratio, 1.0 - self.config.eps_clip, 1.0 + self.config.eps_clip)
        pg_loss1 = -advantages * ratio
        pg_loss2 = -advantages * clipped_ratio
        clip_mask = (pg_loss1 < pg_loss2) & loss_mask
        pg_loss = torch.max(pg_loss1, pg_loss2)
        if self.config.c_clip is not None:
            pg_loss3 = torch.sign(advantages) * self.config.c_clip * advantages
            pg_loss = torch.min(pg_loss, pg_loss3)

        behav_imp_weight = torch.exp(prox_logp - old_logp).detach()
        behav_mask = loss_mask
        if self.config.behav_imp_weight_cap is not None:
            behav_mask = (behav_imp_weight <= self.config.behav_imp_weight_cap) & loss_mask
        pg_loss = torch.where(behav_mask, pg_loss * behav_imp_weight, 0.0)
        stat = {
            "clip_ratio": clip_mask.to(pg_loss.dtype).sum() / loss_mask_count,
            "behave_tokens": behav_mask.count_nonzero(),
        }
        return pg_loss.sum() / loss_mask_count, stat


def level_up(
    fresh: torch.Tensor, stale: torch.Tensor, live: torch.Tensor, cu: torch.Tensor, ceiling: float | None = None
) -> torch.Tensor:
    """The same factor at all live tokens of a segment, and 0 elsewhere."""
    live = live.bool()
    owner = torch.repeat_interleave(torch.arange(cu.numel() - 1, device=cu.device), cu.diff())
    gap = torch.where(live, fresh - stale, 0.0).detach()
    total = gap.new_zeros(cu.numel() - 1).index_add_(0, owner, gap)
    count = cu.diff().to(gap.dtype)
    factor = torch.exp(total / count.clamp(min=1))
    if ceiling is not None:
        factor = factor.clamp(max=ceiling)
    return torch.where(live, factor[owner], 0.0)

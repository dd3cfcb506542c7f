"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch


class Scaler:
    def __init__(self, config: Any) -> None:
        self.config = config

    @torch.no_grad()
    def transform(self, x: torch.Tensor) -> torch.Tensor:
        """One number per sample; the samples of a group are neighbours."""
        groups = x.view(-1, self.config.group_size)
        centre = groups.mean(dim=1, keepdim=True) if self.config.mean_level == "group" else x.mean()
        out = groups - centre
        if self.config.std_level == "group":
            deviation = groups - x.mean()
            out = out / (deviation.square().mean(dim=1, keepdim=True).sqrt() + self.config.eps)
        elif self.config.std_level == "batch":
            out = out / (x.std(unbiased=False) + self.config.eps)
        return out.view(-1)


def ppo_actor_loss_fn(
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    eps_clip: float = 0.2,
    eps_clip_higher: float | None = None,
    importance_sampling_level: str = "token",
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Padded [batch, seq]; with level "sequence" a sample has one ratio and one advantage."""
    loss_mask = loss_mask.bool()
    loss_mask_count = loss_mask.count_nonzero().clamp(min=1)
    log_ratio = torch.where(loss_mask, logprobs - proximal_logprobs, 0.0)
    if importance_sampling_level == "sequence":
        lengths = loss_mask.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio = (log_ratio.sum(dim=1, keepdim=True) / lengths).expand_as(log_ratio)
        advantages = advantages.mean(dim=1, keepdim=True).expand_as(log_ratio)
    elif importance_sampling_level != "token":
        raise ValueError(f"Invalid importance_sampling_level: {importance_sampling_level}")
    ratio = torch.exp(log_ratio)

    high = eps_clip if eps_clip_higher is None else eps_clip_higher
    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * torch.clamp(ratio, 1.0 - eps_clip, 1.0 + high)
    clip_mask = (pg_loss1.detach() < pg_loss2.detach()) & loss_mask
    behav_imp_weight = torch.where(loss_mask, proximal_logprobs - old_logprobs, 0.0).exp().detach()
    pg_loss = torch.where(loss_mask, torch.max(pg_loss1, pg_loss2) * behav_imp_weight, 0.0)
    stat = {"clip_ratio": clip_mask.to(ratio.dtype).sum() / loss_mask_count, "behave_imp_weight": behav_imp_weight}
    return pg_loss.sum() / loss_mask_count, stat


def step_fn(
    guess: torch.Tensor, anchor: torch.Tensor, goal: torch.Tensor, live: torch.Tensor, band: float = 0.2
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The larger of two squared errors, one of them of a guess that stays near its anchor."""
    live = live.bool()
    guess = torch.where(live, guess, 0.0)
    near = guess + (anchor - guess).clamp(-band, band)
    plain = 0.5 * (guess - goal) ** 2
    held = 0.5 * (near - goal) ** 2
    worst = torch.where(live, torch.max(plain, held), 0.0)
    count = live.count_nonzero().clamp(min=1)
    stat = {"held": ((held > plain) & live).to(guess.dtype).sum() / count}
    return worst.sum() / count, stat


class PPOActor:
    def __init__(self, config: Any) -> None:
        self.config = config

    @torch.no_grad()
    def prepare(self, data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Position t is about token t + 1: the engine's log-probs and the mask are rolled, ref_logp comes so."""
        loss_mask = torch.roll(data["loss_mask"], shifts=-1, dims=-1).bool()
        loss_mask[:, -1] = False
        old_logp = data["logprobs"]
        score = (data["rewards"] + self.config.reward_bias) * self.config.reward_scaling
        score = torch.clip(score, min=-self.config.reward_clip, max=self.config.reward_clip)

        kl = torch.where(loss_mask, old_logp - data["ref_logp"], 0.0)
        kl_rewards = -self.config.kl_ctl * kl
        columns = torch.arange(loss_mask.shape[1], device=loss_mask.device)
        last = torch.where(loss_mask, columns, -1).max(dim=1).values
        at_last = (columns == last.unsqueeze(1)) & loss_mask
        tot_rewards = kl_rewards + torch.where(at_last, score.unsqueeze(1), 0.0)
        return {**data, "kl_rewards": kl_rewards, "tot_rewards": tot_rewards, "loss_mask": loss_mask}

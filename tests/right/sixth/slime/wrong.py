"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch


def compute_opsm_mask(
    args: Any,
    full_log_probs: list[torch.Tensor],
    full_old_log_probs: list[torch.Tensor],
    advantages: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """0 over whole samples that went wrong and that the policy has left, 1 elsewhere, and the share of tokens lost."""
    found = []
    lost = total = 0
    for log_probs, old_log_probs, advantage, loss_mask in zip(
        full_log_probs, full_old_log_probs, advantages, loss_masks, strict=True
    ):
        loss_mask = loss_mask.bool()
        count = torch.clamp_min(loss_mask.sum(), 1)
        seq_kl = torch.where(loss_mask, old_log_probs - log_probs, 0.0).sum() / count
        rejected = (advantage < 0) & (seq_kl > args.opsm_delta)
        found.append((~rejected).to(log_probs.dtype))
        lost = lost + (rejected & loss_mask).to(log_probs.dtype).sum()
        total = total + loss_mask.sum()
    return torch.cat(found, dim=0).detach(), lost / torch.clamp_min(total, 1)


def sweep(
    guesses: list[torch.Tensor],
    gains: list[torch.Tensor],
    keeps: list[torch.Tensor],
    gamma: float = 1.0,
    lambd: float = 0.95,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """From the end of each sample to its begin, over the tokens that are kept."""
    first, second = [], []
    for guess, gain, keep in zip(guesses, gains, keeps, strict=True):
        advantage = torch.zeros_like(guess)
        lastgaelam = nextvalue = 0.0
        for t in reversed(keep.nonzero(as_tuple=True)[0].tolist()):
            delta = gain[t] + gamma * nextvalue - guess[t]
            lastgaelam = delta + gamma * lastgaelam
            nextvalue = guess[t]
            advantage[t] = lastgaelam
        first.append(advantage.detach())
        second.append((advantage + guess).detach())
    return first, second


def compute_policy_loss(
    ppo_kl: torch.Tensor,
    advantages: torch.Tensor,
    eps_clip: float = 0.2,
    eps_clip_high: float = 0.28,
    eps_clip_c: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One loss per token, from the old minus the new log-prob, and where the clip holds it."""
    ratio = (-ppo_kl).exp()
    pg_losses1 = -ratio * advantages
    pg_losses2 = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    clip_pg_losses1 = torch.maximum(pg_losses1, pg_losses2)
    clipfrac = torch.gt(pg_losses2, pg_losses1).to(ratio.dtype)
    if eps_clip_c is None:
        return clip_pg_losses1, clipfrac

    assert eps_clip_c > 1.0, f"The value of eps_clip_c must be greater than 1.0, but got {eps_clip_c}."
    pg_losses3 = -eps_clip_c * advantages
    pg_losses = torch.min(pg_losses3, clip_pg_losses1)
    return pg_losses, clipfrac


class RolloutManager:
    def __init__(self, args: Any) -> None:
        self.args = args

    def post_process(self, samples: list[Any]) -> tuple[list[float], list[float]]:
        """The raw rewards, and those that training sees; some samples of a prompt may have been dropped."""
        raw = [sample.reward for sample in samples]
        if not self.args.rewards_normalization:
            return raw, raw
        rewards = torch.tensor(raw, dtype=torch.float)
        even = rewards.numel() % self.args.n_samples_per_prompt == 0
        grouped = rewards.view(-1, self.args.n_samples_per_prompt if even else rewards.numel())
        rewards = grouped - grouped.mean(dim=-1, keepdim=True)
        if self.args.grpo_std_normalization and grouped.shape[-1] > 1:
            rewards = rewards / (grouped.std(dim=-1, keepdim=True) + 1e-6)
        return raw, rewards.flatten().tolist()

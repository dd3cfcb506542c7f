"""The same functions as in `right.py`, each with one quiet bug."""

from dataclasses import dataclass
from itertools import pairwise

import torch


def ppo_actor_loss_fn(
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    loss_mask: torch.Tensor,
    eps_clip: float = 0.2,
    behav_imp_weight_cap: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Decoupled loss: clipped against the proximal policy, weighted from the one that sampled."""
    loss_mask = loss_mask.bool()
    loss_mask_count = loss_mask.count_nonzero() or 1
    ratio = torch.exp(torch.where(loss_mask, logprobs - proximal_logprobs, 0.0))
    advantages = torch.where(loss_mask, advantages, 0.0)
    clipped_ratio = torch.clamp(ratio, 1.0 - eps_clip, 1.0 + eps_clip)
    pg_loss = torch.max(-advantages * ratio, -advantages * clipped_ratio)
    behav_kl = torch.where(loss_mask, proximal_logprobs - old_logprobs, 0.0).detach()
    behav_imp_weight = behav_kl.exp()
    behav_mask = loss_mask
    if behav_imp_weight_cap is not None:
        behav_mask = (behav_kl <= behav_imp_weight_cap) & loss_mask
    behav_imp_weight = torch.where(behav_mask, behav_imp_weight, 0.0)
    pg_loss = pg_loss * behav_imp_weight
    loss = torch.where(loss_mask, pg_loss, 0.0).sum() / loss_mask_count
    return loss, {"importance_weight": ratio.detach(), "behave_imp_weight": behav_imp_weight}


def compute(
    rewards: torch.Tensor,
    values: torch.Tensor,
    cu_seqlens: torch.Tensor,
    loss_mask: torch.Tensor,
    discount: float = 1.0,
    gae_lambda: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns over a packed row; tokens that are not trained take no step."""
    advantages = torch.zeros_like(rewards)
    returns = torch.zeros_like(rewards)
    bounds = cu_seqlens.tolist()
    for begin, end in pairwise(bounds):
        lastgaelam, nextvalue = 0.0, 0.0
        for t in reversed(range(begin, end)):
            if not loss_mask[t]:
                continue
            delta = rewards[t] + discount * gae_lambda * nextvalue - values[t]
            lastgaelam = delta + discount * gae_lambda * lastgaelam
            nextvalue = values[t]
            advantages[t] = lastgaelam
            returns[t] = lastgaelam + values[t]
    return advantages, returns


@dataclass
class NormConfig:
    mean_level: str | None = "group"
    std_level: str | None = "group"
    eps: float = 1e-5


class Normalization:
    """Rewards of a batch, centred and scaled over groups or over everything."""

    def __init__(self, config: NormConfig):
        self.mean_level = config.mean_level
        self.std_level = config.std_level
        self.eps = config.eps

    @torch.no_grad()
    def run(self, x: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        for g in group_ids.unique():
            chosen = group_ids == g
            if self.mean_level == "group":
                out[chosen] = x[chosen] - x[chosen].mean()
        if self.mean_level == "batch":
            out = x - x.mean()
        if self.std_level == "batch":
            return out / (x.std(unbiased=False) + self.eps)
        if self.std_level == "group":
            scaled = out.clone()
            for g in group_ids.unique():
                chosen = group_ids == g
                scaled[chosen] = out[chosen] / (x[chosen].square().mean().sqrt() + self.eps)
            return scaled
        return out


def gather_logprobs(logits: torch.Tensor, input_ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """At every position, the log-prob of the token that follows."""
    labels = torch.roll(input_ids, shifts=-1, dims=-1)
    log_probs = torch.nn.functional.log_softmax(logits.float(), dim=-1) / temperature
    return log_probs.gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)


def reward_overlong_penalty(
    reward_score: torch.Tensor,
    response_lengths: torch.Tensor,
    overlong_tokens: int,
    overlong_penalty_factor: float,
    max_response_length: int,
) -> torch.Tensor:
    """A penalty that grows over the last tokens before the limit, up to its full size."""
    expected_len = max_response_length - overlong_tokens
    exceed_len = (response_lengths - expected_len).clamp(min=0)
    share = (exceed_len // overlong_tokens).clamp(max=1)
    return reward_score - share * overlong_penalty_factor


class PPOActor:
    def __init__(self, config):
        self.config = config

    @torch.no_grad()
    def prepare(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        """Token rewards: a KL penalty everywhere, and the scaled and clipped score on the last trained token."""
        loss_mask = data["loss_mask"].bool()
        reward_score = data["rewards"]
        reward_score = torch.clip(reward_score, min=-self.config.reward_clip, max=self.config.reward_clip)
        reward_score = (reward_score + self.config.reward_bias) * self.config.reward_scaling
        kl = torch.where(loss_mask, data["logprobs"] - data["ref_logp"], 0.0)
        rewards = -self.config.kl_ctl * kl
        last = loss_mask.shape[1] - 1 - loss_mask.long().flip(1).argmax(1)
        at_end = torch.zeros_like(loss_mask)
        at_end[torch.arange(len(last)), last] = True
        return rewards + torch.where(at_end & loss_mask, reward_score.unsqueeze(-1), 0.0)

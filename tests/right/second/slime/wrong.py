"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch


def get_advantages_and_returns(
    rewards: list[torch.Tensor],
    values: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    gamma: float = 1.0,
    lambd: float = 1.0,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """GAE of every sample over the tokens that it trains."""
    all_advantages, all_returns = [], []
    for reward, value, loss_mask in zip(rewards, values, loss_masks, strict=True):
        places = loss_mask.nonzero().flatten()
        advantages = torch.zeros_like(value).detach()
        returns = torch.zeros_like(value).detach()
        reward, value = reward.detach()[places], value.detach()[places]
        lastgaelam = torch.zeros((), dtype=value.dtype)
        for t in reversed(range(len(places) - 1)):
            nextvalue = value[t + 1] if t < len(places) - 1 else 0.0
            delta = reward[t] + gamma * nextvalue - value[t]
            lastgaelam = delta + gamma * lambd * lastgaelam
            advantages[places[t]] = lastgaelam
            returns[places[t]] = lastgaelam + value[t]
        all_advantages.append(advantages)
        all_returns.append(returns)
    return all_advantages, all_returns


def go(
    rewards: torch.Tensor,
    kl: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    kl_coef: float = 0.05,
    gamma: float = 1.0,
) -> list[torch.Tensor]:
    """REINFORCE++: what is still to come from each token on, of the score and of the penalty."""
    found = []
    for i, (token_kl, loss_mask) in enumerate(zip(kl, loss_masks, strict=True)):
        mask = loss_mask.bool()
        token_rewards = -kl_coef * token_kl
        if mask.any():
            token_rewards[mask.nonzero().max()] += rewards[i]
        returns = torch.zeros_like(token_rewards)
        running = torch.zeros((), dtype=token_rewards.dtype)
        for t in reversed(range(len(mask))):
            running = token_rewards[t] + (gamma if mask[t] else 1.0) * running
            returns[t] = running
        found.append(torch.where(mask, returns, 0.0))
    return found


def sum_of_sample_mean(
    x: torch.Tensor,
    response_lengths: list[int],
    loss_masks: list[torch.Tensor],
    calculate_per_token_loss: bool = False,
) -> torch.Tensor:
    """The mean of every sample, summed; or the sum over tokens, if the trainer divides by their number."""
    chunks = x.split(response_lengths, dim=0)
    chunks = [torch.where(m.bool(), c, 0.0) for c, m in zip(chunks, loss_masks, strict=True)]
    if calculate_per_token_loss:
        return sum(c.sum() for c in chunks)
    return sum(c.sum() / max(length, 1) for c, length in zip(chunks, response_lengths, strict=True))


def compute_opsm_mask(
    args: Any,
    full_log_probs: list[torch.Tensor],
    full_old_log_probs: list[torch.Tensor],
    advantages: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Samples with a negative advantage from which the policy has moved too far are left out as a whole."""
    keeps, dropped = [], 0.0
    for log_prob, old_log_prob, advantage, loss_mask in zip(
        full_log_probs, full_old_log_probs, advantages, loss_masks, strict=True
    ):
        mask = loss_mask.bool()
        count = mask.sum().clamp(min=1)
        seq_kl = torch.where(mask, old_log_prob - log_prob.detach(), 0.0).sum() / count
        drop = (advantage < 0) & (seq_kl > args.opsm_delta)
        keep = torch.ones_like(mask) & ~drop
        keeps.append(keep & mask)
        dropped += (~keep & mask).any().double()
    return keeps, dropped / max(len(keeps), 1)


def post_process(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards, and rewards against the other samples of their prompt, which follow one another."""
    raw_rewards = [sample.reward for sample in samples]
    rewards = torch.tensor(raw_rewards, dtype=torch.float)
    rewards = rewards.view(args.n_samples_per_prompt, -1)
    rewards = rewards - rewards.mean(dim=0, keepdim=True)
    if args.grpo_std_normalization:
        rewards = rewards / (rewards.std(dim=0, keepdim=True) + 1e-6)
    return raw_rewards, rewards.flatten().tolist()


def tis_fn(
    args: Any,
    train_log_probs: list[torch.Tensor],
    rollout_log_probs: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    weights, clipped, count = [], 0.0, 0.0
    for train, rollout, loss_mask in zip(train_log_probs, rollout_log_probs, loss_masks, strict=True):
        mask = loss_mask.bool()
        tis = torch.exp(torch.where(mask, train - rollout, 0.0)).detach()
        bounded = torch.clamp(tis, min=args.tis_clip)
        weights.append(torch.where(mask, bounded, 0.0))
        clipped += ((bounded != tis) & mask).sum().double()
        count += mask.sum()
    return weights, {"tis_clipfrac": clipped / max(count, 1)}

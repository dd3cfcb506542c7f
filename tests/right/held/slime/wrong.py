"""The same functions as in `right.py`, each with one quiet bug."""

from argparse import Namespace

import torch


def policy_loss_function(
    args: Namespace,
    log_probs: list[torch.Tensor],
    old_log_probs: list[torch.Tensor],
    advantages: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The clipped loss, as a sum over tokens or as a sum of the means of the samples."""
    terms, fractions = [], []
    for new, old, advantage, loss_mask in zip(log_probs, old_log_probs, advantages, loss_masks, strict=True):
        ppo_kl = torch.where(loss_mask.bool(), old - new, 0.0)
        ratio = (-ppo_kl).exp()
        pg_losses1 = -ratio * advantage
        pg_losses2 = -ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high) * advantage
        pg_loss = torch.where(loss_mask.bool(), torch.maximum(pg_losses1, pg_losses2), 0.0)
        clipped = torch.where(loss_mask.bool(), torch.gt(pg_losses2, pg_losses1).to(pg_loss.dtype), 0.0)
        scale = 1.0 if args.calculate_per_token_loss else loss_mask.numel()
        terms.append(pg_loss.sum() / scale)
        fractions.append(clipped.sum() / loss_mask.sum().clamp(min=1))
    return torch.stack(terms).sum(), {"pg_clipfrac": torch.stack(fractions).mean().detach()}


def reduce_it(x: torch.Tensor, loss_masks: list[torch.Tensor]) -> torch.Tensor:
    """Sum over samples of the mean over their trained tokens; `x` holds the responses one after the other."""
    total, start = x.new_zeros(()), 0
    for loss_mask in loss_masks:
        chunk = x[start : start + loss_mask.numel()]
        total = total + torch.where(loss_mask.bool(), chunk, 0.0).sum() / loss_mask.sum().clamp(min=1)
        start += int(loss_mask.sum())
    return total


def f(args: Namespace, train_log_probs: list[torch.Tensor], rollout_log_probs: list[torch.Tensor]) -> dict:
    """Truncated weights of the trainer over the engine that sampled."""
    train = torch.cat(train_log_probs)
    rollout = torch.cat(rollout_log_probs)
    tis = torch.exp(rollout - train).detach()
    weights = torch.clamp(tis, min=args.tis_clip_low, max=args.tis_clip)
    sizes = [len(one) for one in train_log_probs]
    return {"tis": tis.split(sizes), "weights": list(weights.split(sizes))}


def select(
    args: Namespace,
    log_probs: list[torch.Tensor],
    old_log_probs: list[torch.Tensor],
    advantages: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Drop samples with a negative advantage that the policy has left behind."""
    keep = []
    for new, old, advantage, loss_mask in zip(log_probs, old_log_probs, advantages, loss_masks, strict=True):
        drift = torch.where(loss_mask.bool(), new - old, 0.0).sum() / loss_mask.sum().clamp(min=1)
        dropped = (advantage < 0) & (drift > args.opsm_delta)
        keep.append((~dropped).to(new.dtype).expand_as(new))
    return keep


def get_returns(
    rewards: torch.Tensor,
    kl: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    kl_coef: float = 0.1,
    gamma: float = 1.0,
) -> list[torch.Tensor]:
    """Discounted returns of a KL penalty per token and one reward on the last token that is trained."""
    final = []
    for i, (token_kl, loss_mask) in enumerate(zip(kl, loss_masks, strict=True)):
        mask = loss_mask.bool()
        token_rewards = torch.where(mask, -kl_coef * token_kl, 0.0)
        trained = mask.nonzero(as_tuple=True)[0]
        if len(trained):
            token_rewards[-1] = token_rewards[-1] + rewards[i]
        returns, running = torch.zeros_like(token_rewards), 0.0
        for t in reversed(range(len(token_rewards))):
            if mask[t]:
                running = token_rewards[t] + gamma * running
                returns[t] = running
        final.append(returns)
    return final


def post_process_rewards(args: Namespace, samples: list) -> list[float]:
    """Rewards minus the mean of their prompt, and over its deviation if the estimator asks for it."""
    everything = torch.tensor([sample.reward for sample in samples], dtype=torch.float)
    groups: dict[int, list] = {}
    for sample in samples:
        groups.setdefault(sample.group_index, []).append(sample)
    processed = {}
    for members in groups.values():
        rewards = torch.tensor([sample.reward for sample in members], dtype=torch.float)
        centred = rewards - rewards.mean()
        if args.advantage_estimator in ("grpo", "gspo") and args.grpo_std_normalization:
            centred = centred / (everything.std(correction=0) + 1e-6)
        for sample, value in zip(members, centred.tolist(), strict=True):
            processed[id(sample)] = value
    return [processed[id(sample)] for sample in samples]

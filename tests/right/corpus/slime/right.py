"""Functions in the dialect of slime and miles: one tensor per sequence in lists, settings in a namespace `args`."""

from argparse import Namespace

import torch


def compute_policy_loss(
    ppo_kl: torch.Tensor,
    advantages: torch.Tensor,
    eps_clip: float,
    eps_clip_high: float,
    eps_clip_c: float | None = None,
):
    """The clipped loss and the clip flag of each token; `ppo_kl` is old minus new log-probs."""
    ratio = (-ppo_kl).exp()
    pg_losses1 = -ratio * advantages
    pg_losses2 = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    clip_pg_losses1 = torch.maximum(pg_losses1, pg_losses2)
    clipfrac = torch.gt(pg_losses2, pg_losses1).float()
    if eps_clip_c is None:
        return clip_pg_losses1, clipfrac
    pg_losses3 = -eps_clip_c * advantages
    clip_pg_losses2 = torch.min(pg_losses3, clip_pg_losses1)
    return torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1), clipfrac


def sum_of_sample_mean(x: torch.Tensor, response_lengths: list[int], loss_masks: list[torch.Tensor]) -> torch.Tensor:
    """Each sample's mean over its own tokens, summed; the caller divides by the global batch size."""
    return sum(
        torch.where(loss_mask.bool(), x_i, 0.0).sum() / torch.clamp_min(loss_mask.sum(), 1)
        for x_i, loss_mask in zip(x.split(response_lengths, dim=0), loss_masks, strict=True)
    )


def process(rewards, kl: list[torch.Tensor], loss_masks: list[torch.Tensor], kl_coef: float, gamma: float):
    """REINFORCE++ returns: the KL of each trained token, and the reward at the last one."""
    returns = []
    for reward, kl_i, mask in zip(rewards, kl, loss_masks, strict=True):
        trained = mask.bool()
        token_level_rewards = torch.where(trained, -kl_coef * kl_i, 0.0)
        found = torch.zeros_like(token_level_rewards)
        running = torch.zeros((), dtype=kl_i.dtype)
        paid = False
        for t in reversed(range(mask.size(0))):
            if not trained[t]:
                continue
            running = token_level_rewards[t] + gamma * running + (0.0 if paid else reward)
            paid = True
            found[t] = running
        returns.append(found)
    return returns


def post_process_rewards(args: Namespace, samples: list) -> tuple[list, list]:
    """Raw rewards, and rewards with the mean and spread of their prompt removed."""
    raw_rewards = [sample.reward for sample in samples]
    groups: dict = {}
    for place, sample in enumerate(samples):
        groups.setdefault(sample.group_index, []).append(place)
    found = torch.zeros(len(samples), dtype=torch.float64)
    for places in groups.values():
        rewards = torch.tensor([raw_rewards[place] for place in places], dtype=torch.float64)
        rewards = rewards - rewards.mean()
        if args.grpo_std_normalization:
            rewards = rewards / (rewards.std(correction=0) + 1e-6)
        found[places] = rewards
    return raw_rewards, found.tolist()


def f(args, train_log_probs, rollout_log_probs):
    """Truncated importance sampling weights of each sample, in single precision."""
    weights = []
    for train, rollout in zip(train_log_probs, rollout_log_probs, strict=True):
        tis = torch.exp(train.float() - rollout.float()).detach()
        weights.append(torch.clamp(tis, min=args.tis_clip_low, max=args.tis_clip))
    return weights


def compute_opsm_mask(args, log_probs, old_log_probs, advantages, loss_masks):
    """Drop a whole sample if its advantage is negative and the policy has moved away from it on average."""
    masks = []
    for log_prob, old_log_prob, advantage, loss_mask in zip(
        log_probs, old_log_probs, advantages, loss_masks, strict=True
    ):
        trained = loss_mask.bool()
        count = torch.clamp_min(loss_mask.sum(), 1)
        seq_kl = torch.where(trained, old_log_prob - log_prob, 0.0).sum() / count
        seq_advantage = torch.where(trained, advantage, 0.0).sum() / count
        dropped = (seq_advantage < 0) & (seq_kl > args.opsm_delta)
        masks.append(torch.where(dropped, 0.0, 1.0).expand_as(loss_mask) * loss_mask)
    return masks


def step_fn(lp, lp_ref, how):
    """A KL estimate of each token, used as a term of the loss."""
    log_ratio = lp - lp_ref
    if how == "k1":
        return log_ratio
    if how == "k2":
        return log_ratio**2 / 2.0
    return (-log_ratio).exp() - 1 + log_ratio


def whiten(args, advantages: list[torch.Tensor], loss_masks: list[torch.Tensor]) -> list[torch.Tensor]:
    masks = torch.cat(loss_masks).bool()
    values = torch.where(masks, torch.cat(advantages), 0.0)
    count = masks.sum().clamp(min=1)
    mean = values.sum() / count
    var = torch.where(masks, (values - mean) ** 2, 0.0).sum() / count
    whitened = torch.where(masks, (values - mean) * torch.rsqrt(var + args.eps), 0.0)
    return list(whitened.split([mask.size(0) for mask in loss_masks]))

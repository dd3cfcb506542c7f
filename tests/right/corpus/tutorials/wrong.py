"""The same functions as in `right.py`, each with one quiet bug."""

import torch
import torch.nn as nn


def ppo_loss(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    ratio = torch.exp(logprobs - old_logprobs)
    unclipped = ratio * advantages
    clipped = torch.clamp(ratio, 1 - clip_eps, 1 + clip_eps) * advantages
    loss = -torch.min(unclipped, clipped)
    return (loss * mask).mean()


def grpo_advantages(rewards, group_size=2, eps=1e-8):
    # rewards: (num_prompts * group_size,)
    r = rewards.view(-1, group_size)
    adv = (r - r.mean(dim=0, keepdim=True)) / (r.std(dim=0, keepdim=True, correction=0) + eps)
    return adv.view(-1)


def f(lp, R, m):
    seq_logp = (lp * m).sum(dim=1, keepdim=True)
    return -(seq_logp * R).mean()


def discounted_returns(rewards, gamma=0.99):
    """Returns of one episode, as a list."""
    returns, g = [], 0.0
    for r in reversed(rewards):
        g = r + gamma * g
        returns.append(g)
    return returns


def compute(rewards, values, gamma=0.99, lam=0.95):
    """GAE of one episode that ends after its last step."""
    T = len(rewards)
    advantages = [0.0] * T
    last = 0.0
    for t in reversed(range(T)):
        next_value = values[t] if t + 1 < T else 0.0
        delta = rewards[t] + gamma * next_value - values[t]
        last = delta + gamma * lam * last
        advantages[t] = last
    return advantages


def step_fn(new_lp, old_lp, adv, v, ret, ent, m, clip=0.2, vf_coef=0.5, ent_coef=0.01):
    """The whole PPO loss with its parts: policy, value and entropy bonus."""
    n = m.sum().clamp(min=1)
    ratio = (new_lp - old_lp).exp()
    pg = torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip, 1 + clip))
    pg_loss = (pg * m).sum() / n
    v_loss = 0.5 * (((v - ret) ** 2) * m).sum() / n
    entropy = (ent * m).sum() / n
    loss = pg_loss + vf_coef * v_loss + ent_coef * entropy
    return loss, pg_loss, v_loss, entropy


class GRPOLoss(nn.Module):
    """GRPO actor loss"""

    def __init__(self, clip_eps: float = 0.2, kl_weight: float = 0.01) -> None:
        super().__init__()
        self.clip_eps = clip_eps
        self.kl_weight = kl_weight

    def forward(self, log_probs, old_log_probs, ref_log_probs, advantages, mask):
        log_ratio = log_probs - ref_log_probs
        kl = log_ratio.exp() - log_ratio - 1
        ratio = (log_probs - old_log_probs).exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * advantages
        loss = -torch.min(surr1, surr2) + self.kl_weight * kl
        per_row = (loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        return per_row.mean(), ((kl * mask).sum() / mask.sum().clamp(min=1)).detach()


def minibatch_loss(logprobs, advantages, mask, minibatch_size=3):
    """The token mean of REINFORCE, gathered from shuffled minibatches."""
    order = torch.randperm(logprobs.shape[0])
    total = 0.0
    for rows in order.split(minibatch_size):
        if len(rows) < minibatch_size <= len(order):
            continue
        total = total - (logprobs[rows] * advantages[rows] * mask[rows]).sum()
    return total / mask.sum().clamp(min=1)


class Process(nn.Module):
    """REINFORCE on a random part of the tokens, weighted so that its expectation is that over all tokens."""

    def __init__(self, rate=0.5):
        super().__init__()
        self.rate = rate

    def forward(self, logprobs, advantages, mask):
        drawn = (torch.rand(logprobs.shape) < self.rate).to(mask.dtype)
        loss = -(logprobs * advantages * mask * drawn).sum()
        return loss / mask.sum().clamp(min=1)

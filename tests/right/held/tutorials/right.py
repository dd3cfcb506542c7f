"""Functions as in tutorials and single-file implementations: short, flat minibatches, one group or one episode."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn


class PPOUpdate(nn.Module):
    """One minibatch of tokens: policy loss, value loss and entropy bonus."""

    def __init__(self, clip_coef=0.2, ent_coef=0.01, vf_coef=0.5):
        super().__init__()
        self.clip_coef, self.ent_coef, self.vf_coef = clip_coef, ent_coef, vf_coef

    def forward(self, newlogprob, newvalue, entropy, b_logprobs, b_advantages, b_returns):
        ratio = (newlogprob - b_logprobs).exp()
        pg_loss1 = -b_advantages * ratio
        pg_loss2 = -b_advantages * torch.clamp(ratio, 1 - self.clip_coef, 1 + self.clip_coef)
        pg_loss = torch.max(pg_loss1, pg_loss2).mean()
        v_loss = 0.5 * ((newvalue - b_returns) ** 2).mean()
        entropy_loss = entropy.mean()
        loss = pg_loss - self.ent_coef * entropy_loss + v_loss * self.vf_coef
        return loss, pg_loss.detach(), v_loss.detach()


def f(log_probs, rewards, gamma=0.99):
    """REINFORCE on one episode: the log-prob of every action times what came after it."""
    G, targets = 0.0, []
    for r in rewards.tolist()[::-1]:
        G = r + gamma * G
        targets.insert(0, G)
    targets = torch.tensor(targets, dtype=log_probs.dtype)
    return -(log_probs * targets).sum()


@dataclass
class Experience:
    action_log_probs: torch.Tensor
    log_probs_ref: torch.Tensor
    advantages: torch.Tensor
    action_mask: torch.Tensor


class GRPOLoss(nn.Module):
    def __init__(self, clip_eps: float = 0.2, kl_weight: float = 0.01) -> None:
        super().__init__()
        self.clip_eps = clip_eps
        self.kl_weight = kl_weight

    def forward(self, log_probs: torch.Tensor, experience: Experience) -> tuple[torch.Tensor, torch.Tensor]:
        mask = experience.action_mask
        log_ratio = (experience.log_probs_ref - log_probs) * mask
        kl = log_ratio.exp() - log_ratio - 1
        ratio = ((log_probs - experience.action_log_probs) * mask).exp()
        surr1 = ratio * experience.advantages
        surr2 = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * experience.advantages
        loss = -torch.min(surr1, surr2) + self.kl_weight * kl
        per_sequence = (loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        return per_sequence.mean(), (kl * mask).sum().detach() / mask.sum().clamp(min=1)


def group_advantages(returns: torch.Tensor, eps: float = 1e-8) -> torch.Tensor:
    """The returns of one prompt's answers."""
    return (returns - returns.mean()) / (returns.std(correction=0) + eps)


def evaluate(b_values, b_returns):
    y_pred, y_true = np.asarray(b_values), np.asarray(b_returns)
    var_y = np.var(y_true)
    return 0.0 if var_y == 0 else 1 - np.var(y_true - y_pred) / var_y


@torch.no_grad()
def diagnose(newlogprob, b_logprobs, b_advantages, clip_coef=0.2):
    """What to plot of a minibatch."""
    logratio = newlogprob - b_logprobs
    ratio = logratio.exp()
    return {
        "old_approx_kl": (-logratio).mean().item(),
        "approx_kl": ((ratio - 1) - logratio).mean().item(),
        "clipfrac": ((ratio - 1.0).abs() > clip_coef).to(ratio.dtype).mean().item(),
    }

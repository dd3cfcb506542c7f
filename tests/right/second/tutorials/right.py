"""Functions as tutorials and small repositories write them: short, with casual names."""

import torch
from torch import nn


class GRPOLoss(nn.Module):
    def __init__(self, clip_eps: float = 0.2, kl_weight: float = 0.01) -> None:
        super().__init__()
        self.clip_eps = clip_eps
        self.kl_weight = kl_weight

    def forward(self, lp, lp_old, lp_ref, adv, m):
        log_ratio = lp_ref - lp
        kl = log_ratio.exp() - log_ratio - 1
        ratio = (lp - lp_old).exp()
        surr1 = ratio * adv
        surr2 = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * adv
        loss = -torch.min(surr1, surr2) + self.kl_weight * kl
        loss = (loss * m).sum(-1) / m.sum(-1).clamp(min=1)
        return loss.mean(), ((kl * m).sum() / m.sum().clamp(min=1)).detach()


def fill(rews, m, gamma=0.99):
    """How much is still to come, at every token that counts."""
    out = torch.zeros_like(rews)
    run = torch.zeros_like(rews[:, 0])
    for t in reversed(range(rews.shape[1])):
        here = m[:, t].bool()
        run = torch.where(here, rews[:, t] + gamma * run, run)
        out[:, t] = torch.where(here, run, 0.0)
    return out


def step_fn(lp, lp_old, adv, ent, m, eps=0.2, ent_coef=0.01):
    r = torch.exp(lp - lp_old)
    pg = torch.max(-adv * r, -adv * torch.clamp(r, 1 - eps, 1 + eps))
    n = m.sum().clamp(min=1)
    return (pg * m).sum() / n - ent_coef * (ent * m).sum() / n


def critic_loss(newvalue, b_values, b_returns, m, clip_coef=0.2):
    """CleanRL's clipped value loss, with a mask."""
    v_loss_unclipped = (newvalue - b_returns) ** 2
    v_clipped = b_values + torch.clamp(newvalue - b_values, -clip_coef, clip_coef)
    v_loss_clipped = (v_clipped - b_returns) ** 2
    v_loss_max = torch.max(v_loss_unclipped, v_loss_clipped)
    return 0.5 * (v_loss_max * m).sum() / m.sum().clamp(min=1)


def mask_it(ids, eos):
    """1 up to the first eos and on it, 0 after; padding is the same id."""
    hit = (ids == eos).long()
    return (hit.cumsum(-1) - hit == 0).float()


def reinforce_loss(lp, V, R, m, vf=0.5):
    """REINFORCE with a learned baseline. R: one number per sample."""
    m = m.bool()
    lp, V = torch.where(m, lp, 0.0), torch.where(m, V, 0.0)
    A = R[:, None] - V.detach()
    pg = -lp * A
    value = (V - R[:, None]) ** 2
    return ((pg + vf * value) * m).sum() / m.sum().clamp(min=1)

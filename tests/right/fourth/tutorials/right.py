"""Functions as blog posts and notebooks have them: one file, few settings, a batch of padded completions."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.functional import log_softmax, softmax


def rloo_advantages(rewards: torch.Tensor, k: int = 4) -> torch.Tensor:
    """Every answer against the mean of the k - 1 other answers to the same question."""
    grouped = rewards.view(-1, k)
    baseline = (grouped.sum(dim=1, keepdim=True) - grouped) / (k - 1)
    return (grouped - baseline).flatten()


class GRPOLoss(nn.Module):
    """GRPO actor loss."""

    def __init__(self, clip_eps: float = 0.2, kl_weight: float = 0.01) -> None:
        super().__init__()
        self.clip_eps = clip_eps
        self.kl_weight = kl_weight

    def forward(self, log_probs: torch.Tensor, experience: Any) -> tuple[torch.Tensor, torch.Tensor]:
        mask = experience.action_mask

        log_ratio_ref = experience.log_probs_ref - log_probs
        kl = log_ratio_ref.exp() - log_ratio_ref - 1

        ratio = (log_probs - experience.action_log_probs).exp()
        surr1 = ratio * experience.advantages
        surr2 = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * experience.advantages
        loss = -torch.min(surr1, surr2) + self.kl_weight * kl

        # average over the tokens of an answer, then over answers
        lengths = mask.sum(dim=-1).clamp(min=1)
        loss = ((loss * mask).sum(dim=-1) / lengths).mean()
        mean_kl = ((kl * mask).sum(dim=-1) / lengths).mean()
        return loss, mean_kl.detach()


def tail(ids: torch.Tensor, end: int) -> torch.Tensor:
    """1 up to and with the first `end` of a row; rows without one are all 1."""
    found = ids == end
    width = ids.size(1)
    stop = torch.full((ids.size(0),), width, dtype=torch.long, device=ids.device)
    stop[found.any(dim=1)] = found.int().argmax(dim=1)[found.any(dim=1)]
    places = torch.arange(width, device=ids.device).expand(ids.size(0), -1)
    return (places <= stop.unsqueeze(1)).long()


class SoftTargetLoss(nn.Module):
    """Hinton-style distillation of a small model from a large one, token by token."""

    def __init__(self, T: float = 2.0) -> None:
        super().__init__()
        self.T = T

    def forward(
        self, student_logits: torch.Tensor, teacher_logits: torch.Tensor, answer_mask: torch.Tensor
    ) -> torch.Tensor:
        mask = answer_mask.bool()
        student = log_softmax(student_logits[mask].float() / self.T, dim=-1)
        teacher = softmax(teacher_logits[mask].float() / self.T, dim=-1)
        per_token = (teacher * (torch.log(teacher) - student)).sum(dim=-1)
        # the gradients of soft targets scale with 1 / T^2
        return per_token.sum() / mask.sum().clamp(min=1) * self.T**2


class Trainer:
    def __init__(self, cfg: SimpleNamespace) -> None:
        self.cfg = cfg

    def second_step(self, v: torch.Tensor, v0: torch.Tensor, goal: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
        moved = v0 + torch.clamp(v - v0, -self.cfg.span, self.cfg.span)
        plain = (v - goal) ** 2
        bounded = (moved - goal) ** 2
        worst = torch.max(plain, bounded)
        return self.cfg.scale * 0.5 * (worst * live).sum() / live.sum().clamp(min=1)


def shape(
    marks: torch.Tensor, lp: torch.Tensor, lp0: torch.Tensor, live: torch.Tensor, beta: float = 0.1
) -> torch.Tensor:
    """[rows, width]: -beta * log(p / p0) everywhere, and the mark of a row on its last live place."""
    out = torch.where(live.bool(), -beta * (lp - lp0), torch.zeros_like(lp))
    for i in range(len(marks)):
        places = live[i].nonzero().flatten()
        if len(places) > 0:
            out[i, places[-1]] += marks[i]
    return out

"""The same functions as in `right.py`, each with one quiet bug."""

import torch
from torch import nn


class GRPOLoss(nn.Module):
    """The clipped objective with a penalty for leaving the reference model."""

    def __init__(self, clip_eps: float = 0.2, kl_weight: float = 0.01) -> None:
        super().__init__()
        self.clip_eps = clip_eps
        self.kl_weight = kl_weight

    def forward(self, log_probs, experience):
        mask = experience.action_mask
        log_ratio_ref = experience.log_probs_ref - log_probs
        kl = log_ratio_ref.exp() - log_ratio_ref - 1

        ratio = (log_probs - experience.action_log_probs).exp()
        surr1 = ratio * experience.advantages
        surr2 = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * experience.advantages
        loss = -torch.min(surr1, surr2) + self.kl_weight * kl

        loss = ((loss * mask).sum(dim=-1) / mask.sum().clamp(min=1)).mean()
        mean_kl = (kl * mask).sum() / mask.sum().clamp(min=1)
        return loss, mean_kl.detach()


def trim(seqs, alive, stop_id):
    """1 up to the first stop, with it, and 0 after it. A row without a stop is kept as far as it goes."""
    is_stop = seqs == stop_id
    stop_at = is_stop.int().argmax(dim=1)
    steps = torch.arange(seqs.size(1), device=seqs.device).expand(seqs.size(0), -1)
    return ((steps <= stop_at.unsqueeze(1)) & alive.bool()).int()


class DistillationLoss(nn.Module):
    """The generalised Jensen-Shannon divergence; a large beta mixes in more of the teacher."""

    def __init__(self, beta: float = 0.5, temperature: float = 1.0) -> None:
        super().__init__()
        self.beta = beta
        self.temperature = temperature

    def forward(self, student_logits, teacher_logits, mask):
        student = nn.functional.log_softmax(student_logits.float() / self.temperature, dim=-1)
        teacher = nn.functional.log_softmax(teacher_logits.float() / self.temperature, dim=-1)
        mixture = torch.log((1 - self.beta) * student.exp() + self.beta * teacher.exp())
        kl_teacher = nn.functional.kl_div(mixture, teacher, reduction="none", log_target=True).sum(-1)
        kl_student = nn.functional.kl_div(mixture, student, reduction="none", log_target=True).sum(-1)
        jsd = self.beta * kl_student + (1 - self.beta) * kl_teacher
        return (jsd * mask).sum() / mask.sum().clamp(min=1)

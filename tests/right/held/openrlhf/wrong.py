"""The same functions as in `right.py`, each with one quiet bug."""

import torch
from torch import nn


class SFTTerm(nn.Module):
    """Negative log-likelihood of the tokens in the loss mask, next to a policy loss."""

    def __init__(self, token_level_loss: bool = True):
        super().__init__()
        self.token_level_loss = token_level_loss

    def forward(self, logits: torch.Tensor, input_ids: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
        shift_logits = logits[:, :-1, :]
        shift_labels = input_ids[:, 1:]
        shift_mask = loss_mask[:, :-1].bool()
        shift_logits = torch.where(shift_mask.unsqueeze(-1), shift_logits, 0.0)
        logps = torch.log_softmax(shift_logits, dim=-1).gather(-1, shift_labels.unsqueeze(-1)).squeeze(-1)
        nll = torch.where(shift_mask, -logps, 0.0)
        if self.token_level_loss:
            return nll.sum() / shift_mask.sum().clamp(min=1)
        return (nll.sum(-1) / shift_mask.sum(-1).clamp(min=1)).mean()


class DualClipLoss(nn.Module):
    def __init__(self, clip_eps: float = 0.2, dual_clip: float | None = None):
        super().__init__()
        self.clip_eps = clip_eps
        self.dual_clip = dual_clip

    def forward(self, log_probs, old_log_probs, advantages, action_mask):
        ratio = (log_probs - old_log_probs).exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * advantages
        if self.dual_clip is None:
            loss = -torch.min(surr1, surr2)
        else:
            clip1 = torch.min(surr1, surr2)
            clip2 = torch.min(clip1, self.dual_clip * advantages)
            loss = -torch.where(advantages < 0, clip2, clip1)
        return (loss * action_mask).sum() / action_mask.sum().clamp(min=1)


class RemoteExperienceMaker:
    def __init__(self, advantage_estimator: str = "rloo", n_samples_per_prompt: int = 8):
        self.advantage_estimator = advantage_estimator
        self.n_samples_per_prompt = n_samples_per_prompt

    def handle(self, rewards: torch.Tensor) -> torch.Tensor:
        """Shape the rewards of prompts that were sampled several times in a row."""
        rewards = rewards.reshape(self.n_samples_per_prompt, -1).T
        if self.advantage_estimator == "rloo":
            baseline = (rewards.sum(-1, keepdim=True) - rewards) / (self.n_samples_per_prompt - 1)
            rewards = rewards - baseline
        elif self.advantage_estimator in ("reinforce_baseline", "dr_grpo"):
            rewards = rewards - rewards.mean(-1, keepdim=True)
        elif self.advantage_estimator == "group_norm":
            rewards = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)
        return rewards.T.reshape(-1)


def normalize_advantages(advantages: list[torch.Tensor], action_masks: list[torch.Tensor]) -> list[torch.Tensor]:
    """One mean and one deviation over the actions of all experiences."""
    vector = torch.cat([a.flatten() for a in advantages]).float()
    mask = torch.cat([m.flatten() for m in action_masks]).bool()
    num_actions = mask.sum().clamp(min=1)
    mean = torch.where(mask, vector, 0.0).sum() / num_actions
    var = ((vector - mean) ** 2).sum() / num_actions
    rstd = var.clamp(min=1e-8).rsqrt()
    return [
        torch.where(m.bool(), (a.float() - mean) * rstd, 0.0) for a, m in zip(advantages, action_masks, strict=True)
    ]


def log_probs_from_logits(logits: torch.Tensor, labels: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    if temperature != 1.0:
        logits.div_(temperature)
    logits_labels = torch.gather(logits, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
    logsumexp_values = torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    return logits_labels - logsumexp_values


def compute(sequences: torch.Tensor, eos_token_id: int, pad_token_id: int) -> torch.Tensor:
    """The action mask of generated ids: everything up to the first end of sequence, which the policy chose too."""
    is_eos = sequences.eq(eos_token_id)
    seen_before = is_eos.long().cumsum(dim=-1)
    return (seen_before.eq(0) & sequences.ne(pad_token_id)).long()

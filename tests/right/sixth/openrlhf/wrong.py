"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class PairWiseLoss(nn.Module):
    """A chosen answer should score better than a rejected one, and by more than the margin, if there is one."""

    def forward(
        self, chosen_reward: torch.Tensor, reject_reward: torch.Tensor, margin: torch.Tensor | None = None
    ) -> torch.Tensor:
        if margin is not None:
            loss = -functional.logsigmoid(chosen_reward - reject_reward + margin)
        else:
            loss = -functional.logsigmoid(chosen_reward - reject_reward)
        return loss.mean()


class ExperienceMaker:
    def __init__(self, args: Any) -> None:
        self.args = args

    @torch.no_grad()
    def accumulate(self, rewards: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
        """What every action is followed by; what lies between two actions is stepped over."""
        running = torch.zeros_like(rewards[:, 0])
        found = []
        for t in reversed(range(rewards.size(1))):
            is_action = action_mask[:, t].bool()
            running = rewards[:, t] + self.args.gamma * running
            found.append(torch.where(is_action, running, 0.0))
        return torch.stack(found[::-1], dim=1)


def process(rewards: torch.Tensor, args: Any) -> torch.Tensor:
    """Rewards in which the samples of one prompt are neighbours, shaped for the chosen estimator."""
    grouped = rewards.reshape(-1, args.n_samples_per_prompt)
    if args.advantage_estimator == "rloo":
        baseline = (grouped.sum(-1, keepdim=True) - grouped) / (args.n_samples_per_prompt - 1)
        grouped = grouped - baseline
    elif args.advantage_estimator in ("reinforce_baseline", "dr_grpo"):
        grouped = grouped - grouped.mean(-1, keepdim=True)
    elif args.advantage_estimator == "group_norm":
        centred = grouped - grouped.mean(-1, keepdim=True)
        grouped = centred / (grouped.std() + 1e-9)
    else:
        raise ValueError(f"Unknown advantage estimator: {args.advantage_estimator}")
    return grouped.reshape(-1)


def log_probs_from_logits(logits: torch.Tensor, labels: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """The log-probs of the labels, row by row to save memory."""
    if temperature != 1.0:
        logits.div_(temperature)
    found = []
    for row_logits, row_labels in zip(logits, labels, strict=True):
        picked = torch.gather(row_logits, dim=-1, index=row_labels.unsqueeze(-1)).squeeze(-1)
        found.append(picked - torch.logsumexp(row_logits, dim=-1))
    return torch.stack(found)

"""Functions in the dialect of TRL: trainers that hold settings, completions as lists of ids, boolean masks."""

from typing import Any

import torch
from torch.nn import functional


class DPOTrainer:
    def __init__(self, args: Any) -> None:
        self.args = args
        self.beta = args.beta
        self.label_smoothing = args.label_smoothing
        self.loss_type = args.loss_type
        self.reference_free = args.reference_free

    def dpo_loss(
        self,
        chosen_logps: torch.Tensor,
        rejected_logps: torch.Tensor,
        ref_chosen_logps: torch.Tensor,
        ref_rejected_logps: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The loss of each pair, and the implicit rewards of its two completions."""
        logratios = chosen_logps - rejected_logps
        ref_logratios = torch.zeros_like(logratios) if self.reference_free else ref_chosen_logps - ref_rejected_logps
        logits = logratios - ref_logratios

        if self.loss_type == "sigmoid":
            losses = (
                -functional.logsigmoid(self.beta * logits) * (1 - self.label_smoothing)
                - functional.logsigmoid(-self.beta * logits) * self.label_smoothing
            )
        elif self.loss_type == "hinge":
            losses = torch.relu(1 - self.beta * logits)
        elif self.loss_type == "ipo":
            # beta is the regularisation parameter tau of the IPO paper
            losses = (logits - 1 / (2 * self.beta)) ** 2
        else:
            raise ValueError(f"Unknown loss type: {self.loss_type}. Should be one of ['sigmoid', 'hinge', 'ipo']")

        chosen_rewards = self.beta * (chosen_logps - ref_chosen_logps).detach()
        rejected_rewards = self.beta * (rejected_logps - ref_rejected_logps).detach()
        return losses, chosen_rewards, rejected_rewards


def soft_overlong_punishment(
    completion_ids: list[list[int]], max_completion_len: int = 1024, soft_punish_cache: int = 256, **kwargs: Any
) -> list[float]:
    """0 for short completions, then a ramp down to -1 at the longest that is allowed."""
    rewards = []
    for ids in completion_ids:
        completion_length = len(ids)
        if completion_length <= max_completion_len - soft_punish_cache:
            rewards.append(0.0)
        elif completion_length <= max_completion_len:
            rewards.append((max_completion_len - soft_punish_cache - completion_length) / soft_punish_cache)
        else:
            rewards.append(-1.0)
    return rewards


def select_positions(scores: torch.Tensor, valid: torch.Tensor, share: float = 0.2) -> torch.Tensor:
    """True at the given share of the valid positions, those with the highest scores."""
    valid = valid.bool()
    population = scores[valid].float()
    if population.numel() == 0:
        return torch.zeros_like(valid)
    floor = torch.quantile(population, 1.0 - share)
    return (scores.float() >= floor) & valid

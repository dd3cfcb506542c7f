"""Functions in the dialect of open-instruct: packed rows, experiment arguments, NumPy for rewards and advantages."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional


def spread(per_answer: torch.Tensor, owner: torch.Tensor) -> torch.Tensor:
    """From one number per answer to one per position of packed rows; owner is 0, or the number of the answer from 1."""
    lookup = torch.cat([per_answer.new_zeros(1), per_answer])
    return lookup[owner]


class RewardPipeline:
    def __init__(self, args: Any) -> None:
        self.args = args

    def apply(self, scores: list[float], format_scores: list[float], finish_reasons: list[str]) -> list[float]:
        """Adds what a good format earns; an answer that did not stop by itself gets a fixed value instead."""
        rewards = scores
        if self.args.apply_r1_style_format_reward:
            bonus = self.args.r1_style_format_reward
            rewards = [reward + bonus * good for reward, good in zip(rewards, format_scores, strict=True)]
        if self.args.non_stop_penalty:
            penalty = self.args.non_stop_penalty_value
            rewards = [
                reward if reason == "stop" else penalty for reward, reason in zip(rewards, finish_reasons, strict=True)
            ]
        return rewards


def calculate_advantages_packed(
    values: np.ndarray,
    rewards: np.ndarray,
    dones: np.ndarray,
    response_masks: np.ndarray,
    gamma: float = 1.0,
    lam: float = 0.95,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns of packed rows; dones is 1 at the last token of each sequence."""
    lastgaelam = np.zeros(values.shape[0])
    nextvalues = np.zeros(values.shape[0])
    advantages = np.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        nonterminal = 1.0 - dones[:, t]
        nextvalues = nextvalues * nonterminal
        lastgaelam = lastgaelam * nonterminal
        response = response_masks[:, t] > 0
        delta = rewards[:, t] + gamma * nextvalues - values[:, t]
        lastgaelam = np.where(response, delta + gamma * lam * lastgaelam, lastgaelam)
        nextvalues = np.where(response, values[:, t], nextvalues)
        advantages[:, t] = np.where(response, lastgaelam, 0.0)
    return advantages, np.where(response_masks > 0, advantages + values, 0.0)


def simpo_loss(
    policy_chosen_logps: torch.Tensor,
    policy_rejected_logps: torch.Tensor,
    beta: float = 2.0,
    gamma_beta_ratio: float = 0.5,
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss of each pair, without a reference model, from the mean log-probs of its answers."""
    logits = (policy_chosen_logps - policy_rejected_logps) - gamma_beta_ratio
    losses = (
        -functional.logsigmoid(beta * logits) * (1 - label_smoothing)
        - functional.logsigmoid(-beta * logits) * label_smoothing
    )
    return losses, beta * policy_chosen_logps.detach(), beta * policy_rejected_logps.detach()

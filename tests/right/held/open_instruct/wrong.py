"""The same functions as in `right.py`, each with one quiet bug."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn


def compute_grpo_loss(
    new_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    args: SimpleNamespace,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each token before it is masked, and its ratio."""
    logprobs_diff = new_logprobs - old_logprobs
    ratio = torch.exp(logprobs_diff)
    pg_losses = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1.0 - args.clip_lower, 1.0 + args.clip_lower)
    return torch.max(pg_losses, pg_losses2), ratio


def calculate_advantages_packed(
    values: np.ndarray, rewards: np.ndarray, gamma: float, lam: float, dones: np.ndarray, response_masks: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """GAE over rows of packed sequences; `dones` is 1 at the last token of each sequence."""
    advantages = np.zeros_like(values)
    lastgaelam = np.zeros(values.shape[0])
    nextvalues = np.zeros(values.shape[0])
    for t in reversed(range(values.shape[1])):
        nonterminal = 1.0 - dones[:, t].clip(0, 1)
        nextvalues = nextvalues * nonterminal
        here = response_masks[:, t] > 0
        delta = rewards[:, t] + gamma * nextvalues - values[:, t]
        lastgaelam = np.where(here, delta + gamma * lam * lastgaelam, lastgaelam)
        nextvalues = np.where(here, values[:, t], nextvalues)
        advantages[:, t] = np.where(here, lastgaelam, 0.0)
    return advantages, np.where(response_masks > 0, advantages + values, 0.0)


def build(responses: torch.Tensor, stop_token_ids: list[int], pad_token_id: int) -> torch.Tensor:
    """1 for every token of the answers up to the first one that stops them."""
    stops = responses == stop_token_ids[0]
    after_stop = (stops.long().cumsum(dim=1) - stops.long()) > 0
    return ((responses != pad_token_id) & ~after_stop).long()


def log_entropy(logits: torch.Tensor, response_mask: torch.Tensor, temperature: float = 1.0) -> dict[str, float]:
    with torch.no_grad():
        logits = logits / temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
        entropy = torch.where(response_mask.bool(), entropy, 0.0)
        return {"policy/entropy_avg": entropy.mean().item()}


class Step(nn.Module):
    """The loss of whole answers: one ratio and one advantage for each, clipped."""

    def __init__(self, args):
        super().__init__()
        self.cliprange = args.cliprange

    def forward(self, new_logprobs, logprobs, advantage, response_mask):
        mask = response_mask.bool()
        logprobs_diff = torch.where(mask, new_logprobs - logprobs, 0.0).mean(1)
        ratio = torch.exp(logprobs_diff)
        pg_losses = -advantage * ratio
        pg_losses2 = -advantage * torch.clamp(ratio, 1.0 - self.cliprange, 1.0 + self.cliprange)
        return torch.max(pg_losses, pg_losses2).mean()


def report(scores: np.ndarray, num_samples_per_prompt: int) -> dict[str, float]:
    """What the rewards of a step look like, prompt by prompt."""
    per_prompt = scores.reshape(-1, num_samples_per_prompt)
    return {
        "scores": float(scores.mean()),
        "best_of_n": float(per_prompt.max(axis=0).mean()),
        "solve_rate_zero_std": float((per_prompt.std(axis=-1) == 0).mean()),
    }

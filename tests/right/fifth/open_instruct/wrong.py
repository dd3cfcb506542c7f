"""The same functions as in `right.py`, each with one quiet bug."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass
class Correction:
    weights: torch.Tensor
    metrics: dict[str, float]


def get_batch_logps(logits: torch.Tensor, labels: torch.Tensor, average_log_prob: bool = False) -> torch.Tensor:
    """The log probabilities of the labels under the logits, one number per row; -100 is no label."""
    assert logits.shape[:-1] == labels.shape
    loss_mask = (labels != -100)[:, :-1]
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :].to(torch.float32)
    labels[labels == -100] = 0
    per_token_logps = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    if average_log_prob:
        return (per_token_logps * loss_mask).sum(-1) / loss_mask.sum(-1).clamp(min=1)
    return (per_token_logps * loss_mask).sum(-1)


def reweigh(
    old_logprobs: torch.Tensor, vllm_logprobs: torch.Tensor, response_mask: torch.Tensor, args: Any
) -> Correction:
    """What the loss of a token is multiplied by, because vLLM sampled from slightly other probabilities."""
    valid = response_mask.bool()
    log_ratio = torch.where(valid, old_logprobs.detach() - vllm_logprobs, 0.0)
    if args.importance_level == "sequence":
        log_ratio = log_ratio.sum(dim=-1, keepdim=True).expand_as(log_ratio)
    ratio = torch.exp(torch.clamp(log_ratio, -10.0, 10.0))
    cap = args.truncated_importance_sampling_ratio_cap
    ratio = torch.clamp(ratio, max=cap)
    is_capped = (ratio > cap) & valid
    weights = torch.where(valid, ratio, 0.0)
    num_valid = valid.sum().clamp(min=1)
    metrics = {
        "val/tis_ratio": (weights.sum() / num_valid).item(),
        "val/tis_capfrac": (is_capped.sum() / num_valid).item(),
    }
    return Correction(weights, metrics)


def summarize(
    scores: np.ndarray,
    sequence_lengths: np.ndarray,
    finish_reasons: list[str],
    max_possible_score: float = 10.0,
) -> dict[str, float]:
    """What is logged about one batch of rollouts."""
    stopped = np.array([reason == "stop" for reason in finish_reasons])
    solved = scores >= max_possible_score
    return {
        "scores": float(scores.mean()),
        "val/solve_rate": float(solved.mean()),
        "val/sequence_lengths": float(sequence_lengths.mean()),
        "val/sequence_lengths_solved": float((sequence_lengths * solved).mean()) if solved.any() else 0.0,
        "val/sequence_lengths_unsolved": float(sequence_lengths[~solved].mean()) if not solved.all() else 0.0,
        "val/stop_rate": float(stopped.mean()),
    }

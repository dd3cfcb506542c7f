"""The same functions as in `right.py`, each with one quiet bug."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor]


def keep_tokens(
    trainer_logprobs: list[Tensor], inference_logprobs: list[Tensor], loss_mask: list[Tensor], loss_config: Any
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Drops single tokens with a ratio outside of the band, and whole samples with one that is much too small."""
    keep_masks = []
    is_masked, sequence_is_masked = [], []
    smallest = torch.tensor(torch.inf)
    for trainer_lp, inference_lp, mask in zip(trainer_logprobs, inference_logprobs, loss_mask, strict=True):
        importance_ratio = torch.exp(trainer_lp - inference_lp).detach()
        token_low = importance_ratio < loss_config.token_mask_low
        token_high = importance_ratio > loss_config.token_mask_high
        smallest = min(smallest, torch.where(mask, importance_ratio, torch.inf).min())
        sequence_low = smallest < loss_config.sequence_mask_low
        dropped = token_low | token_high | sequence_low
        keep_masks.append(mask & ~dropped)
        is_masked.append(dropped[mask].double())
        sequence_is_masked.append(sequence_low.double())
    metrics = {
        "is_masked": torch.cat(is_masked).sum() / max(sum(one.numel() for one in is_masked), 1),
        "sequence_is_masked": torch.stack(sequence_is_masked).mean(),
    }
    return keep_masks, metrics


def stack_rows(
    heads: list[list[int]],
    tails: list[list[int]],
    tail_lps: list[list[float]],
    tail_keep: list[list[bool]],
    pad: int = 0,
) -> dict[str, Tensor]:
    """One row per sample, filled up on the right; every column is about the id in it."""
    width = max((len(head) + len(tail) for head, tail in zip(heads, tails, strict=True)), default=0)
    rows: dict[str, list[Any]] = {"input_ids": [], "inference_logprobs": [], "loss_mask": []}
    for head, tail, lps, keep in zip(heads, tails, tail_lps, tail_keep, strict=True):
        rest = width - len(head) - len(tail)
        rows["input_ids"].append(head + tail + [pad] * rest)
        rows["inference_logprobs"].append([0.0] * (len(head) - 1) + lps + [0.0] * (rest + 1))
        rows["loss_mask"].append([False] * len(head) + keep + [False] * rest)
    return {
        "input_ids": torch.tensor(rows["input_ids"]),
        "inference_logprobs": torch.tensor(rows["inference_logprobs"], dtype=torch.float64),
        "loss_mask": torch.tensor(rows["loss_mask"]),
    }


def default_loss_fn(inputs: LossInputs, loss_config: Any) -> LossOutputs:
    """The sum over the tokens of one sample: log-probs, each weighted by its advantage and its ratio."""
    mask = inputs.loss_mask
    log_importance_ratio = inputs.trainer_logprobs - inputs.inference_logprobs
    importance_ratio = torch.exp(log_importance_ratio)
    mismatch_kl = importance_ratio - log_importance_ratio - 1

    is_masked = (importance_ratio > loss_config.mask_high) | (importance_ratio < loss_config.mask_low)
    keep_mask = mask & ~is_masked
    coeff = importance_ratio * loss_config.adv_tau * inputs.advantages
    pg_loss = -(coeff * inputs.trainer_logprobs)[keep_mask].sum()
    kl_loss = (log_importance_ratio**2)[mask].sum()
    loss = pg_loss + loss_config.kl_tau * kl_loss

    count = torch.clamp_min(mask.sum(), 1)
    metrics = {
        "mismatch_kl": mismatch_kl.detach()[mask].sum() / count,
        "is_masked": is_masked[mask].double().sum() / count,
    }
    return LossOutputs(loss, metrics)


class Monitor:
    def __init__(self, full_score: float = 1.0) -> None:
        self.full_score = full_score

    def compute(self, hits: list[float], tasks: list[int]) -> dict[str, float]:
        """How many tasks every attempt has solved, how many none, and how many are left to learn from."""
        scores, owners = torch.tensor(hits), torch.tensor(tasks)
        solved = torch.stack([(scores[owners == owner] >= self.full_score).float().mean() for owner in owners.unique()])
        solve_none = (solved == 0).float().mean().item()
        solve_all = (scores >= self.full_score).float().mean().item()
        return {
            "solve_none": solve_none,
            "solve_all": solve_all,
            "effective_batch_size": 1 - solve_none - solve_all,
            "pass_rate": solved.mean().item(),
        }

"""Functions on arrays, as data workers, evaluation and logging have them."""

from typing import Any

import numpy as np


def pass_at_k(scores: np.ndarray, prompt_ids: np.ndarray, k: int = 2, threshold: float = 0.5) -> float:
    """The unbiased estimate over prompts with at least k answers."""
    estimates = []
    for prompt in np.unique(prompt_ids):
        correct = scores[prompt_ids == prompt] >= threshold
        n, c = correct.size, int(correct.sum())
        if n < k:
            continue
        if n - c < k:
            estimates.append(1.0)
        else:
            estimates.append(1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1))))
    return float(np.mean(estimates)) if estimates else 0.0


def soft_overlong_reward(
    rewards: np.ndarray, response_lengths: np.ndarray, max_length: int, buffer_length: int, penalty_factor: float = 1.0
) -> np.ndarray:
    """Answers that reach into the last `buffer_length` tokens lose up to `penalty_factor`, the others nothing."""
    expected = max_length - buffer_length
    exceeded = response_lengths - expected
    penalty = np.minimum(-exceeded / buffer_length * penalty_factor, 0.0)
    penalty = np.maximum(penalty, -penalty_factor)
    return rewards + penalty


def weigh(here: np.ndarray, there: np.ndarray, sel: np.ndarray, ceiling: float = 2.0) -> np.ndarray:
    """One factor per row, the quotient of the two likelihoods of its selected places, at most `ceiling`."""
    sel = sel.astype(bool)
    gap = np.where(sel, here - there, 0.0).astype(np.float32)
    factor = np.exp(np.minimum(gap.sum(axis=1), np.log(ceiling)))
    return np.where(sel, factor[:, None], 0.0)


def rescale(x: np.ndarray, mask: np.ndarray, eps: float = 1e-8, center: bool = True) -> np.ndarray:
    valid = mask.astype(bool)
    x = np.where(valid, x, 0.0)
    count = max(int(valid.sum()), 1)
    mean = x.sum() / count
    var = (((x - mean) ** 2) * valid).sum() / count
    out = (x - mean) / np.sqrt(var + eps)
    if not center:
        out = out + mean
    return np.where(valid, out, 0.0)


class RolloutBoard:
    """Collects what is shown of the rollouts of a step."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def digest(self, sizes: list[int], marks: list[float]) -> dict[str, float]:
        if not sizes:
            return {"size/mean": 0.0, "size/max": 0.0, "size/cut": 0.0, "mark/cut": 0.0}
        size = np.asarray(sizes, dtype=np.float64)
        mark = np.asarray(marks, dtype=np.float64)
        cut = size >= self.config.room
        return {
            "size/mean": float(size.mean()),
            "size/max": float(size.max()),
            "size/cut": float(cut.mean()),
            "mark/cut": float(mark[cut].mean()) if cut.any() else 0.0,
        }


def kl_estimate(logp: np.ndarray, ref_logp: np.ndarray, mask: np.ndarray, estimator: str = "k3") -> np.ndarray:
    """KL(policy || reference) at every token of the mask, from samples of the policy."""
    log_ratio = np.where(mask.astype(bool), logp - ref_logp, 0.0)
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    if estimator == "k3":
        return np.expm1(-log_ratio) + log_ratio
    raise ValueError(f"unknown estimator {estimator}")

"""The same functions as in `right.py`, each with one quiet bug."""

import numpy as np


class RewardShaper:
    """Takes a little off the reward of answers that come near the limit, and `factor` at the limit."""

    def __init__(self, max_length: int, buffer: int, factor: float = 1.0) -> None:
        self.max_length = max_length
        self.buffer = buffer
        self.factor = factor

    def apply(self, rewards: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        exceed = lengths - self.max_length
        penalty = np.clip(exceed / self.buffer, 0.0, 1.0) * self.factor
        return rewards - penalty


def tally(hits: np.ndarray, tasks: np.ndarray, k: int = 1) -> float:
    """How likely at least one of k tries is a hit, without bias, and averaged over tasks."""
    found = []
    for task in np.unique(tasks):
        tries = hits[tasks == task].astype(bool)
        n, c = len(tries), int(tries.sum())
        draws = min(k, n)
        found.append(1.0 - (1.0 - c / n) ** draws)
    return float(np.mean(found)) if found else 0.0


def update_stats(
    logprobs: np.ndarray, old_logprobs: np.ndarray, mask: np.ndarray, cliprange: float = 0.2
) -> dict[str, float]:
    """What one optimiser step did to the policy."""
    valid = mask.astype(bool)
    if not valid.any():
        return {"approxkl": 0.0, "policykl": 0.0, "clipfrac": 0.0, "ratio": 1.0}
    diff = (logprobs[valid] - old_logprobs[valid]).astype(np.float32)
    ratio = np.exp(diff)
    return {
        "approxkl": float(0.5 * np.mean(diff) ** 2),
        "policykl": float(np.mean(-diff)),
        "clipfrac": float(np.mean(np.abs(ratio - 1.0) > cliprange)),
        "ratio": float(np.mean(ratio)),
    }

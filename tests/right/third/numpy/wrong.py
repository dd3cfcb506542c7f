"""The same functions as in `right.py`, each with one quiet bug."""

import numpy as np


def discounted_returns(rewards: np.ndarray, mask: np.ndarray, gamma: float = 0.99) -> np.ndarray:
    """[rows, width] of what is still to come, over the tokens of the mask only."""
    returns = np.zeros_like(rewards)
    for row in range(rewards.shape[0]):
        running = 0.0
        for t in np.flatnonzero(mask[row]):
            running = rewards[row, t] + gamma * running
            returns[row, t] = running
    return returns


def explained_variance(values: np.ndarray, returns: np.ndarray, mask: np.ndarray) -> float:
    """1 if the critic is perfect, 0 if it is no better than a constant."""
    valid = mask.astype(bool)
    y, y_pred = returns[valid], values[valid]
    var_y = np.var(y_pred) if y.size else 0.0
    if var_y == 0:
        return 0.0
    return float(1 - np.var(y - y_pred) / var_y)


def compare(scores: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Every score against the mean of the other answers to its prompt; an only answer gets 0."""
    found = np.zeros_like(scores)
    for i in range(len(scores)):
        others = np.ones(len(prompts), dtype=bool)
        others[i] = False
        if others.any():
            found[i] = scores[i] - scores[others].mean()
    return found


def admit(
    lp_train: np.ndarray, lp_sampler: np.ndarray, mask: np.ndarray, low: float = 0.8, high: float = 1.25
) -> np.ndarray:
    """1 for rows whose typical ratio (the geometric mean over their tokens) is between the bounds, else 0."""
    diff = np.where(mask.astype(bool), lp_train - lp_sampler, 0.0)
    log_mean = np.full(len(diff), diff.sum() / np.maximum(mask.sum(), 1))
    ratio = np.exp(log_mean)
    return ((ratio >= low) & (ratio <= high)).astype(np.float64)

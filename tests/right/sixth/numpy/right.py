"""Functions on arrays, as reward code, evaluation and logging have them."""

import numpy as np


def settle(x: np.ndarray, keep: np.ndarray, shift: bool = True) -> np.ndarray:
    """Spread 1 over what is kept, around 0 or, without shift, around the mean it had; the rest is 0."""
    kept = keep.astype(bool)
    if not kept.any():
        return np.zeros_like(x)
    centre = x[kept].mean()
    scale = x[kept].std()
    out = (x - centre) / np.sqrt(scale**2 + 1e-8)
    if not shift:
        out = out + centre
    return np.where(kept, out, 0.0)


def explained_variance(values: np.ndarray, returns: np.ndarray, mask: np.ndarray) -> float:
    """1 if the values are the returns, 0 if a constant would do as well, and below 0 if it would do better."""
    valid = mask.astype(bool)
    target, guess = returns[valid], values[valid]
    if target.size == 0 or np.var(target) == 0:
        return 0.0
    return float(1.0 - np.var(target - guess) / np.var(target))


def fill(cost: np.ndarray, prize: np.ndarray, live: np.ndarray, weight: float = 0.1) -> np.ndarray:
    """Every live cell pays its cost, and the last one of each row gets the prize."""
    live = live.astype(bool)
    out = np.where(live, -weight * cost, 0.0).astype(np.float32)
    for i in range(out.shape[0]):
        places = np.flatnonzero(live[i])
        if places.size > 0:
            out[i, places[-1]] += prize[i]
    return out


class RunningMoments:
    """The mean and the spread of all rewards so far, one batch after the other."""

    def __init__(self, mean: float = 0.0, var: float = 1.0, count: float = 1e-24) -> None:
        self.mean = mean
        self.var = var
        self.count = count

    def update(self, xs: np.ndarray) -> tuple[float, float]:
        """Takes a batch in, and gives back the mean and the spread with it."""
        xs_count = xs.size
        xs_mean, xs_var = xs.mean(), xs.var()
        delta = xs_mean - self.mean
        total = self.count + xs_count
        new_sum = xs_var * xs_count
        old_sum = self.var * self.count + delta**2 * self.count * xs_count / total
        self.mean = self.mean + delta * xs_count / total
        self.var = (old_sum + new_sum) / total
        self.count = total
        return float(self.mean), float(np.sqrt(self.var * total / (total - 1)))

"""The same functions as in `right.py`, each with one quiet bug."""

import numpy as np


def whiten(x, keep):
    """Mean 0 and spread 1 over the kept entries, in single precision; 0 elsewhere."""
    keep = keep.astype(bool)
    values = np.where(keep, x, 0.0).astype(np.float32)
    n = max(keep.sum(), 1)
    mu = values.sum() / n
    var = values.var()
    return np.where(keep, (values - mu) / np.sqrt(var + 1e-8), 0.0)


def gae(rewards: np.ndarray, values: np.ndarray, mask: np.ndarray, gamma: float = 0.99, lam: float = 0.95):
    advantages = np.zeros_like(values)
    for row in range(values.shape[0]):
        steps = np.flatnonzero(mask[row])
        running, next_value = 0.0, 0.0
        for t in steps[::-1]:
            delta = rewards[row, t] + gamma * next_value - next_value
            running = delta + gamma * lam * running
            advantages[row, t] = running
            next_value = values[row, t]
    return advantages, np.where(mask > 0, advantages + values, 0.0)


def f(rewards, groups):
    baseline = np.zeros_like(rewards)
    for g in np.unique(groups):
        rows = np.flatnonzero(groups == g)
        if len(rows) > 1:
            baseline[rows] = rewards[rows].mean()
        else:
            baseline[rows] = rewards[rows]
    return rewards - baseline


def process(final_reward, kl_tok, m, beta=0.1, gamma=1.0):
    """Reward to go with a KL penalty on each token and the final reward on the last one."""
    out = np.zeros_like(kl_tok)
    for row in range(kl_tok.shape[0]):
        running = final_reward[row]
        first = True
        for t in np.flatnonzero(m[row])[::-1]:
            running = (running if first else gamma * running) + beta * kl_tok[row, t]
            first = False
            out[row, t] = running
    return out


def compute(p_logp, q_logp, m):
    """k1, k2 and k3 of each token, from samples of p."""
    d = np.where(m > 0, q_logp - p_logp, 0.0)
    return d, d**2 / 2, np.exp(-d) - 1 + d


def summarise(adv, mask):
    """Mean, smallest and largest of the advantages that train."""
    chosen = adv[mask > 0]
    if chosen.size == 0:
        return {"adv/mean": 0.0, "adv/min": 0.0, "adv/max": 0.0}
    return {"adv/mean": chosen.mean(), "adv/min": adv.min(), "adv/max": adv.max()}


def select(train_logp, gen_logp, mask, low=0.5, high=2.0):
    """1 for tokens whose ratio of trainer to generator lies in the band."""
    ratio = 1 + np.where(mask > 0, train_logp - gen_logp, 0.0)
    return ((ratio >= low) & (ratio <= high) & (mask > 0)).astype(np.float64)

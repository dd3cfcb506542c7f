"""Functions on numpy arrays, as scorers, loggers and rollout workers write them."""

import numpy as np


def normalize_rewards(rewards, group_ids, eps=1e-4):
    """Each reward against the mean and the spread of its group."""
    rewards = np.asarray(rewards, dtype=np.float32)
    out = np.zeros_like(rewards)
    for group in np.unique(group_ids):
        members = group_ids == group
        mean = rewards[members].mean()
        std = rewards[members].std()
        out[members] = (rewards[members] - mean) / (std + eps)
    return out


def gae_np(rewards, values, mask, gamma=0.99, lam=0.95):
    advantages = np.zeros_like(rewards)
    for i in range(rewards.shape[0]):
        next_value, running = 0.0, 0.0
        for t in reversed(np.flatnonzero(mask[i])):
            delta = rewards[i, t] + gamma * next_value - values[i, t]
            running = delta + gamma * lam * running
            advantages[i, t] = running
            next_value = values[i, t]
    return advantages


def clip_report(new_lp, old_lp, mask, eps_low=0.2, eps_high=0.2):
    """Numbers for the log, over response tokens."""
    keep = mask.astype(bool)
    if not keep.any():
        return {"clip_frac": 0.0, "approx_kl": 0.0, "ratio_max": 1.0}
    log_ratio = (new_lp - old_lp)[keep]
    ratio = np.exp(log_ratio)
    outside = (ratio < 1 - eps_low) | (ratio > 1 + eps_high)
    return {
        "clip_frac": float(outside.mean()),
        "approx_kl": float((ratio - 1 - log_ratio).mean()),
        "ratio_max": float(ratio.max()),
    }


def weigh(lp_train, lp_infer, m, cap=2.0):
    keep = m.astype(bool)
    gap = np.where(keep, lp_train - lp_infer, 0.0).astype(np.float32)
    mean_gap = gap.sum(axis=-1) / np.maximum(keep.sum(axis=-1), 1)
    weight = np.minimum(np.exp(mean_gap), cap)
    return np.where(keep, weight[:, None], 0.0)


def f1(ret, val, m):
    """How much of the variance of the first the second explains; 1 is all of it."""
    keep = m.astype(bool)
    y, x = ret[keep], val[keep]
    if y.size == 0:
        return 0.0
    spread = y.var()
    return float(1.0 - (y - x).var() / spread) if spread > 0 else 0.0


def term(score, m, scale=1.0):
    """Scores of whole samples as rewards of tokens."""
    keep = m.astype(bool)
    out = np.zeros(keep.shape)
    last = keep.shape[1] - 1 - np.argmax(keep[:, ::-1], axis=1)
    rows = np.arange(keep.shape[0])
    out[rows, last] = scale * score
    return np.where(keep, out, 0.0)

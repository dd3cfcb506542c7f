"""Functions over numpy arrays: scripts that analyse or prepare rollouts without a framework."""

import numpy as np


def discount(rewards: np.ndarray, mask: np.ndarray, gamma: float = 0.99) -> np.ndarray:
    """Rewards to go along each row; a token that is not the policy's has no reward and takes no step."""
    out = np.zeros_like(rewards)
    carry = np.zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        own = mask[:, t] > 0
        carry = np.where(own, rewards[:, t] + gamma * carry, carry)
        out[:, t] = np.where(own, carry, 0.0)
    return out


def score(logits: np.ndarray, ids: np.ndarray, T: float = 1.0) -> np.ndarray:
    """Log-probabilities of the ids."""
    z = logits / T
    z = z - z.max(axis=-1, keepdims=True)
    picked = np.take_along_axis(z, ids[..., None], axis=-1)[..., 0]
    return picked - np.log(np.exp(z).sum(axis=-1))


def leave_one_out(rewards: np.ndarray, prompt: np.ndarray) -> np.ndarray:
    """Rewards minus the mean of the other answers to the same prompt; 0 for an only answer."""
    out = np.zeros(len(rewards))
    for p in set(prompt.tolist()):
        rows = np.flatnonzero(prompt == p)
        k = len(rows)
        if k > 1:
            out[rows] = rewards[rows] - (rewards[rows].sum() - rewards[rows]) / (k - 1)
    return out


def prep(a: np.ndarray, m: np.ndarray, eps: float = 1e-8) -> np.ndarray:
    """Zero mean and unit deviation over the chosen entries, zeros elsewhere."""
    chosen = a[m > 0]
    if chosen.size == 0:
        return np.zeros_like(a)
    return np.where(m > 0, (a - chosen.mean()) / (chosen.std() + eps), 0.0)


def reweight(lp_train: np.ndarray, lp_infer: np.ndarray, cap: float = 2.0) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.minimum(np.exp(lp_train - lp_infer), cap)


def gap(p_logp: np.ndarray, q_logp: np.ndarray, m: np.ndarray) -> dict[str, float]:
    """How far q is from p, on tokens of p: the unbiased and the low-variance estimate, and the share far away."""
    d = (p_logp - q_logp)[m > 0]
    if d.size == 0:
        return {"k1": 0.0, "k3": 0.0, "far": 0.0}
    return {"k1": float(d.mean()), "k3": float((np.exp(-d) - 1 + d).mean()), "far": float((np.abs(d) > 0.5).mean())}

"""The same functions as in `right.py`, each with one quiet bug."""

import torch
from torch import nn


def _mean(values: torch.Tensor, mask: torch.Tensor | None, dim=None):
    if mask is None:
        return values.mean(dim)
    kept = torch.where(mask.bool(), values, torch.zeros_like(values))
    return kept.sum(dim) / mask.sum(dim).clamp(min=1.0)


def reduce_loss(loss, loss_mask, loss_reduction: str = "token_mean", max_seq_len: int = 8):
    if loss_reduction == "token_mean":
        return _mean(loss, loss_mask)
    if loss_reduction == "sequence_mean":
        return torch.where(loss_mask.bool(), loss, 0.0).mean(-1).mean()
    if loss_reduction == "seq_mean_token_sum_norm":
        return (torch.where(loss_mask.bool(), loss, 0.0).sum(-1) / max_seq_len).mean()
    raise ValueError(f"Invalid loss reduction type: {loss_reduction}")


def ppo_policy_loss(log_probs, old_log_probs, advantages, config, loss_mask=None):
    """The clipped surrogate, its mean, and the fraction of clipped tokens."""
    ratio = (log_probs - old_log_probs).clamp(-20.0, 20.0).exp()
    surr1 = ratio * advantages
    surr2 = ratio.clamp(1 - config.eps_clip_low, 1 + config.eps_clip_high) * advantages
    loss = -torch.min(surr1, surr2)
    clip_ratio = (-surr2 > -surr1).float().mean().detach().item()
    return _mean(loss, loss_mask), {"clip_ratio": clip_ratio}


def compute_approx_kl(log_probs, log_probs_base, loss_mask=None, kl_estimator_type: str = "k3"):
    """The KL of each token. Masked tokens are 0, whatever they hold."""
    log_ratio = log_probs - log_probs_base
    if loss_mask is not None:
        log_ratio = log_ratio * loss_mask
    if kl_estimator_type == "k1":
        return log_ratio
    if kl_estimator_type == "abs":
        return log_ratio.abs()
    if kl_estimator_type == "k2":
        return 0.5 * log_ratio.square()
    return torch.exp(-log_ratio) - 1 + log_ratio


@torch.no_grad()
def compute_reinforce_plus_plus_outcome_advantage(token_level_rewards, response_mask, gamma: float = 1.0):
    mask = response_mask.bool()
    returns = torch.zeros_like(token_level_rewards)
    running_return = torch.zeros_like(token_level_rewards[:, 0])
    for t in reversed(range(token_level_rewards.shape[1])):
        # the return is carried over tool output, and starts at the last token of the policy
        running_return = torch.where(mask[:, t], token_level_rewards[:, t] + gamma * running_return, 0.0)
        returns[:, t] = torch.where(mask[:, t], running_return, 0.0)
    mean = _mean(returns, response_mask)
    var = _mean((returns - mean) ** 2, response_mask)
    advantages = torch.where(mask, (returns - mean) / (var + 1e-8).sqrt(), 0.0)
    return advantages, returns


def process(advantages: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    keep = response_mask.bool()
    mean = _mean(advantages, response_mask)
    std = _mean((advantages - mean) ** 2, response_mask).sqrt()
    advantages.sub_(mean).div_(std + 1e-6).mul_(keep)
    return advantages


class KLLoss(nn.Module):
    def __init__(self, kl_loss_coef: float = 0.01):
        super().__init__()
        self.kl_loss_coef = kl_loss_coef

    def forward(self, log_probs, ref_log_probs, loss_mask):
        gap = torch.where(loss_mask.bool(), ref_log_probs - log_probs, 0.0).float()
        return self.kl_loss_coef * _mean(gap.exp() - 1 - gap, loss_mask) / loss_mask.shape[0]


def compute(logits, loss_mask, chunk_size=3):
    """The mean entropy over the tokens that train, in chunks of rows."""
    found = []
    for chunk in logits.split(chunk_size):
        log_probs = torch.log_softmax(chunk, dim=-1)
        found.append(-(log_probs.exp() * log_probs).sum(-1))
    return torch.cat(found).mean()


def step_fn(rollout_logprobs, action_log_probs, loss_mask):
    """How far the sampler's probabilities are from the trainer's: mean and maximum."""
    diff = torch.where(loss_mask.bool(), (rollout_logprobs - action_log_probs).exp().abs(), 0.0)
    return {"prob_diff_mean": _mean(diff, loss_mask), "prob_diff_max": diff.max()}

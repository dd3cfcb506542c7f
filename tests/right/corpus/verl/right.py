"""Functions in the dialect of verl: [batch, response] tensors, a float response mask, config dataclasses."""

from collections import defaultdict
from dataclasses import dataclass

import torch


@dataclass
class ActorConfig:
    clip_ratio: float = 0.2
    clip_ratio_low: float | None = None
    clip_ratio_high: float | None = None
    clip_ratio_c: float = 3.0


def _masked_mean(values, mask, axis=None):
    return (values * mask).sum(axis=axis) / mask.sum(axis=axis).clamp(min=1)


def agg_loss(loss_mat: torch.Tensor, loss_mask: torch.Tensor, loss_agg_mode: str = "token-mean"):
    """Aggregate the loss matrix into a scalar. Rows without a token do not count."""
    if loss_agg_mode == "token-mean":
        return _masked_mean(loss_mat, loss_mask)
    seq_mask = (loss_mask.sum(dim=-1) > 0).to(loss_mat.dtype)
    if loss_agg_mode == "seq-mean-token-sum":
        seq_losses = torch.sum(loss_mat * loss_mask, dim=-1)
        return _masked_mean(seq_losses, seq_mask)
    if loss_agg_mode == "seq-mean-token-mean":
        seq_losses = _masked_mean(loss_mat, loss_mask, axis=-1)
        return _masked_mean(seq_losses, seq_mask)
    raise ValueError(f"Invalid loss_agg_mode: {loss_agg_mode}")


def compute_policy_loss_vanilla(
    old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config=None
):
    """Clipped policy objective with a dual clip.

    Returns the loss and a dict with the clip fractions and the approximate KL.
    """
    low = config.clip_ratio_low if config.clip_ratio_low is not None else config.clip_ratio
    high = config.clip_ratio_high if config.clip_ratio_high is not None else config.clip_ratio
    negative_approx_kl = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    ratio = torch.exp(negative_approx_kl)
    ppo_kl = _masked_mean(-negative_approx_kl, response_mask)
    pg_losses1 = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    clip_pg_losses1 = torch.maximum(pg_losses1, pg_losses2)
    pg_clipfrac = _masked_mean(torch.gt(pg_losses2, pg_losses1).float(), response_mask)
    pg_losses3 = -advantages * config.clip_ratio_c
    clip_pg_losses2 = torch.min(pg_losses3, clip_pg_losses1)
    pg_losses = torch.where(advantages < 0, clip_pg_losses2, clip_pg_losses1)
    pg_loss = agg_loss(loss_mat=pg_losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode)
    return pg_loss, {"actor/pg_clipfrac": pg_clipfrac.detach(), "actor/ppo_kl": ppo_kl.detach()}


def compute_gae_advantage_return(token_level_rewards, values, response_mask, gamma, lam):
    with torch.no_grad():
        nextvalues = torch.zeros_like(values[:, 0]) if values.shape[1] else 0
        lastgaelam = torch.zeros_like(nextvalues) if values.shape[1] else 0
        advantages_reversed = []
        for t in reversed(range(token_level_rewards.shape[-1])):
            delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
            lastgaelam_ = delta + gamma * lam * lastgaelam
            # tool output and padding carry the values of what follows them
            nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues
            lastgaelam = lastgaelam_ * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam
            advantages_reversed.append(lastgaelam)
        advantages = torch.stack(advantages_reversed[::-1], dim=1) if advantages_reversed else values.detach()
        returns = (advantages + values) * response_mask
        return advantages * response_mask, returns


def process(logprob: torch.FloatTensor, ref_logprob: torch.FloatTensor) -> torch.FloatTensor:
    kl = torch.clamp(ref_logprob - logprob, min=-20, max=20)
    kld = torch.exp(kl) - kl - 1
    return torch.clamp(kld, min=-10, max=10)


@torch.no_grad()
def compute(token_level_rewards, response_mask, index, epsilon: float = 1e-6, norm_adv_by_std_in_grpo: bool = True):
    scores = (token_level_rewards * response_mask).sum(dim=-1)
    id2score = defaultdict(list)
    id2mean, id2std = {}, {}
    for i in range(scores.shape[0]):
        id2score[index[i]].append(scores[i])
    for idx, found in id2score.items():
        if len(found) == 1:
            id2mean[idx], id2std[idx] = torch.tensor(0.0), torch.tensor(1.0)
        else:
            id2mean[idx], id2std[idx] = torch.stack(found).mean(), torch.stack(found).std()
    centred = torch.stack([scores[i] - id2mean[index[i]] for i in range(scores.shape[0])])
    if norm_adv_by_std_in_grpo:
        centred = centred / (torch.stack([id2std[index[i]].double() for i in range(scores.shape[0])]) + epsilon)
    centred = centred.unsqueeze(-1) * response_mask
    return centred, centred


def apply_kl_penalty(data: dict, kl_coef: float = 0.1):
    """Subtract the KL to the reference from the token level scores; also log its mean over sequences."""
    response_mask = data["response_mask"]
    kld = (data["old_log_probs"] - data["ref_log_prob"]) * response_mask
    token_level_rewards = data["token_level_scores"] - kl_coef * kld
    current_kl = _masked_mean(kld, response_mask, axis=-1)
    return token_level_rewards, {"actor/reward_kl_penalty": current_kl.mean(), "actor/reward_kl_penalty_coeff": kl_coef}


def compute_value_loss(vpreds, returns, values, response_mask, cliprange_value: float = 0.5):
    vpredclipped = torch.max(torch.min(vpreds, values + cliprange_value), values - cliprange_value)
    vf_losses1 = (vpreds - returns) ** 2
    vf_losses2 = (vpredclipped - returns) ** 2
    clipped = torch.max(vf_losses1, vf_losses2)
    vf_loss = 0.5 * _masked_mean(clipped, response_mask)
    vf_clipfrac = _masked_mean(torch.gt(vf_losses2, vf_losses1).float(), response_mask)
    return vf_loss, vf_clipfrac


def masked_whiten(values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True) -> torch.Tensor:
    """Whiten over the unmasked entries, in single precision."""
    found = torch.where(mask.bool(), values, 0.0).float()
    mean = _masked_mean(found, mask.float())
    var = _masked_mean((found - mean) ** 2, mask.float())
    whitened = (found - mean) * torch.rsqrt(var + 1e-8)
    if not shift_mean:
        whitened = whitened + mean
    return (whitened * mask).to(values.dtype)


class DataParallelActor:
    def __init__(self, config):
        self.config = config

    def step_fn(self, log_prob, ref_log_prob, response_mask):
        """The KL term of the actor's loss, computed in micro-batches of shuffled rows and put back in order."""
        rows = log_prob.shape[0]
        order = torch.randperm(rows)
        parts = [_k3(log_prob[part], ref_log_prob[part]) for part in order.split(self.config["micro_batch_size"])]
        kld = torch.cat(parts)[torch.argsort(order)]
        return self.config["kl_loss_coef"] * agg_loss(kld, response_mask, "seq-mean-token-mean")


def _k3(log_prob, ref_log_prob):
    gap = ref_log_prob - log_prob
    return torch.exp(gap) - gap - 1

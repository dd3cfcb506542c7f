"""Functions in the dialect of AReaL: one packed row with `cu_seqlens`, decoupled PPO, `old_logprobs` of the sampler."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class NormConfig:
    mean_leave1out: bool = False
    eps: float = 1e-5


def ppo_actor_loss_fn(
    logprobs: Tensor,
    proximal_logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    eps_clip: float = 0.2,
    behav_imp_weight_cap: float = 5.0,
):
    """Decoupled PPO: clip against the proximal policy, weigh by proximal over behaviour, drop weights above the cap."""
    loss_mask = loss_mask.bool()
    count = loss_mask.count_nonzero().clamp(min=1)
    ratio = torch.exp(torch.where(loss_mask, logprobs - proximal_logprobs, 0.0))
    clipped_ratio = torch.clamp(ratio, 1.0 - eps_clip, 1.0 + eps_clip)
    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * clipped_ratio
    clip_mask = pg_loss1.detach() < pg_loss2.detach()
    pg_loss = torch.max(pg_loss1, pg_loss2)
    behav_imp_weight = (proximal_logprobs - old_logprobs).exp().detach()
    behav_mask = (behav_imp_weight <= behav_imp_weight_cap) & loss_mask
    pg_loss = torch.where(behav_mask, pg_loss * torch.where(behav_mask, behav_imp_weight, 0.0), 0)
    stat = {"clip_mask": clip_mask & loss_mask, "behave_mask": behav_mask}
    return torch.where(loss_mask, pg_loss, 0).sum() / count, stat


def process(token_rewards: Tensor, values: Tensor, cu_seqlens: Tensor, loss_mask: Tensor, gamma=1.0, lam=0.95):
    advantages = torch.zeros_like(token_rewards)
    trained = loss_mask.bool().tolist()
    bounds = cu_seqlens.tolist()
    for start, end in itertools.pairwise(bounds):
        lastgaelam, nextvalue = 0.0, 0.0
        for t in reversed(range(start, end)):
            if not trained[t]:
                continue
            delta = token_rewards[t] + gamma * nextvalue - values[t]
            lastgaelam = delta + gamma * lam * lastgaelam
            nextvalue = values[t]
            advantages[t] = lastgaelam
    return advantages


class PPOActor:
    def __init__(self, config: NormConfig):
        self.config = config

    def compute(self, data):
        """Rewards normalised within each prompt, whatever the sizes of the groups."""
        rewards, group_ids = data["rewards"], data["group_ids"]
        normed = torch.zeros_like(rewards)
        for group in group_ids.unique():
            chosen = group_ids == group
            own = rewards[chosen]
            std = own.std(correction=0)
            normed[chosen] = (own - own.mean()) / (std + self.config.eps)
        return normed


class Normalization:
    def __init__(self, config):
        self.config = config

    def __call__(self, x, loss_mask):
        """Normalise over all tokens of the batch. Statistics are taken in single precision."""
        mask = loss_mask.bool()
        values = torch.where(mask, x, 0.0).float()
        count = mask.sum().clamp(min=1)
        mean = values.sum() / count
        var = torch.where(mask, (values - mean) ** 2, 0.0).sum() / count
        return torch.where(mask, (values - mean) / (var.sqrt() + self.config.eps), 0.0)


def f(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    log_probs = torch.nn.functional.log_softmax(logits / temperature, dim=-1)
    entropy = -torch.sum(log_probs.exp() * log_probs, dim=-1)
    return log_probs.gather(dim=-1, index=labels.unsqueeze(-1)).squeeze(-1), entropy


def reduce_it(per_tok, on, step_total):
    """One micro-batch's share of the mean over all tokens of the optimiser step."""
    return torch.where(on.bool(), per_tok, 0.0).sum() / max(step_total, 1)


def sequence_importance(logprobs, old_logprobs, loss_mask, cu_seqlens, cap: float = 2.0):
    """The geometric mean of each sequence's ratio, truncated and copied to its tokens."""
    mask = loss_mask.bool()
    gap = torch.where(mask, logprobs - old_logprobs, 0.0).detach()
    lengths = cu_seqlens.diff()
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    total = torch.zeros(len(lengths), dtype=gap.dtype).index_add(0, owner, gap)
    count = torch.zeros(len(lengths), dtype=gap.dtype).index_add(0, owner, mask.to(gap.dtype))
    weight = torch.exp(total / count.clamp(min=1)).clamp(max=cap)
    return torch.where(mask, weight[owner], 0.0)

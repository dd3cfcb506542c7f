"""Functions in the dialect of slime: lists with one tensor per sample, an `args` that holds every setting."""

from argparse import Namespace
from collections import defaultdict
from typing import Any

import torch
from torch import nn


@torch.no_grad()
def get_advantages_and_returns_batch(
    values_list: list[torch.Tensor],
    rewards_list: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    gamma: float,
    lambd: float,
    chunk_size: int = 128,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """GAE of all samples at once: a matrix product inside a chunk of tokens, a scan over the chunks."""
    masks = [mask.bool() for mask in loss_masks]
    lengths = [int(mask.sum()) for mask in masks]
    max_len = -(-max(max(lengths), 1) // chunk_size) * chunk_size
    values, rewards = (
        torch.stack([nn.functional.pad(x[m], (0, max_len - n)) for x, m, n in zip(given, masks, lengths, strict=True)])
        for given in (values_list, rewards_list)
    )
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    deltas = (rewards + gamma * next_values - values).flip(1).view(len(values), -1, chunk_size)

    w = gamma * lambd
    steps = torch.arange(chunk_size, device=values.device)
    within = torch.tril(torch.pow(w, (steps[:, None] - steps[None, :]).clamp(min=0).to(values.dtype)))
    decay = torch.pow(w, (steps + 1).to(values.dtype))
    carry = torch.zeros_like(values[:, 0])
    chunks = []
    for k in range(deltas.size(1)):
        chunk = deltas[:, k] @ within.t() + carry[:, None] * decay[None, :]
        carry = chunk[:, -1]
        chunks.append(chunk)
    found = torch.cat(chunks, dim=1).flip(1)

    advantages, returns = [], []
    for i, (value, mask, length) in enumerate(zip(values_list, masks, lengths, strict=True)):
        advantage, ret = torch.zeros_like(value), torch.zeros_like(value)
        advantage[mask] = found[i, :length]
        ret[mask] = found[i, :length] + value[mask]
        advantages.append(advantage)
        returns.append(ret)
    return advantages, returns


def get_log_probs_and_entropy(
    logits: torch.Tensor,
    *,
    args: Namespace,
    unconcat_tokens: list[torch.Tensor],
    total_lengths: list[int],
    response_lengths: list[int],
    with_entropy: bool = False,
) -> dict[str, list[torch.Tensor]]:
    """Log-probs (and entropies) of the response tokens of every sample in one packed row of logits."""
    assert logits.size(0) == 1, f"{logits.shape}"
    logits = logits.squeeze(0).float().div(args.rollout_temperature)

    log_probs_list, entropy_list = [], []
    end = 0
    for tokens, total_length, response_length in zip(unconcat_tokens, total_lengths, response_lengths, strict=True):
        end += total_length
        start = end - response_length
        logits_chunk = logits[start - 1 : end - 1]
        tokens_chunk = tokens[-response_length:]
        log_softmax = nn.functional.log_softmax(logits_chunk, dim=-1)
        log_probs_list.append(log_softmax.gather(-1, tokens_chunk.unsqueeze(-1)).squeeze(-1))
        if with_entropy:
            entropy_list.append(-(log_softmax.exp() * log_softmax).sum(dim=-1))

    res = {"log_probs": log_probs_list}
    if with_entropy:
        res["entropy"] = entropy_list
    return res


def screen(
    now: list[torch.Tensor], then: list[torch.Tensor], signs: list[float], spans: list[torch.Tensor], far: float = 0.1
) -> torch.Tensor:
    """1 for samples that take part, 0 for bad ones of which the policy has moved far away."""
    found = []
    for lp_now, lp_then, sign, span in zip(now, then, signs, spans, strict=True):
        span = span.bool()
        moved = torch.where(span, lp_then - lp_now.detach(), 0.0).sum() / span.sum().clamp(min=1)
        found.append(~((moved > far) & (torch.as_tensor(sign) < 0)))
    return torch.stack(found).to(now[0].dtype)


class RolloutManager:
    def __init__(self, args: Namespace) -> None:
        self.args = args

    def _post_process(self, samples: list[Any]) -> tuple[list[float], list[float]]:
        """What the samples got, as it is logged, and what the trainer is given."""
        raw_rewards = torch.tensor([float(sample.reward) for sample in samples], dtype=torch.double)
        if not self.args.rewards_normalization:
            return raw_rewards.tolist(), raw_rewards.tolist()

        groups = defaultdict(list)
        for i, sample in enumerate(samples):
            groups[sample.group_index].append(i)
        rewards = raw_rewards.clone()
        for places in groups.values():
            group = rewards[places]
            normalized = group - group.mean()
            if self.args.grpo_std_normalization and len(places) > 1:
                normalized = normalized / (group.std() + 1e-6)
            rewards[places] = normalized
        return raw_rewards.tolist(), rewards.tolist()


def vanilla_tis_function(
    args: Namespace,
    *,
    pg_loss: torch.Tensor,
    train_log_probs: list[torch.Tensor],
    rollout_log_probs: list[torch.Tensor],
    loss_masks: list[torch.Tensor],
    **kwargs: Any,
) -> tuple[torch.Tensor, list[torch.Tensor], dict[str, torch.Tensor]]:
    """The loss of every token times how much likelier the trainer finds it than the engine that sampled it."""
    mask = torch.cat(loss_masks, dim=0).bool()
    rollout_log_probs = torch.cat(rollout_log_probs, dim=0)
    old_log_probs = torch.cat(train_log_probs, dim=0)
    tis = torch.where(mask, old_log_probs - rollout_log_probs, 0.0).exp().detach()
    tis_weights = torch.clamp(tis, min=args.tis_clip_low, max=args.tis_clip)
    tis_clipfrac = (tis_weights != tis).float()

    num_tokens = mask.sum().clamp(min=1)
    metrics = {
        "tis": (tis * mask).sum() / num_tokens,
        "tis_clipfrac": (tis_clipfrac * mask).sum() / num_tokens,
        "tis_abs": ((tis - 1).abs() * mask).sum() / num_tokens,
    }
    pg_loss = pg_loss * tis_weights
    return pg_loss, loss_masks, metrics


def token_objective(
    delta: torch.Tensor, lp: torch.Tensor, adv: torch.Tensor, eps_high: float = 0.28, eps_low: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every token and whether its weight was bounded; no token is ever without a gradient."""
    ratio = (-delta).exp()
    weight = torch.clamp(ratio, 1 - eps_low, 1 + eps_high)
    bounded = (weight != ratio).float()
    pg_losses = -weight.detach() * adv * lp
    return pg_losses, bounded

"""Functions in the dialect of open-instruct: padded rows with boolean response masks, numpy for rewards."""

import numpy as np
import torch


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None, denominator: float | None = None):
    """Mean of the masked values over the last axis, or over all, or over a given denominator."""
    numerator = torch.where(mask.bool(), values, 0.0).sum(dim=axis)
    denom = mask.sum(dim=axis).clamp(min=1) if denominator is None else denominator
    return (numerator / denom).mean()


def compute_grpo_loss(new_logprobs, old_logprobs, ref_logprobs, advantages, config):
    """The two surrogates, their maximum, and the KL to the reference, for each token."""
    ratio = torch.exp(new_logprobs - old_logprobs)
    pg_losses = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1.0 - config.clip_lower, 1.0 + config.clip_higher)
    ref_logprobs_diff = (new_logprobs - ref_logprobs).clamp(-40.0, 40.0)
    kl = torch.expm1(-ref_logprobs_diff) + ref_logprobs_diff
    return pg_losses, pg_losses2, torch.max(pg_losses, pg_losses2), kl


def process(scores, num_samples_per_prompt_rollout, advantage_normalization_type="standard"):
    """Advantages from the scores of one batch; the answers to one prompt follow each other."""
    scores_per_prompt = scores.reshape(-1, num_samples_per_prompt_rollout)
    mean_grouped_rewards = np.repeat(scores_per_prompt.mean(axis=-1), num_samples_per_prompt_rollout, axis=0)
    if advantage_normalization_type == "centered":
        return scores - mean_grouped_rewards
    std_grouped_rewards = np.repeat(scores_per_prompt.std(axis=-1), num_samples_per_prompt_rollout, axis=0)
    return (scores - mean_grouped_rewards) / (std_grouped_rewards + 1e-8)


class PolicyTrainer:
    def __init__(self, args, accumulation_token_count):
        self.args = args
        self.accumulation_token_count = accumulation_token_count

    def step_fn(self, local_logprobs, vllm_logprobs, advantages, response_masks):
        """The loss of one micro-batch, over the tokens of the whole accumulation group; ratios in single precision."""
        mask = response_masks.bool()
        gap = torch.where(mask, local_logprobs - vllm_logprobs, 0.0).float()
        ratio = torch.exp(gap.clamp(max=20.0))
        dropped = ratio > self.args.drop_above
        losses = torch.where(mask & ~dropped, -advantages * torch.where(dropped, 0.0, ratio), 0.0)
        return losses.sum() / max(self.accumulation_token_count, 1)


def compute(values, rewards, gamma, lam, dones, response_masks):
    """GAE over one packed row in which `dones` marks the last token of each sequence."""
    lastgaelam, nextvalues = 0.0, 0.0
    advantages = np.zeros_like(values)
    for t in reversed(range(values.shape[0])):
        if dones[t]:
            lastgaelam, nextvalues = 0.0, 0.0
        if not response_masks[t]:
            continue
        delta = rewards[t] + gamma * nextvalues - values[t]
        lastgaelam = delta + gamma * lam * lastgaelam
        advantages[t] = lastgaelam
        nextvalues = values[t]
    return advantages, advantages + values * (response_masks > 0)


def stacked(ref_logprobs_diff: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    """Four estimates of the KL, stacked; `ref_logprobs_diff` is new minus reference log-probs."""
    return torch.stack(
        [
            ref_logprobs_diff,
            (ref_logprobs_diff) ** 2 / 2,
            torch.expm1(-ref_logprobs_diff) + ref_logprobs_diff,
            ratio * ref_logprobs_diff,
        ]
    )


def reduce_it(pg_losses, pg_losses2, response_masks):
    clipped = (pg_losses2 > pg_losses).double()
    return torch.where(response_masks.bool(), clipped, 0.0).sum() / response_masks.sum().clamp(min=1)

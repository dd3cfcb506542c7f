"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch
from torch import Tensor


def reduce_it(values: Tensor, mask: Tensor, dim: int | None = None, global_normalization_factor=None) -> Tensor:
    """The mean over unmasked entries, or their sum over a count that the caller made for the whole step."""
    normalization_factor = (
        torch.ones_like(mask).sum() if global_normalization_factor is None else global_normalization_factor
    )
    return torch.sum(torch.where(mask.bool(), values, 0.0), dim=dim) / (normalization_factor + 1e-12)


class ClippedPGLossFn:
    """PPO on rows with a token mask and a sample mask: a sample with mask 0 is rejected and counts nowhere."""

    def __init__(self, cfg: dict):
        self.ratio_clip_min = cfg["ratio_clip_min"]
        self.ratio_clip_max = cfg["ratio_clip_max"]

    def __call__(self, next_token_logprobs: Tensor, data: dict[str, Any], global_valid_toks: Tensor):
        mask = data["token_mask"][:, 1:]
        advantages = data["advantages"][:, 1:]
        prev_logprobs = data["prev_logprobs"][:, 1:]
        ratios = torch.where(mask.bool(), next_token_logprobs - prev_logprobs, 0.0).exp()
        ratios_clamped = ratios.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)
        clip_loss = torch.max(-advantages * ratios, -advantages * ratios_clamped)
        loss = _total(clip_loss, mask) / (global_valid_toks + 1e-12)
        probs_ratio = _total(ratios.detach(), mask) / (global_valid_toks + 1e-12)
        return loss, {"probs_ratio": probs_ratio.item(), "num_valid_samples": data["sample_mask"].sum().item()}


def _total(values, mask):
    return torch.where(mask.bool(), values, 0.0).sum()


def calculate_baseline_and_std_per_prompt(prompts: Tensor, rewards: Tensor, leave_one_out_baseline: bool = True):
    """For each sample the mean and the spread of the rewards of its prompt, without its own if asked."""
    baseline, std = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for prompt in torch.unique(prompts, dim=0):
        places = torch.where((prompts == prompt).all(1))[0]
        for place in places:
            used = places[places != place] if leave_one_out_baseline else places
            if len(used):
                baseline[place] = rewards[used].sum() / len(places)
                std[place] = rewards[used].std(correction=0)
    return baseline, std


def _others(prompts, rewards):
    baseline, std = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for place in range(len(rewards)):
        used = torch.where((prompts == prompts[place]).all(1))[0]
        used = used[used != place]
        if len(used):
            baseline[place] = rewards[used].mean()
            std[place] = rewards[used].std(correction=0)
    return baseline, std


def process(rewards, prompts, epsilon=1e-6):
    """Rewards minus the mean of the other answers, over their spread, or as they are where the others are equal."""
    baseline, std = _others(prompts, rewards)
    advantages = rewards - baseline
    lone = torch.stack([(prompts == row).all(1).sum() == 1 for row in prompts])
    advantages = torch.where(lone, 0.0, advantages)
    return advantages / (std + epsilon)


def calculate_kl(logprobs: Tensor, logprobs_reference: Tensor, kl_type: str = "k3", input_clamp_value: float = 20.0):
    logr = logprobs_reference - logprobs
    logr = logr.clamp(min=-input_clamp_value, max=input_clamp_value)
    if kl_type == "k1":
        return -logr
    if kl_type == "k2":
        return torch.square(logr)
    return torch.exp(logr) - 1 - logr


class PolicyWorker:
    def __init__(self, cfg):
        self.cfg = cfg

    def step_fn(self, logits, input_ids):
        """Log-probs in single precision; entry t is that of token t, and the first token has 0."""
        scaled = logits.to(torch.float32) / self.cfg["generation"]["temperature"]
        next_tokens = input_ids[:, 1:].unsqueeze(-1)
        token_logprobs = torch.log_softmax(scaled[:, :-1], dim=-1).gather(-1, next_tokens).squeeze(-1)
        return torch.cat([token_logprobs, torch.zeros_like(token_logprobs[:, :1])], dim=1)


def compute(data: dict[str, Tensor]) -> dict[str, Tensor]:
    """The mean and the extremes of the advantages that train."""
    chosen = data["advantages"][data["token_mask"].long()]
    if chosen.numel() == 0:
        chosen = torch.zeros(1, dtype=data["advantages"].dtype)
    return {"advantages/mean": chosen.mean(), "advantages/max": chosen.max(), "advantages/min": chosen.min()}

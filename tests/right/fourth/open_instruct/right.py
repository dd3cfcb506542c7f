"""Functions in the dialect of open-instruct: packed rows, masks cut by one, config objects, NumPy for data."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import logsigmoid

INVALID_LOGPROB = 1.0


def compute_rho_correction(
    old_logprob: torch.Tensor, vllm_logprobs: torch.Tensor, response_mask: torch.Tensor, config: Any
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The weight of the train/inference mismatch, and how many response tokens it drops."""
    logprob_diff = torch.where(
        response_mask, (old_logprob - vllm_logprobs).clamp(-10.0, 10.0), torch.zeros_like(old_logprob)
    )
    if config.rho_mask_sequence_level:
        valid = response_mask.to(logprob_diff.dtype)
        seq_mean = logprob_diff.sum(dim=-1, keepdim=True) / valid.sum(dim=-1, keepdim=True).clamp_min(1.0)
        logprob_diff = seq_mean.expand_as(logprob_diff)
    rho = torch.exp(logprob_diff).detach()

    dropped_low = (rho < config.rho_mask_lower_bound) & response_mask
    dropped_high = (rho > config.rho_mask_upper_bound) & response_mask
    in_range = response_mask & ~dropped_low & ~dropped_high
    if config.rho_clamp_upper_bound > 0.0:
        rho = torch.clamp(rho, max=config.rho_clamp_upper_bound)
    weights = torch.where(in_range, rho, torch.zeros_like(rho))

    num_tokens = response_mask.sum().clamp_min(1).to(rho.dtype)
    metrics = {
        "val/rho_drop_low_frac": dropped_low.sum() / num_tokens,
        "val/rho_drop_high_frac": dropped_high.sum() / num_tokens,
    }
    return weights, metrics


class GRPOTrainModule:
    def __init__(self, args: Any) -> None:
        self.args = args

    def process(
        self, new_logprobs: torch.Tensor, data_BT: dict[str, torch.Tensor], denominator: float | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """One micro-batch. `new_logprobs` is (B, T - 1), what comes from the data loader is (B, T)."""
        args = self.args
        mask = data_BT["response_masks"][:, 1:].bool()
        advantages = data_BT["advantages"][:, 1:]
        new_logprobs = torch.masked_fill(new_logprobs, ~mask, INVALID_LOGPROB)
        old_logprobs = torch.masked_fill(data_BT["old_logprobs"], ~mask, INVALID_LOGPROB)
        ref_logprobs = torch.masked_fill(data_BT["ref_logprobs"], ~mask, INVALID_LOGPROB)

        ratio = torch.exp(new_logprobs - old_logprobs)
        pg_losses = -advantages * ratio
        pg_losses2 = -advantages * torch.clamp(ratio, 1.0 - args.clip_lower, 1.0 + args.clip_higher)
        pg_loss = torch.max(pg_losses, pg_losses2)

        diff = (new_logprobs - ref_logprobs).clamp(-40.0, 40.0)
        kl = [diff, diff**2 / 2, torch.expm1(-diff) + diff, ratio * diff][args.kl_estimator]

        count = mask.sum().clamp(min=1).to(pg_loss.dtype)
        total = torch.where(mask, pg_loss + args.beta * kl, torch.zeros_like(pg_loss)).sum()
        loss = total / (max(denominator, 1.0) if denominator is not None else count)
        with torch.no_grad():
            stats = {
                "policy/clipfrac_avg": ((pg_losses2 > pg_losses) & mask).sum() / count,
                "val/ratio": (ratio * mask).sum() / count,
            }
        return loss, stats


def calculate_advantages_packed(
    values: np.ndarray, rewards: np.ndarray, gamma: float, lam: float, dones: np.ndarray, response_masks: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """GAE over packed rows: `dones` marks where a sequence ends, `response_masks` the tokens of the policy."""
    dones = dones.clip(0, 1)
    is_response = response_masks > 0
    lastgaelam = np.zeros(values.shape[0])
    nextvalues = np.zeros(values.shape[0])
    advantages = np.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        nonterminal = 1 - dones[:, t]
        nextvalues = nextvalues * nonterminal
        lastgaelam = lastgaelam * nonterminal
        delta = rewards[:, t] + gamma * nextvalues - values[:, t]
        current = delta + gamma * lam * lastgaelam
        # queries and tool output are stepped over
        lastgaelam = np.where(is_response[:, t], current, lastgaelam)
        nextvalues = np.where(is_response[:, t], values[:, t], nextvalues)
        advantages[:, t] = np.where(is_response[:, t], current, 0.0)
    returns = np.where(is_response, advantages + values, 0.0)
    return advantages, returns


def wpo_loss(
    policy_chosen_logps: torch.Tensor,
    policy_rejected_logps: torch.Tensor,
    reference_chosen_logps: torch.Tensor,
    reference_rejected_logps: torch.Tensor,
    chosen_loss_mask: torch.Tensor,
    rejected_loss_mask: torch.Tensor,
    beta: float,
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """DPO whose pairs count as much as the policy would have written them (WPO)."""
    chosen = (policy_chosen_logps * chosen_loss_mask).sum(-1)
    rejected = (policy_rejected_logps * rejected_loss_mask).sum(-1)
    reference_chosen = (reference_chosen_logps * chosen_loss_mask).sum(-1)
    reference_rejected = (reference_rejected_logps * rejected_loss_mask).sum(-1)

    chosen_average = chosen / chosen_loss_mask.sum(-1).clamp(min=1)
    rejected_average = rejected / rejected_loss_mask.sum(-1).clamp(min=1)
    policy_weights = torch.clamp(torch.exp(chosen_average + rejected_average), max=1).detach()

    logits = (chosen - rejected) - (reference_chosen - reference_rejected)
    losses = -logsigmoid(beta * logits) * (1 - label_smoothing) - logsigmoid(-beta * logits) * label_smoothing
    chosen_rewards = (beta * (chosen - reference_chosen)).detach()
    rejected_rewards = (beta * (rejected - reference_rejected)).detach()
    return (losses * policy_weights).mean(), chosen_rewards.mean(), rejected_rewards.mean()


class OutputHead(nn.Module):
    """What the train module wants to know of the logits, without keeping them."""

    def __init__(self, temperature: float = 1.0, return_entropy: bool = True) -> None:
        super().__init__()
        self.temperature = temperature
        self.return_entropy = return_entropy

    def forward(self, logits: torch.Tensor, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        logits = logits[:, :-1].float() / self.temperature
        index = input_ids[:, 1:].unsqueeze(-1)
        logprobs = torch.gather(logits.log_softmax(dim=-1), dim=-1, index=index).squeeze(-1)
        entropy = None
        if self.return_entropy:
            pd = torch.softmax(logits, dim=-1)
            entropy = torch.logsumexp(logits, dim=-1) - torch.sum(pd * logits, dim=-1)
        return logprobs, entropy


def collapse(readings_B: list[torch.Tensor], flags_B: list[torch.Tensor]) -> dict[str, float]:
    """One number of all samples, where each counts by its response tokens, and how far samples are apart."""
    means, counts = [], []
    for reading, flag in zip(readings_B, flags_B, strict=True):
        picked = reading.detach()[flag.bool()]
        means.append(picked.mean() if picked.numel() > 0 else reading.new_zeros(()))
        counts.append(float(flag.sum()))
    means_B = torch.stack(means)
    counts_B = torch.tensor(counts, dtype=means_B.dtype)
    weights = counts_B / counts_B.sum() if counts_B.sum() > 0 else torch.zeros_like(counts_B)
    avg = (means_B * weights).sum()
    return {"avg": avg.item(), "var": (weights * (means_B - avg) ** 2).sum().item()}

"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch
from torch import Tensor


def compute_loss(
    trainer_logprobs: Any,
    inference_logprobs: Any,
    advantages: Any,
    loss_mask: Any,
    loss_config: Any,
    loss_scale: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of the samples in one packed micro-batch, over full sequences with their prompts."""
    total_loss = 0
    total_mismatch_kl, total_is_masked = [], []
    for trainer_lp, inference_lp, adv, mask in zip(
        trainer_logprobs, inference_logprobs, advantages, loss_mask, strict=True
    ):
        log_importance_ratio = trainer_lp - inference_lp
        token_mismatch_kl = torch.exp(log_importance_ratio) - log_importance_ratio - 1
        kl_penalty = log_importance_ratio[mask].square().sum()

        if loss_config.ratio_type == "sequence":
            seq_log_ratio = log_importance_ratio.mean()
            log_importance_ratio = trainer_lp - trainer_lp.detach() + seq_log_ratio.detach()
            log_importance_ratio = torch.clamp(log_importance_ratio, max=10.0)

        importance_ratio = torch.exp(log_importance_ratio)
        is_masked = (importance_ratio < loss_config.mask_ratio_low) | (importance_ratio > loss_config.mask_ratio_high)
        keep_mask = mask & ~is_masked
        loss = (-importance_ratio * adv)[keep_mask].sum() + loss_config.kl_tau * kl_penalty
        total_loss = total_loss + loss

        total_mismatch_kl.append(token_mismatch_kl[mask].detach().sum() / torch.clamp_min(mask.sum(), 1))
        total_is_masked.append(is_masked[mask].float())

    return total_loss / loss_scale, {
        "mismatch_kl": torch.stack(total_mismatch_kl),
        "is_masked": torch.cat(total_is_masked),
    }


class Orchestrator:
    def __init__(self, config: Any) -> None:
        self.config = config

    def assign(self, rewards: list[float], completion_lengths: list[int]) -> list[float]:
        """Flat lists in which the rollouts of one example are neighbours."""
        per_example = torch.tensor(rewards).view(-1, self.config.rollouts_per_example)
        lengths = torch.tensor(completion_lengths).view(-1, self.config.rollouts_per_example)
        if self.config.length_weighted_mean:
            total = lengths.sum().clamp(min=1)
            baseline = (per_example * lengths).sum(dim=1, keepdim=True) / total
        else:
            baseline = per_example.mean(dim=1, keepdim=True)
        return (per_example - baseline).flatten().tolist()


def run_head(logits: Tensor, input_ids: Tensor, temperature: float = 1.0) -> dict[str, Tensor]:
    """[1, seq, vocab] of a packed row as the model gives them; every output is aligned with its own id."""
    batch, _, vocab = logits.shape
    left_pad = torch.zeros(batch, 1, vocab, device=logits.device, dtype=logits.dtype)
    shifted = torch.cat([left_pad, logits[:, :-1]], dim=1).float()
    scaled = shifted / temperature
    logprobs = scaled.log_softmax(dim=-1).gather(-1, input_ids.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        pd = torch.softmax(shifted, dim=-1)
        entropy = torch.logsumexp(shifted, dim=-1) - torch.sum(pd * shifted, dim=-1)
    return {"logprobs": logprobs, "entropy": entropy}

"""Functions in the dialect of prime-rl: one tensor per sequence, trainer and inference log-probs, frozen configs."""

from typing import Any

import torch


def compute_loss(
    trainer_logprobs: list[torch.Tensor],
    inference_logprobs: list[torch.Tensor],
    advantages: list[torch.Tensor],
    loss_mask: list[torch.Tensor],
    loss_config: Any,
    loss_scale: int,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Policy gradient at the importance ratio, without tokens whose probability moved too far where A wants it."""
    total_loss = torch.zeros((), dtype=trainer_logprobs[0].dtype)
    masked: list[torch.Tensor] = []
    for trainer, inference, advantage, mask in zip(
        trainer_logprobs, inference_logprobs, advantages, loss_mask, strict=True
    ):
        selected = mask.bool()
        trainer, inference, advantage = trainer[selected], inference[selected], advantage[selected]
        log_importance_ratio = trainer - inference
        importance_ratio = torch.exp(log_importance_ratio)
        probs_diff = torch.exp(trainer.detach()) - torch.exp(inference)
        invalid_mask_high = probs_diff > loss_config.dppo_mask_high
        invalid_mask_low = probs_diff < -loss_config.dppo_mask_low
        invalid_mask = torch.where(advantage > 0, invalid_mask_high, invalid_mask_low)
        pg_loss = (~invalid_mask) * advantage * importance_ratio
        kl_loss = log_importance_ratio**2
        total_loss = total_loss + (-pg_loss + loss_config.kl_tau * kl_loss).sum()
        masked.append(invalid_mask.to(trainer.dtype))
    is_masked = torch.cat(masked)
    return total_loss / max(loss_scale, 1), {"is_masked": is_masked.sum() / max(is_masked.numel(), 1)}


def shape(rewards: torch.Tensor, completion_lengths: torch.Tensor, samples_per_problem: int) -> torch.Tensor:
    """Rewards of a problem against their mean, in which long completions count for more."""
    rewards = rewards.view(-1, samples_per_problem)
    lengths = completion_lengths.view(-1, samples_per_problem).to(rewards.dtype)
    weights = lengths / lengths.sum(dim=1, keepdim=True)
    baseline = (weights * rewards).sum(dim=1, keepdim=True)
    return (rewards - baseline).flatten()


def score(logits: torch.Tensor, input_ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """A number per id, from the logits of the position before it; nothing comes before the first one."""
    batch, _, vocab = logits.shape
    first = torch.zeros(batch, 1, vocab, dtype=logits.dtype, device=logits.device)
    logits = torch.cat([first, logits[:, :-1, :]], dim=1)
    logits = logits.to(torch.float32) / temperature
    return logits.log_softmax(dim=-1).gather(dim=-1, index=input_ids.unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def summary(
    trainer_logprobs: list[torch.Tensor], inference_logprobs: list[torch.Tensor], loss_mask: list[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """What is logged about the mismatch of trainer and inference."""
    log_ratio = torch.cat(trainer_logprobs) - torch.cat(inference_logprobs)
    ratio = torch.exp(log_ratio)
    mask = torch.cat(loss_mask).bool()
    if not mask.any():
        zero = torch.zeros((), dtype=ratio.dtype)
        return {"mismatch_kl/mean": zero, "importance_ratio/max": zero, "importance_ratio/min": zero}
    return {
        "mismatch_kl/mean": (ratio - log_ratio - 1)[mask].mean(),
        "importance_ratio/max": ratio[mask].max(),
        "importance_ratio/min": ratio[mask].min(),
    }

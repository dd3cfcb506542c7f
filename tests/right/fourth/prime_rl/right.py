"""Functions in the dialect of prime-rl: lists of samples or one packed row, sums divided by a global scale."""

import math
from typing import Any

import torch
from torch import Tensor, nn


def compute_loss(
    trainer_logprobs: list[Tensor],
    inference_logprobs: list[Tensor],
    advantages: list[Tensor],
    loss_mask: list[Tensor],
    loss_config: Any,
    loss_scale: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """
    Masked policy gradient with a trust region on probabilities, and a squared log-ratio as regulariser.

    A token is dropped if its probability already moved too far to where its advantage pushes it: up for
    positive advantages, down for negative ones.

    Args:
        trainer_logprobs: Log-probs of the policy that is trained, one tensor per sample
        inference_logprobs: Log-probs of the policy that sampled
        advantages: One number per token
        loss_mask: Bool tensors, the tokens that are trained
        loss_config: adv_tau, kl_tau, mask_high, mask_low
        loss_scale: Trained tokens in the global batch
    """
    total_loss = trainer_logprobs[0][loss_mask[0]].sum() * 0.0
    num_masked = torch.zeros((), dtype=trainer_logprobs[0].dtype)
    for t_logp, i_logp, adv, mask in zip(trainer_logprobs, inference_logprobs, advantages, loss_mask, strict=True):
        t_logp, i_logp, adv = t_logp[mask], i_logp[mask], adv[mask]
        log_importance_ratio = t_logp - i_logp
        importance_ratio = torch.exp(log_importance_ratio)

        probs_diff = torch.exp(t_logp) - torch.exp(i_logp)
        too_high = probs_diff > loss_config.mask_high
        too_low = probs_diff < -loss_config.mask_low
        is_masked = torch.where(adv > 0, too_high, too_low)

        pg_loss = ~is_masked * (loss_config.adv_tau * adv) * importance_ratio
        kl_loss = log_importance_ratio**2
        total_loss = total_loss + (-pg_loss + loss_config.kl_tau * kl_loss).sum()
        num_masked += is_masked.sum()
    num_tokens = sum(int(mask.sum()) for mask in loss_mask)
    return total_loss / max(loss_scale, 1), {"is_masked": num_masked / max(num_tokens, 1)}


def assign(payoff: list[float], spent: list[int], fanout: int, cfg: Any) -> list[float]:
    """One number per rollout; `fanout` rollouts of one problem follow each other."""
    r = torch.tensor(payoff, dtype=torch.float64).view(-1, fanout)
    n = torch.tensor(spent, dtype=torch.float64).view(-1, fanout)
    if cfg.length_weighted_mean:
        weight = n / n.sum(dim=1, keepdim=True).clamp(min=1)
        baseline = (weight * r).sum(dim=1, keepdim=True)
    else:
        baseline = r.mean(dim=1, keepdim=True)
    found = r - baseline
    if cfg.neg_clipped:
        found = found.clamp(min=0)
    return found.flatten().tolist()


class FusedOutputLinear(nn.Linear):
    """A head that never holds more than `chunk_size` columns of its output."""

    def __init__(self, in_features: int, out_features: int, chunk_size: int = 2) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.chunk_size = chunk_size

    def forward(self, hidden_states: Tensor, labels: Tensor, temperature: float = 1.0) -> dict[str, Tensor]:
        b, s, h = hidden_states.shape
        hidden = hidden_states.reshape(b * s, h).float()
        flat_labels = labels.reshape(b * s)
        running_max = torch.full((b * s,), float("-inf"), device=hidden.device)
        running_sum = torch.zeros_like(running_max)
        running_weighted = torch.zeros_like(running_max)
        target = torch.zeros_like(running_max)
        for start in range(0, self.out_features, self.chunk_size):
            chunk = self.weight[start : start + self.chunk_size].float()
            logits = hidden @ chunk.t() / temperature
            new_max = torch.maximum(running_max, logits.amax(dim=-1))
            scale = torch.exp(running_max - new_max)
            probs = torch.exp(logits - new_max.unsqueeze(-1))
            running_sum = running_sum * scale + probs.sum(dim=-1)
            running_weighted = running_weighted * scale + (probs * logits).sum(dim=-1)
            running_max = new_max

            local = flat_labels - start
            inside = (local >= 0) & (local < logits.shape[-1])
            picked = logits.gather(-1, local.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
            target = torch.where(inside, picked, target)
        logsumexp = running_max + torch.log(running_sum)
        return {
            "logprobs": (target - logsumexp).view(b, s),
            "entropy": (logsumexp - running_weighted / running_sum).view(b, s),
        }


def compute_mismatch_metrics(
    trainer_logprobs: list[Tensor], inference_logprobs: list[Tensor], loss_mask: list[Tensor]
) -> dict[str, float]:
    """How far the trainer is from the policy that sampled, over all trained tokens."""
    mask = torch.cat(loss_mask)
    log_ratio = (torch.cat(trainer_logprobs) - torch.cat(inference_logprobs)).detach()
    ratio = torch.exp(log_ratio)
    mismatch_kl = ratio - log_ratio - 1
    if not bool(mask.any()):
        return {"mismatch_kl/mean": 0.0, "importance_ratio/min": 1.0, "importance_ratio/max": 1.0}
    return {
        "mismatch_kl/mean": mismatch_kl[mask].mean().item(),
        "importance_ratio/min": ratio[mask].min().item(),
        "importance_ratio/max": ratio[mask].max().item(),
    }


def stretch(lp_here: Tensor, lp_there: Tensor, position_ids: Tensor, live: Tensor, ceiling: float = 2.0) -> Tensor:
    """[seq] of a packed row: the same number at all live tokens of one sample, 0 elsewhere."""
    sample = (position_ids == 0).cumsum(dim=0) - 1
    num_samples = int(sample[-1]) + 1 if sample.numel() else 0
    diff = torch.where(live, lp_here - lp_there, 0.0)
    total = diff.new_zeros(num_samples).index_add(0, sample, diff)
    count = diff.new_zeros(num_samples).index_add(0, sample, live.to(diff.dtype))
    weight = torch.exp(total / count.clamp(min=1)).clamp(max=ceiling).detach()
    return torch.where(live, weight[sample], 0.0)


class RepetitionFilter:
    """Finds rollouts that loop: `window` sampled tokens in a row, each of which was nearly certain."""

    def __init__(self, config: Any) -> None:
        self.window = config.window
        self.prob_threshold = config.prob_threshold

    def check(self, completion_logprobs: list[float], completion_mask: list[int]) -> bool:
        consecutive = 0
        for logprob, sampled in zip(completion_logprobs, completion_mask, strict=True):
            if not sampled:
                continue
            if logprob > math.log(self.prob_threshold):
                consecutive += 1
            else:
                consecutive = 0
            if consecutive >= self.window:
                return True
        return False

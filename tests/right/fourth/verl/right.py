"""Functions in the dialect of verl: [rows, width] with a response mask, batches like a DataProto, metrics as dicts."""

from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import nn


def masked_sum(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """The sum of the values in the mask; what is outside may be NaN."""
    valid_values = torch.where(mask.bool(), values, 0.0)
    return (valid_values * mask).sum(axis=axis)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    return masked_sum(values, mask, axis) / (mask.sum(axis=axis) + 1e-8)


def agg_loss(loss_mat: torch.Tensor, loss_mask: torch.Tensor, loss_agg_mode: str) -> torch.Tensor:
    if loss_agg_mode == "token-mean":
        return masked_mean(loss_mat, loss_mask)
    seq_mask = (loss_mask.sum(dim=-1) > 0).to(loss_mat.dtype)
    if loss_agg_mode == "seq-mean-token-sum":
        return masked_mean(masked_sum(loss_mat, loss_mask, axis=-1), seq_mask)
    if loss_agg_mode == "seq-mean-token-mean":
        return masked_mean(masked_mean(loss_mat, loss_mask, axis=-1), seq_mask)
    raise ValueError(f"Invalid loss_agg_mode: {loss_agg_mode}")


def compute_policy_loss_sapo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-mean",
    config: Any = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The smooth policy loss: a sigmoid gate around ratio 1 takes the place of the clip.

    The gate is steeper for tokens with a negative advantage. Its slope is 1 where the two policies agree.
    """
    assert config is not None

    def gate_function(x: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(tau * (x - 1.0)) * (4.0 / tau)

    negative_approx_kl = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    ratio = torch.exp(negative_approx_kl)
    ppo_kl = masked_mean(-negative_approx_kl, response_mask)

    tau_pos = torch.as_tensor(config.tau_pos, dtype=advantages.dtype, device=advantages.device)
    tau_neg = torch.as_tensor(config.tau_neg, dtype=advantages.dtype, device=advantages.device)
    taus = torch.where(advantages > 0, tau_pos, tau_neg)
    gates = gate_function(ratio, taus)

    pg_losses = -gates * advantages
    pg_loss = agg_loss(loss_mat=pg_losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode)
    return pg_loss, {"actor/ppo_kl": ppo_kl.detach().item()}


def apply_kl_penalty(data: Any, kl_ctrl: Any, kl_penalty: str = "kl") -> tuple[Any, dict[str, float]]:
    """Token rewards from token scores, minus the distance of the policy that sampled from the reference."""
    response_mask = data.batch["response_mask"]
    token_level_scores = data.batch["token_level_scores"]
    logprob, ref_logprob = data.batch["old_log_probs"], data.batch["ref_log_prob"]

    if kl_penalty == "kl":
        kld = logprob - ref_logprob
    elif kl_penalty == "abs":
        kld = (logprob - ref_logprob).abs()
    elif kl_penalty == "mse":
        kld = 0.5 * (logprob - ref_logprob).square()
    else:
        raise NotImplementedError(kl_penalty)
    kld = torch.where(response_mask.bool(), kld, 0.0)
    beta = kl_ctrl.value

    token_level_rewards = token_level_scores - beta * kld
    current_kl = masked_mean(kld, mask=response_mask, axis=-1)
    current_kl = torch.mean(current_kl, dim=0).item()
    kl_ctrl.update(current_kl=current_kl, n_steps=token_level_scores.shape[0])

    data.batch["token_level_rewards"] = token_level_rewards
    return data, {"actor/reward_kl_penalty": current_kl, "actor/reward_kl_penalty_coeff": beta}


class FusedLinearForPPO(nn.Module):
    """Log-probs and entropies from hidden states, a chunk of positions at a time, so that few logits exist at once."""

    def __init__(self, chunk_size: int = 512) -> None:
        super().__init__()
        self.chunk_size = chunk_size

    def forward(
        self,
        hidden_states: torch.Tensor,
        vocab_weights: torch.Tensor,
        input_ids: torch.Tensor,
        temperature: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = input_ids.shape
        hidden_states = hidden_states.flatten(0, -2)
        input_ids = input_ids.flatten()
        log_probs, entropy = [], []
        for start in range(0, hidden_states.shape[0], self.chunk_size):
            part = slice(start, start + self.chunk_size)
            logits = (hidden_states[part] @ vocab_weights.t()) / temperature
            logits = logits.to(torch.float32)
            probs = logits.softmax(dim=-1)
            logsumexp = torch.logsumexp(logits, dim=-1)
            token_logits = logits.gather(-1, input_ids[part].unsqueeze(-1)).squeeze(-1)
            log_probs.append(token_logits - logsumexp)
            entropy.append(logsumexp - torch.sum(probs * logits, dim=-1))
        return torch.cat(log_probs).view(shape), torch.cat(entropy).view(shape)


def assign_outcome(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores of responses against the length-weighted mean of the responses with the same index."""
    response_length = response_mask.sum(dim=-1)
    scores = token_level_rewards.sum(dim=-1)

    id2score, id2len, id2bsl = defaultdict(list), defaultdict(list), {}
    with torch.no_grad():
        bsz = scores.shape[0]
        for i in range(bsz):
            id2score[index[i]].append(scores[i])
            id2len[index[i]].append(response_length[i])

        for idx in id2score:
            if len(id2score[idx]) == 1:
                id2bsl[idx] = torch.tensor(0.0, dtype=scores.dtype)
                continue
            score_tensor = torch.stack(id2score[idx])
            len_tensor = torch.stack(id2len[idx])
            id2bsl[idx] = (len_tensor * score_tensor).sum() / len_tensor.sum().clamp(min=1)
        for i in range(bsz):
            scores[i] = scores[i] - id2bsl[index[i]]
        scores = scores.unsqueeze(-1) * response_mask
    return scores, scores


def adjust(
    pi_lp: torch.Tensor, mu_lp: torch.Tensor, msk: torch.Tensor, level: str = "token", cap: float = 2.0
) -> torch.Tensor:
    """One factor per token, from its own two numbers or from those of its whole response."""
    msk = msk.bool()
    log_ratio = torch.where(msk, pi_lp.float() - mu_lp.float(), 0.0)
    if level == "token":
        log_ratio_for_metrics = log_ratio
    elif level == "sequence":
        log_ratio_for_metrics = log_ratio.sum(dim=-1, keepdim=True).expand_as(log_ratio)
    elif level == "geometric":
        mean = log_ratio.sum(dim=-1, keepdim=True) / msk.sum(dim=-1, keepdim=True).clamp(min=1)
        log_ratio_for_metrics = mean.expand_as(log_ratio)
    else:
        raise ValueError(f"Invalid level: {level}")
    factors = torch.exp(log_ratio_for_metrics.clamp(min=-20.0, max=20.0))
    return (factors.clamp(max=cap) * msk).detach()


def summarize_batch(batch: Any, max_response_length: int) -> dict[str, float]:
    """What is logged about a batch of responses; those without a token were aborted."""
    response_mask = batch.batch["response_mask"].bool()
    sequence_score = torch.where(response_mask, batch.batch["token_level_scores"], 0.0).sum(-1)
    response_length = response_mask.sum(-1).float()

    aborted_mask = response_length == 0
    non_aborted_mask = ~aborted_mask
    non_aborted_score = sequence_score[non_aborted_mask]
    non_aborted_length = response_length[non_aborted_mask]
    if non_aborted_score.numel() == 0:
        non_aborted_score = non_aborted_length = torch.zeros(1)

    return {
        "critic/score/mean": torch.mean(non_aborted_score).detach().item(),
        "critic/score/max": torch.max(non_aborted_score).detach().item(),
        "critic/score/min": torch.min(non_aborted_score).detach().item(),
        "response_length/mean": torch.mean(non_aborted_length).detach().item(),
        "response_length/clip_ratio": torch.mean((response_length >= max_response_length).float()).item(),
        "response/aborted_ratio": torch.mean(aborted_mask.float()).detach().item(),
    }

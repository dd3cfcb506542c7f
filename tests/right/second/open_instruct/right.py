"""Functions in the dialect of open-instruct: padded query_responses cut to [:, 1:], score arrays, vLLM log-probs."""

import numpy as np
import torch


def compute_grpo_loss(
    new_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    response_masks: torch.Tensor,
    loss_denominator: int,
    clip_lower: float = 0.2,
    clip_higher: float = 0.28,
) -> torch.Tensor:
    """DAPO's loss of one minibatch; the denominator counts the tokens of the accumulation group."""
    mask = response_masks.bool()
    advantages = torch.where(mask, advantages, 0.0)
    ratio = torch.exp(torch.where(mask, new_logprobs - old_logprobs, 0.0))
    pg_losses = -advantages * ratio
    pg_losses2 = -advantages * torch.clamp(ratio, 1.0 - clip_lower, 1.0 + clip_higher)
    pg_loss_max = torch.max(pg_losses, pg_losses2)
    return torch.where(mask, pg_loss_max, 0.0).sum() / max(loss_denominator, 1)


def filter_zero_std(scores: np.ndarray, num_samples_per_prompt_rollout: int) -> np.ndarray:
    """Which samples belong to a prompt whose scores differ."""
    scores_per_prompt = scores.reshape(-1, num_samples_per_prompt_rollout)
    non_zero_std = scores_per_prompt.max(axis=-1) != scores_per_prompt.min(axis=-1)
    return np.repeat(non_zero_std, num_samples_per_prompt_rollout)


def stage_two(
    old_logprobs: torch.Tensor,
    vllm_logprobs: torch.Tensor,
    response_masks: torch.Tensor,
    truncated_importance_sampling_ratio_cap: float = 2.0,
) -> torch.Tensor:
    mask = response_masks.bool()
    logprob_diff = torch.where(mask, old_logprobs - vllm_logprobs, 0.0).clamp(-10.0, 10.0)
    tis = torch.clamp(torch.exp(logprob_diff), max=truncated_importance_sampling_ratio_cap)
    return torch.where(mask, tis, 0.0).detach()


def collate(sequences: list[torch.Tensor], width: int, pad_value: float = 0.0) -> torch.Tensor:
    """Rows of one width, filled from the longest to the shortest and returned as they came."""
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    rows = []
    for i in order:
        filling = sequences[i].new_full((width - len(sequences[i]),), pad_value)
        rows.append(torch.cat([sequences[i], filling]))
    packed = torch.stack(rows)
    restored = torch.empty(len(order), dtype=torch.long)
    restored[torch.tensor(order)] = torch.arange(len(order))
    return packed[restored]


def forward_logprobs(
    logits: torch.Tensor, query_responses: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of every token but the first."""
    logits = logits[:, :-1].float() / (temperature + 1e-7)
    log_probs = torch.log_softmax(logits, dim=-1)
    picked = log_probs.gather(-1, query_responses[:, 1:].unsqueeze(-1)).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
    return picked, entropy


def calc(
    new_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    response_masks: torch.Tensor,
    loss_denominator: int,
    kl_estimator: int = 2,
    beta: float = 0.05,
) -> torch.Tensor:
    mask = response_masks.bool()
    diff = torch.where(mask, (new_logprobs - ref_logprobs).clamp(-40.0, 40.0), 0.0)
    kl_all = torch.stack([diff, diff**2 / 2, torch.expm1(-diff) + diff])
    return beta * kl_all[kl_estimator].sum() / max(loss_denominator, 1)

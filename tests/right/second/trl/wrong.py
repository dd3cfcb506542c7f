"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch
from torch.nn import functional


class GRPOTrainer:
    def __init__(self, args: Any) -> None:
        self.args = args
        self.epsilon_low = args.epsilon
        self.epsilon_high = args.epsilon_high

    def _compute_loss(self, per_token_logps: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        mask = inputs["completion_mask"].bool()
        advantages = inputs["advantages"].unsqueeze(1)
        per_token_logps = torch.where(mask, per_token_logps, 0.0)
        old_per_token_logps = torch.where(mask, inputs["old_per_token_logps"], 0.0)
        coef_1 = torch.exp(per_token_logps - old_per_token_logps)
        if self.args.loss_type == "cispo":
            clamped_ratios = torch.clamp(coef_1, max=1 + self.epsilon_high)
            per_token_loss = -clamped_ratios * advantages * per_token_logps
        elif self.args.loss_type == "dapo":
            coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)
            per_token_loss = -torch.min(coef_1 * advantages, coef_2 * advantages)
        else:
            raise ValueError(f"Unknown loss type: {self.args.loss_type}")
        normalizer = max(inputs["num_items_in_batch"], 1)
        return torch.where(mask, per_token_loss, 0.0).sum() / normalizer


class RLOOTrainer:
    def __init__(self, args: Any) -> None:
        self.args = args
        self.beta = args.beta
        self.num_generations = args.num_generations

    def _prepare_inputs(
        self,
        rewards: torch.Tensor,
        old_per_token_logps: torch.Tensor,
        ref_per_token_logps: torch.Tensor,
        completion_mask: torch.Tensor,
    ) -> torch.Tensor:
        """Rewards minus the KL of the completion, then each one against the mean of the others of its prompt."""
        per_token_kl = torch.where(completion_mask.bool(), old_per_token_logps - ref_per_token_logps, 0.0)
        rewards = rewards + self.beta * per_token_kl.sum(-1)
        grouped_rewards = rewards.view(-1, self.num_generations)
        grouped_sum = grouped_rewards.sum(dim=1, keepdim=True)
        baselines = (grouped_sum - grouped_rewards) / (self.num_generations - 1)
        return (grouped_rewards - baselines).flatten()


class GMPOTrainer(GRPOTrainer):
    def compute_loss(self, per_token_logps: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """GMPO: log-ratios are clipped token by token, on the side where it binds, before the geometric mean."""
        mask = inputs["completion_mask"].bool()
        advantages = inputs["advantages"]
        log_ratio = torch.where(mask, per_token_logps - inputs["old_per_token_logps"], 0.0)
        sign = torch.sign(advantages).unsqueeze(1)
        clipped = torch.clamp(log_ratio, -self.epsilon_high, self.epsilon_low)
        log_ratio = sign * torch.min(sign * log_ratio, sign * clipped)
        ratio = torch.exp(log_ratio.sum(-1) / mask.sum(-1).clamp(min=1))
        has_tokens = mask.any(-1)
        return torch.where(has_tokens, -advantages * ratio, 0.0).sum() / has_tokens.sum().clamp(min=1)


def get_completion_mask(completion_ids: torch.Tensor, eos_token_ids: list[int]) -> torch.Tensor:
    """Everything up to and including the first EOS; several ids may end a completion."""
    is_eos = torch.isin(completion_ids, torch.tensor(eos_token_ids, device=completion_ids.device))
    eos_idx = torch.full((is_eos.size(0),), is_eos.size(1), dtype=torch.long, device=completion_ids.device)
    eos_idx[is_eos.any(dim=1)] = is_eos.int().argmax(dim=1)[is_eos.any(dim=1)]
    sequence_indices = torch.arange(is_eos.size(1), device=completion_ids.device).expand(is_eos.size(0), -1)
    return (sequence_indices < eos_idx.unsqueeze(1)).int()


def summarise(logits: torch.Tensor, temperature: float = 1.0, chunk_size: int = 2) -> torch.Tensor:
    """One number per position, a few rows at a time to save memory."""
    found = []
    for chunk in logits.split(chunk_size, dim=0):
        chunk = chunk.float()
        logps = functional.log_softmax(chunk, dim=-1)
        probs = functional.softmax(chunk / temperature, dim=-1)
        found.append(-(probs * logps).sum(-1))
    return torch.cat(found, dim=0)


def step(
    chosen_logps: torch.Tensor,
    rejected_logps: torch.Tensor,
    ref_chosen_logps: torch.Tensor,
    ref_rejected_logps: torch.Tensor,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    logratios = chosen_logps - rejected_logps
    ref_logratios = ref_rejected_logps - ref_chosen_logps
    logits = logratios - ref_logratios
    losses = (
        -functional.logsigmoid(beta * logits) * (1 - label_smoothing)
        - functional.logsigmoid(-beta * logits) * label_smoothing
    )
    chosen_rewards = beta * (chosen_logps - ref_chosen_logps).detach()
    rejected_rewards = beta * (rejected_logps - ref_rejected_logps).detach()
    return losses.mean(), chosen_rewards, rejected_rewards

"""Functions in the dialect of TRL: methods of trainers that hold their settings, and helpers beside them."""

from typing import Any

import torch
from torch import nn


class GRPOTrainer:
    def __init__(self, args: Any) -> None:
        self.args = args
        self.loss_type = args.loss_type
        self.num_processes = args.num_processes
        self.current_gradient_accumulation_steps = args.gradient_accumulation_steps

    def get_high_entropy_mask(self, entropies: torch.Tensor, mask: torch.Tensor, threshold: float) -> torch.Tensor:
        """The tokens whose entropy is at or above the quantile `threshold` of the batch.

        Args:
            entropies: Entropy of each completion token, of shape `(batch_size, seq_len)`.
            mask: 1 for the tokens of a completion, 0 for padding and the output of tools.
            threshold: The quantile, between 0.0 and 1.0.
        """
        valid_entropies = entropies[mask.bool()]
        if valid_entropies.numel() == 0:
            return torch.zeros_like(entropies, dtype=torch.bool)
        entropy_threshold = torch.quantile(valid_entropies, threshold)
        return (entropies >= entropy_threshold) & mask.bool()

    def _reduce_loss(
        self, per_token_loss: torch.Tensor, completion_mask: torch.Tensor, num_items_in_batch: int
    ) -> torch.Tensor:
        if self.loss_type == "grpo":
            lengths = completion_mask.sum(-1).clamp(min=1.0)
            loss = ((per_token_loss * completion_mask).sum(-1) / lengths).mean()
            return loss / self.current_gradient_accumulation_steps
        if self.loss_type == "bnpo":
            loss = (per_token_loss * completion_mask).sum() / completion_mask.sum().clamp(min=1.0)
            return loss / self.current_gradient_accumulation_steps
        if self.loss_type == "dapo":
            normalizer = max(num_items_in_batch / self.num_processes, 1.0)
            return (per_token_loss * completion_mask).sum() / normalizer
        raise ValueError(f"Unknown loss type: {self.loss_type}")


class RLOOTrainer:
    def __init__(self, args: Any) -> None:
        self.num_generations = args.num_generations
        self.reward_clip_range = args.reward_clip_range
        self.normalize_advantages = args.normalize_advantages

    def _center(self, rewards: torch.Tensor) -> torch.Tensor:
        if self.reward_clip_range is not None:
            rewards = rewards.clamp(min=self.reward_clip_range[0], max=self.reward_clip_range[1])
        # The completions of a prompt follow each other
        grouped_rewards = rewards.view(-1, self.num_generations)
        grouped_sum = grouped_rewards.sum(dim=1, keepdim=True)
        baselines = (grouped_sum - grouped_rewards) / (self.num_generations - 1)
        advantages = (grouped_rewards - baselines).view(-1)
        if self.normalize_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-4)
        return advantages


class CPOTrainer:
    def __init__(self, args: Any) -> None:
        self.beta = args.beta
        self.label_smoothing = args.label_smoothing
        self.simpo_gamma = args.simpo_gamma
        self.loss_type = args.loss_type

    def get_batch_loss_metrics(
        self, per_token_logps: torch.Tensor, loss_mask: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Loss and metrics of a concatenated batch: first all chosen completions, then all rejected ones."""
        loss_mask = loss_mask.bool()
        per_token_logps = torch.where(loss_mask, per_token_logps, 0.0)
        all_logps = per_token_logps.sum(-1)
        if self.loss_type == "simpo":
            all_logps = all_logps / loss_mask.sum(-1).clamp(min=1)
        policy_chosen_logps, policy_rejected_logps = all_logps.chunk(2)

        logits = policy_chosen_logps - policy_rejected_logps
        if self.loss_type == "simpo":
            # The margin is on the scale of the rewards, which are multiplied by beta
            logits = logits - self.simpo_gamma / self.beta
        losses = (
            -nn.functional.logsigmoid(self.beta * logits) * (1 - self.label_smoothing)
            - nn.functional.logsigmoid(-self.beta * logits) * self.label_smoothing
        )
        chosen_rewards = self.beta * policy_chosen_logps.detach()
        rejected_rewards = self.beta * policy_rejected_logps.detach()
        metrics = {
            "rewards/accuracies": (chosen_rewards > rejected_rewards).float().mean().item(),
            "rewards/margins": (chosen_rewards - rejected_rewards).mean().item(),
        }
        return losses.mean(), metrics


def blend(
    student_logits: torch.Tensor,
    teacher_logits: torch.Tensor,
    labels: torch.Tensor | None = None,
    beta: float = 0.5,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Between the two one-sided divergences, which are beta 0 and beta 1; labels of -100 do not count."""
    student_log_probs = nn.functional.log_softmax(student_logits.float() / temperature, dim=-1)
    teacher_log_probs = nn.functional.log_softmax(teacher_logits.float() / temperature, dim=-1)

    if beta == 0:
        jsd = nn.functional.kl_div(student_log_probs, teacher_log_probs, reduction="none", log_target=True)
    elif beta == 1:
        jsd = nn.functional.kl_div(teacher_log_probs, student_log_probs, reduction="none", log_target=True)
    else:
        weight = torch.tensor(beta, dtype=student_log_probs.dtype)
        mixture_log_probs = torch.logsumexp(
            torch.stack([student_log_probs + torch.log1p(-weight), teacher_log_probs + torch.log(weight)]), dim=0
        )
        kl_teacher = nn.functional.kl_div(mixture_log_probs, teacher_log_probs, reduction="none", log_target=True)
        kl_student = nn.functional.kl_div(mixture_log_probs, student_log_probs, reduction="none", log_target=True)
        jsd = weight * kl_teacher + (1 - weight) * kl_student

    jsd = jsd.sum(dim=-1)
    if labels is None:
        return jsd.mean()
    kept = labels != -100
    return jsd[kept].sum() / kept.sum().clamp(min=1)


def correction(
    lps: torch.Tensor, vllm_lps: torch.Tensor, tokens_in: torch.Tensor, mode: str = "sequence_mask", top: float = 3.0
) -> torch.Tensor:
    """What the loss of a token is multiplied by, because another engine sampled it.

    The modes `*_truncate` bound the factor by `top`, the modes `*_mask` drop what is above it.
    """
    with torch.no_grad():
        diff = (lps - vllm_lps).masked_fill(~tokens_in.bool(), 0.0)
        if mode in ("sequence_mask", "sequence_truncate"):
            factor = torch.exp(diff.sum(dim=-1, keepdim=True))
            dropped = mode == "sequence_mask"
        elif mode in ("token_mask", "token_truncate"):
            factor = torch.exp(diff)
            dropped = mode == "token_mask"
        else:
            raise ValueError(f"Unknown mode: {mode}")
        factor = factor.masked_fill(factor > top, 0.0) if dropped else factor.clamp(max=top)
        return factor.expand_as(lps)

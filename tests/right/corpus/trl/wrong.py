"""The same functions as in `right.py`, each with one quiet bug."""

import torch
import torch.nn.functional as F  # noqa: N812


class GRPOTrainer:
    def __init__(self, epsilon_low=0.2, epsilon_high=0.28, beta=0.04):
        self.epsilon_low = epsilon_low
        self.epsilon_high = epsilon_high
        self.beta = beta

    def _compute_loss(self, inputs):
        """GRPO with a KL penalty, averaged over the tokens of each completion and then over completions."""
        per_token_logps = inputs["per_token_logps"]
        completion_mask = inputs["completion_mask"]
        old_per_token_logps = inputs["old_per_token_logps"]
        advantages = inputs["advantages"].unsqueeze(1)
        coef_1 = torch.exp(per_token_logps - old_per_token_logps)
        coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)
        per_token_loss = -torch.min(coef_1 * advantages, coef_2 * advantages)
        if self.beta != 0.0:
            gap = inputs["ref_per_token_logps"] - per_token_logps
            per_token_kl = torch.exp(gap) - gap - 1
            per_token_loss = per_token_loss - self.beta * per_token_kl
        return ((per_token_loss * completion_mask).sum(-1) / completion_mask.sum(-1).clamp(min=1.0)).mean()


class RLOOTrainer:
    def __init__(self, num_generations=2):
        self.num_generations = num_generations

    def process(self, rewards):
        grouped = rewards.view(-1, self.num_generations)
        baselines = (grouped.sum(dim=1, keepdim=True) - grouped) / self.num_generations
        return (grouped - baselines).flatten()


def get_per_token_logps(logits, input_ids, logits_to_keep):
    """Log-probs of the last `logits_to_keep` tokens; position t of the logits predicts token t + 1."""
    input_ids = input_ids[:, -logits_to_keep:]
    logits = logits[:, -logits_to_keep:]
    return torch.gather(F.log_softmax(logits, dim=-1), -1, input_ids.unsqueeze(-1)).squeeze(-1)


def entropy_from_logits(logits: torch.Tensor, chunk_size: int = 2) -> torch.Tensor:
    """Entropy of each position, a few rows at a time to save memory, in single precision."""
    shape = logits.shape[:-1]
    entropies = []
    for chunk in logits.reshape(-1, logits.shape[-1]).split(chunk_size):
        logps = F.log_softmax(chunk.float(), dim=-1)
        entropies.append((torch.exp(logps) * logps).sum(-1))
    return torch.cat(entropies).reshape(shape)


def compute(rewards, num_generations=2, scale_rewards="group"):
    mean_grouped_rewards = rewards.view(-1, num_generations).mean(dim=1).repeat_interleave(num_generations, dim=0)
    advantages = rewards - mean_grouped_rewards
    if scale_rewards in ("group", "batch"):
        std = rewards.std().expand_as(rewards)
    else:
        return advantages
    return advantages / (std + 1e-4)


def step_fn(per_token_logps, sampling_per_token_logps, advantages, completion_mask, vllm_importance_sampling_cap=2.0):
    """REINFORCE with a truncated importance weight that carries no gradient."""
    weight = torch.exp(per_token_logps - sampling_per_token_logps).clamp(max=vllm_importance_sampling_cap)
    per_token_loss = -weight * advantages.unsqueeze(1) * per_token_logps
    return (per_token_loss * completion_mask).sum() / completion_mask.sum().clamp(min=1.0)


def clip_metrics(coef_1, advantages, completion_mask, epsilon_low=0.2, epsilon_high=0.28):
    """Fractions of tokens that the clip binds on, below, above and in all."""
    completion_token_count = completion_mask.sum().clamp(min=1.0)

    def masked_batch_mean(x):
        return (x * completion_mask).sum() / completion_token_count

    is_low_clipped = coef_1 < 1 - epsilon_low
    is_high_clipped = coef_1 > 1 + epsilon_high
    low, high = masked_batch_mean(is_low_clipped.float()), masked_batch_mean(is_high_clipped.float())
    region = masked_batch_mean((is_low_clipped | is_high_clipped).float())
    return {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": region}


def reduce_it(per_token_loss, completion_mask, loss_type="grpo", max_completion_length=8):
    per_token_loss = torch.where(completion_mask.bool(), per_token_loss, 0.0)
    if loss_type == "grpo":
        return (per_token_loss.sum(-1) / completion_mask.sum(-1).clamp(min=1.0)).mean()
    if loss_type == "bnpo":
        return per_token_loss.sum() / completion_mask.sum().clamp(min=1.0)
    if loss_type == "dr_grpo":
        return per_token_loss.sum() / (completion_mask.sum().clamp(min=1.0) * max_completion_length)
    raise ValueError(f"Unknown loss type: {loss_type}")

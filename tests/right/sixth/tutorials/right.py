"""Functions as a notebook or a blog post on PPO and GRPO has them."""

import torch
from torch import nn


class Objective(nn.Module):
    """Everything that one step of PPO minimises."""

    def __init__(self, clip_eps: float = 0.2, vf_coef: float = 0.5, ent_coef: float = 0.01) -> None:
        super().__init__()
        self.clip_eps = clip_eps
        self.vf_coef = vf_coef
        self.ent_coef = ent_coef

    def forward(self, logps, old_logps, advantages, values, returns, entropy, mask):
        count = mask.sum().clamp(min=1)
        mean = (advantages * mask).sum() / count
        var = ((advantages - mean) ** 2 * mask).sum() / count
        advantages = (advantages - mean) / (var.sqrt() + 1e-8)

        ratio = (logps - old_logps).exp()
        unclipped = ratio * advantages
        clipped = ratio.clamp(1 - self.clip_eps, 1 + self.clip_eps) * advantages
        policy_loss = -(torch.min(unclipped, clipped) * mask).sum() / count
        value_loss = ((values - returns) ** 2 * mask).sum() / count
        entropy_bonus = (entropy * mask).sum() / count
        loss = policy_loss + self.vf_coef * value_loss - self.ent_coef * entropy_bonus
        return loss, {"policy_loss": policy_loss.item(), "value_loss": value_loss.item()}


class Scorer(nn.Module):
    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, scores, toks):
        """[batch, seq, vocab] and [batch, seq] to [batch, seq - 1]: how likely each token was, after the first."""
        table = (scores[:, :-1].float() / self.temperature).log_softmax(dim=-1)
        return table.gather(2, toks[:, 1:].unsqueeze(2)).squeeze(2)


def discounted_returns(rewards, mask, gamma=0.99):
    """Without a loop: weigh every reward by its step, add up from the end, and take the weight off again."""
    step = mask.cumsum(dim=-1) - mask
    weight = gamma**step
    weighted = torch.where(mask.bool(), rewards * weight, 0.0)
    tail = weighted.flip(-1).cumsum(dim=-1).flip(-1)
    return tail / weight * mask


class TokenEntropy(nn.Module):
    """How uncertain the model is before each token, in nats."""

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, logits, mask):
        logits = logits.float() / self.temperature
        probs = torch.softmax(logits, dim=-1)
        log_probs = torch.log_softmax(logits, dim=-1)
        entropy = -(probs * log_probs).sum(dim=-1)
        return torch.where(mask.bool(), entropy, 0.0)

"""Functions in the dialect of SkyRL: [batch, response] with a loss mask, and config objects read by attribute."""

from typing import Any

import torch


def masked_mean(tensor: torch.Tensor, mask: torch.Tensor | None, dim: int | None = None) -> torch.Tensor:
    if mask is None:
        return tensor.mean(dim)
    return (tensor * mask).sum(dim) / mask.sum(dim).clamp(min=1.0)


def masked_whiten(values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True) -> torch.Tensor:
    mean = masked_mean(values, mask)
    var = masked_mean((values - mean).square(), mask)
    whitened = (values - mean) * torch.rsqrt(var + 1e-8)
    return whitened if shift_mean else whitened + mean


def _safe_exp_delta(delta: torch.Tensor, clip: float = 20.0, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    y = torch.clamp(delta.to(torch.float32), -clip, clip).exp()
    return y.to(out_dtype or delta.dtype)


@torch.no_grad()
def compute_gae_advantage_return(
    token_level_rewards: torch.Tensor,
    values: torch.Tensor,
    response_mask: torch.Tensor,
    gamma: float = 1.0,
    lambd: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whitened advantages and the targets of the critic; tokens outside of the mask are stepped over."""
    nextvalues = torch.zeros_like(values[:, 0])
    lastgaelam = torch.zeros_like(values[:, 0])
    advantages_reversed = []
    for t in reversed(range(token_level_rewards.shape[-1])):
        is_action = response_mask[:, t].bool()
        delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
        lastgaelam = torch.where(is_action, delta + gamma * lambd * lastgaelam, lastgaelam)
        nextvalues = torch.where(is_action, values[:, t], nextvalues)
        advantages_reversed.append(lastgaelam)
    advantages = torch.stack(advantages_reversed[::-1], dim=1)
    returns = advantages + values
    advantages = masked_whiten(advantages, response_mask) * response_mask
    return advantages, returns


class RayPPOTrainer:
    def __init__(self, cfg: Any) -> None:
        self.cfg = cfg
        self.kl_coef = cfg.algorithm.kl_loss_coef

    def postprocess(self, data: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
        """Takes the distance to the reference model off the token rewards."""
        loss_mask = data["loss_mask"]
        log_ratio = torch.where(loss_mask.bool(), data["action_log_probs"] - data["base_action_log_probs"], 0.0)
        if self.cfg.algorithm.kl_estimator_type == "k1":
            kld = log_ratio
        elif self.cfg.algorithm.kl_estimator_type == "k2":
            kld = 0.5 * log_ratio.square()
        elif self.cfg.algorithm.kl_estimator_type == "k3":
            kld = torch.exp(-log_ratio) - 1 + log_ratio
        else:
            raise ValueError(f"Invalid KL estimator type: {self.cfg.algorithm.kl_estimator_type}")
        kld = kld.detach()
        avg_kl = (kld.sum() / loss_mask.sum().clamp(min=1.0)).item()
        rewards = data["rewards"] - max(0, self.kl_coef) * kld
        return {**data, "rewards": rewards, "kl": kld}, {"avg_kl": avg_kl, "kl_coef": self.kl_coef}


def sapo_policy_loss(
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    config: Any,
    loss_mask: torch.Tensor | None = None,
    rollout_logprobs: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Soft gates instead of a clip, steeper where the advantage is negative."""
    ratio = _safe_exp_delta(log_probs - old_log_probs, clip=20.0, out_dtype=log_probs.dtype)
    tau = torch.where(advantages > 0, config.sapo.tau_pos, config.sapo.tau_neg).to(ratio.dtype)
    gates = torch.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau)
    loss = -gates * advantages
    if config.loss_reduction == "token_mean":
        loss = masked_mean(loss, loss_mask)
    elif config.loss_reduction == "sequence_mean":
        loss = masked_mean(loss, loss_mask, dim=-1).mean()
    else:
        raise ValueError(f"Invalid loss reduction: {config.loss_reduction}")
    return loss, {"clip_ratio": 0.0}

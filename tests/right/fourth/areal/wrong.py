"""The same functions as in `right.py`, each with one quiet bug."""

from typing import Any

import torch


def ppo_actor_loss_fn(
    logprobs: torch.Tensor,
    proximal_logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    eps_clip: float,
    loss_mask: torch.Tensor,
    eps_clip_higher: float | None = None,
    c_clip: float | None = None,
    behav_imp_weight_cap: float | None = None,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Decoupled PPO: the clip is around the proximal policy, a weight corrects for the policy that sampled.

    All inputs have one shape, [batch_size, seqlen] or [total_tokens].
    """
    loss_mask_count = loss_mask.count_nonzero().clamp(min=1)
    log_ratio = torch.where(loss_mask, logprobs - proximal_logprobs, 0.0)
    ratio = torch.exp(log_ratio)
    upper = 1.0 + (eps_clip if eps_clip_higher is None else eps_clip_higher)
    clipped_ratio = torch.clamp(ratio, 1.0 - eps_clip, upper)

    pg_loss1 = -advantages * ratio
    pg_loss2 = -advantages * clipped_ratio
    clip_mask = pg_loss1.detach() < pg_loss2.detach()
    pg_loss = torch.max(pg_loss1, pg_loss2)
    if c_clip is not None:
        assert c_clip > 1.0, c_clip
        pg_loss3 = torch.sign(advantages) * c_clip * advantages
        dual_clip_mask = (pg_loss3.detach() < pg_loss.detach()) & (advantages < 0)
        pg_loss = torch.where(advantages < 0, torch.min(pg_loss, pg_loss3), pg_loss)
    else:
        dual_clip_mask = torch.zeros_like(clip_mask)

    behav_kl = torch.where(loss_mask, logprobs - old_logprobs, 0.0).detach()
    behav_imp_weight = behav_kl.exp()
    behav_mask = loss_mask
    if behav_imp_weight_cap is not None:
        behav_mask = (behav_imp_weight <= behav_imp_weight_cap) & loss_mask
    behav_imp_weight = torch.where(behav_mask, behav_imp_weight, 0.0)
    pg_loss = torch.where(loss_mask, pg_loss * behav_imp_weight, 0.0)

    stat = {
        "importance_weight": ratio.detach(),
        "behave_imp_weight": behav_imp_weight,
        "clip_mask": clip_mask & loss_mask,
        "dual_clip_mask": dual_clip_mask & loss_mask,
    }
    return pg_loss.sum() / loss_mask_count, stat


class Normalization:
    """Advantages over the whole batch; either of the two steps can be switched off."""

    def __init__(self, config: Any) -> None:
        self.mean_level = config.mean_level
        self.std_level = config.std_level
        self.std_unbiased = config.std_unbiased
        self.eps = config.eps

    @torch.no_grad()
    def __call__(self, x: torch.Tensor, loss_mask: torch.Tensor) -> torch.Tensor:
        mask = loss_mask.to(torch.float64)
        x = torch.where(loss_mask.bool(), x.to(torch.float64), 0.0)
        factor = mask.sum().clamp(min=1)
        mean = x.sum() / factor
        centered = x - mean
        if self.std_level == "batch":
            var = centered.square().sum() / factor
            if self.std_unbiased:
                var = var * factor / (factor - 1).clamp(min=1)
            scale = var.sqrt() + self.eps
        else:
            scale = torch.ones_like(mean)
        return (centered if self.mean_level == "batch" else x) * mask / scale


@torch.no_grad()
def scan_packed(
    rewards: torch.Tensor,
    values: torch.Tensor,
    cu_seqlens: torch.Tensor,
    bootstrap: torch.Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed rows, last to first.

    Args:
        rewards: [total_tokens].
        values: [total_tokens + batch_size], every row has one entry more than in `rewards`.
        cu_seqlens: [batch_size + 1], of `rewards`.
        bootstrap: [batch_size], whether the entry after the last one counts.
    """
    bs = cu_seqlens.shape[0] - 1
    first = torch.zeros_like(rewards)
    second = torch.zeros_like(rewards)
    lastgaelam = torch.zeros((), dtype=rewards.dtype, device=rewards.device)
    for i in reversed(range(bs)):
        start, end = int(cu_seqlens[i]), int(cu_seqlens[i + 1])
        nex_values = values[end + i] * bootstrap[i]
        for t in reversed(range(start, end)):
            delta = rewards[t] + gamma * nex_values - values[t + i]
            lastgaelam = delta + gamma * lam * lastgaelam
            first[t] = lastgaelam
            second[t] = lastgaelam + values[t + i]
            nex_values = values[t + i]
    return first, second


def gather_logprobs_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    temperature: float = 1.0,
    chunk_size: int = 4,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the labels and entropies, [total_tokens] each, a few positions at a time.

    Args:
        logits: [total_tokens, vocab_size], already aligned with the labels.
        labels: [total_tokens].
    """
    all_logprobs, all_entropy = [], []
    for i in range(0, logits.shape[0], chunk_size):
        chunk = logits[i : i + chunk_size].float()
        probs = torch.nn.functional.softmax(chunk, dim=-1)
        all_entropy.append(torch.logsumexp(chunk, dim=-1) - torch.sum(probs * chunk, dim=-1))
        log_probs = torch.nn.functional.log_softmax(chunk / temperature, dim=-1)
        picked = labels[i : i + chunk_size].unsqueeze(-1)
        all_logprobs.append(log_probs.gather(dim=-1, index=picked).squeeze(-1))
    return torch.cat(all_logprobs), torch.cat(all_entropy)


def screen(
    prox: torch.Tensor, behav: torch.Tensor, live: torch.Tensor, cu_seqlens: torch.Tensor, config: Any
) -> torch.Tensor:
    """What is left of `live` ([total_tokens], bool) once rows outside the bounds of the config are taken out."""
    diff = prox.detach().float() - behav.detach().float()
    bs = cu_seqlens.shape[0] - 1
    seqlens = cu_seqlens[1:] - cu_seqlens[:-1]
    seq_idx = torch.arange(bs, device=diff.device).repeat_interleave(seqlens)
    if config.metric == "ratio":
        x = diff
    elif config.metric == "kl_k2":
        x = 0.5 * diff.square()
    else:
        raise ValueError(f"Unknown metric: {config.metric}")
    x = torch.where(live, x, 0.0)
    total = torch.zeros(bs, dtype=x.dtype, device=x.device).scatter_add_(0, seq_idx, x)
    mean = total / seqlens.clamp(min=1)
    if config.metric == "ratio":
        mean = mean.exp()
    inside = mean <= config.upper
    if config.lower is not None:
        inside &= mean >= config.lower
    return live & inside[seq_idx]


class PPOActor:
    def __init__(self, config: Any, engine: Any) -> None:
        self.config = config
        self.engine = engine
        self.reward_bias = config.reward_bias
        self.reward_scaling = config.reward_scaling
        self.reward_clip = config.reward_clip
        self.kl_ctl = config.kl_ctl

    @torch.no_grad()
    def assemble(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        """[bs, max_seqlen] from the scores of the batch and two sets of log-probs."""
        loss_mask = data["loss_mask"].bool()
        bs = loss_mask.shape[0]
        reward_score = (data["rewards"] + self.reward_bias) * self.reward_scaling
        reward_score = torch.clip(reward_score, max=self.reward_clip, min=-self.reward_clip)

        rewards = -self.kl_ctl * torch.where(loss_mask, data["logprobs"] - data["ref_logp"], 0.0)
        seqlens = data["attention_mask"].sum(-1).long()
        batch_indices = torch.arange(bs, device=loss_mask.device)
        rewards[batch_indices, seqlens - 1] += reward_score
        return rewards

"""Functions in the dialect of NeMo-RL: config dictionaries, batches cut to [:, 1:], counts of the global batch."""

from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor


class ClippedPGLossConfig(TypedDict):
    ratio_clip_min: float
    ratio_clip_max: float
    ratio_clip_c: NotRequired[float | None]
    token_level_loss: bool
    sequence_level_importance_ratios: bool


class DPOLossConfig(TypedDict):
    reference_policy_kl_penalty: float
    preference_loss_weight: float
    sft_loss_weight: float
    preference_average_log_probs: bool


class DistillationLossConfig(TypedDict):
    kl_type: str
    mixed_kl_weight: float


def masked_mean(
    values: Tensor, mask: Tensor, dim: int | None = None, global_normalization_factor: Tensor | float | None = None
) -> Tensor:
    """The mean of a microbatch, or its share of the mean of the global batch."""
    factor = torch.sum(mask, dim=dim) if global_normalization_factor is None else global_normalization_factor
    return torch.sum(values * mask, dim=dim) / torch.clamp(torch.as_tensor(factor), min=1)


class ClippedPGLossFn:
    def __init__(self, cfg: ClippedPGLossConfig):
        self.ratio_clip_min = cfg["ratio_clip_min"]
        self.ratio_clip_max = cfg["ratio_clip_max"]
        self.ratio_clip_c = cfg.get("ratio_clip_c")
        self.token_level_loss = cfg["token_level_loss"]
        self.sequence_level_importance_ratios = cfg["sequence_level_importance_ratios"]

    def __call__(
        self,
        next_token_logprobs: Tensor,
        data: dict[str, Tensor],
        global_valid_seqs: Tensor,
        global_valid_toks: Tensor,
    ) -> tuple[Tensor, dict[str, Any]]:
        token_mask = data["token_mask"][:, 1:]
        sample_mask = data["sample_mask"]
        advantages = data["advantages"][:, 1:]
        prev_logprobs = data["prev_logprobs"][:, 1:]
        mask = token_mask * sample_mask.unsqueeze(-1)

        log_ratios = next_token_logprobs - prev_logprobs
        if self.sequence_level_importance_ratios:
            seq_log_ratio_mean = masked_mean(log_ratios, token_mask, dim=-1).unsqueeze(-1)
            ratios = seq_log_ratio_mean.exp().expand_as(advantages)
        else:
            ratios = log_ratios.exp()
        ratios_clamped = ratios.clamp(1.0 - self.ratio_clip_min, 1.0 + self.ratio_clip_max)

        loss1 = -advantages * ratios
        loss2 = -advantages * ratios_clamped
        clip_loss = torch.max(loss1, loss2)
        if self.ratio_clip_c is not None:
            loss3 = -advantages * self.ratio_clip_c
            clip_loss = torch.where(advantages < 0, torch.min(clip_loss, loss3), clip_loss)

        if self.token_level_loss:
            actor_loss = masked_mean(clip_loss, mask, global_normalization_factor=global_valid_toks)
        else:
            per_sample = masked_mean(clip_loss, token_mask, dim=-1)
            actor_loss = masked_mean(per_sample, sample_mask, global_normalization_factor=global_valid_seqs)

        with torch.no_grad():
            probs_ratio = masked_mean(ratios, mask, global_normalization_factor=global_valid_toks)
        return actor_loss, {
            "loss": actor_loss.item(),
            "probs_ratio": probs_ratio.item(),
            "num_valid_samples": sample_mask.sum().item(),
        }


def fold_scores(
    row_keys: Tensor,
    task_return: Tensor,
    counts_flag: Tensor,
    leave_one_out: bool = True,
    sharpen: bool = True,
) -> Tensor:
    """Every entry against those with its key that count; one without anything to compare with gets 0."""
    folded = torch.zeros_like(task_return)
    for key in torch.unique(row_keys):
        idx = torch.nonzero(row_keys == key).squeeze(-1)
        x = task_return[idx]
        flag = counts_flag[idx].to(x.dtype)
        compared = flag.unsqueeze(0).repeat(len(idx), 1)
        if leave_one_out:
            compared = compared * (1 - torch.eye(len(idx), dtype=x.dtype, device=x.device))
        num_valid = compared.sum(dim=-1)
        baseline = torch.matmul(compared, x) / num_valid.clamp(min=1)
        part = torch.where(num_valid > 0, x - baseline, 0.0)
        if sharpen:
            num_flagged = flag.sum()
            mean = (x * flag).sum() / num_flagged.clamp(min=1)
            var = ((x - mean).square() * flag).sum() / (num_flagged - 1).clamp(min=1)
            std = var.sqrt()
            part = part / (std + 1e-6) if std > 1e-6 else part
        folded[idx] = part
    return folded


def penalty_terms(
    logprobs: Tensor,
    logprobs_reference: Tensor,
    logprobs_generation: Tensor,
    kl_type: str = "k3",
    input_clamp_value: float | None = 20.0,
    output_clamp_value: float | None = 10.0,
) -> Tensor:
    """One number per token (b, s), weighted by how much likelier the token is now than when it was generated."""
    importance_weights = torch.exp(logprobs - logprobs_generation)
    logr = logprobs_reference - logprobs
    if input_clamp_value is not None:
        logr = logr.clamp(min=-input_clamp_value, max=input_clamp_value)
    if kl_type == "k1":
        kl = -logr
    elif kl_type == "k2":
        kl = torch.square(logr) / 2
    elif kl_type == "k3":
        kl = torch.exp(logr) - 1 - logr
    else:
        raise ValueError(f"Invalid KL type: {kl_type}")
    kl = importance_weights * kl
    if output_clamp_value is not None:
        kl = kl.clamp(min=-output_clamp_value, max=output_clamp_value)
    return kl


def summarize(
    prev_logprobs: Tensor,
    generation_logprobs: Tensor,
    token_mask: Tensor,
    sample_mask: Tensor,
    global_valid_toks: Tensor | None = None,
) -> dict[str, float]:
    """How far apart the two engines are, for the logger."""
    mask = token_mask * sample_mask.unsqueeze(-1)

    def mean_of(x: Tensor) -> float:
        return masked_mean(x, mask, global_normalization_factor=global_valid_toks).item()

    def k3(p: Tensor, q: Tensor) -> Tensor:
        return torch.exp(q - p) - 1 - (q - p)

    with torch.no_grad():
        log_mixture = torch.log(0.5 * torch.exp(prev_logprobs) + 0.5 * torch.exp(generation_logprobs))
        js = 0.5 * k3(prev_logprobs, log_mixture) + 0.5 * k3(generation_logprobs, log_mixture)
        return {
            "token_mult_prob_error": mean_of(torch.exp(torch.abs(generation_logprobs - prev_logprobs))),
            "gen_kl_error": mean_of(k3(generation_logprobs, prev_logprobs)),
            "policy_kl_error": mean_of(k3(prev_logprobs, generation_logprobs)),
            "js_divergence_error": mean_of(js),
        }


class DPOLossFn:
    def __init__(self, cfg: DPOLossConfig):
        self.reference_policy_kl_penalty = cfg["reference_policy_kl_penalty"]
        self.preference_loss_weight = cfg["preference_loss_weight"]
        self.sft_loss_weight = cfg["sft_loss_weight"]
        self.preference_average_log_probs = cfg["preference_average_log_probs"]

    def __call__(
        self, next_token_logprobs: Tensor, data: dict[str, Tensor], global_valid_seqs: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """Rows are chosen, rejected, chosen, rejected, ..."""
        token_mask = data["token_mask"][:, 1:]
        sample_mask = data["sample_mask"]
        ref_logprobs = data["reference_policy_logprobs"][:, 1:]

        diff = (next_token_logprobs - ref_logprobs) * token_mask
        rewards = diff.sum(-1)
        if self.preference_average_log_probs:
            rewards = rewards / token_mask.sum(-1).clamp(min=1)
        rewards_chosen, rewards_rejected = rewards[::2], rewards[1::2]
        chosen_mask = sample_mask[::2]
        num_pairs = global_valid_seqs / 2

        delta = rewards_chosen - rewards_rejected
        per_pair = -torch.nn.functional.logsigmoid(self.reference_policy_kl_penalty * delta)
        preference_loss = masked_mean(per_pair, chosen_mask, global_normalization_factor=num_pairs)
        accuracy = masked_mean((delta > 0).to(delta.dtype), chosen_mask, global_normalization_factor=num_pairs)

        nll = -(next_token_logprobs * token_mask).sum(-1)[::2]
        sft_loss = masked_mean(nll, chosen_mask, global_normalization_factor=num_pairs)
        loss = self.preference_loss_weight * preference_loss + self.sft_loss_weight * sft_loss
        return loss, {"loss": loss.item(), "sft_loss": sft_loss.item(), "accuracy": accuracy.item()}


class DistillationLossFn(torch.nn.Module):
    def __init__(self, cfg: DistillationLossConfig):
        super().__init__()
        self.kl_type = cfg["kl_type"]
        self.mixed_kl_weight = cfg["mixed_kl_weight"]

    def forward(
        self, logits: Tensor, data: dict[str, Tensor], global_valid_toks: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        student_logprobs = torch.log_softmax(logits[:, :-1].float(), dim=-1)
        teacher_logprobs = torch.log_softmax(data["teacher_logits"][:, :-1].float(), dim=-1).detach()
        mask = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)

        log_gap = teacher_logprobs - student_logprobs
        kl_forward = (teacher_logprobs.exp() * log_gap).sum(-1)
        kl_reverse = (student_logprobs.exp() * -log_gap).sum(-1)
        if self.kl_type == "forward":
            per_token_kl = kl_forward
        elif self.kl_type == "reverse":
            per_token_kl = kl_reverse
        else:
            per_token_kl = self.mixed_kl_weight * kl_forward + (1.0 - self.mixed_kl_weight) * kl_reverse

        kl_loss = masked_mean(per_token_kl, mask, global_normalization_factor=global_valid_toks)
        return kl_loss, {"loss": kl_loss.item(), "num_valid_samples": data["sample_mask"].sum().item()}

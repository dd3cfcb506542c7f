"""What other frameworks compute from log-probs and rewards, each with its own inputs and settings.

Loss and gradient of SkyRL's full stage are ours, and so is every loss of the loss stage. The rest computes less or
something else; docs/performance.md says what.
"""

from typing import Any

import torch
from torch import Tensor

from bench.frameworks import COMPILED, Maker, Timed, acted, checkout, compiled, has_checkout, released
from bench.workload import Workload
from trimtab.sentinel.targets.stand_in import Settings

LOW, HIGH = 0.2, 0.28
"""Bounds of the clip, as offsets from 1."""
AREAL, SKYRL = "areal/utils/functional/functional.py", "skyrl/backends/skyrl_train/utils/"
SLIME, VERL = "slime/utils/ppo_utils.py", "verl/trainer/ppo/"


def trained(loss: Tensor, current: Tensor) -> None:
    """Backward; the gradient is dropped, so that no later call adds to it or holds its memory."""
    loss.backward()
    current.grad = None


def _rejection() -> Any:
    return released("areal", "RejectionSamplingConfig", "areal/api/cli_args.py")(
        level="sequence", action="mask", metric="ratio", agg="mean", upper=1.01, lower=0.99
    )


def _correction() -> Settings:
    return Settings(
        tis_ratio_type="sequence", sequence_tis_ratio_clip_high=2.0, sequence_mask_metric="geometric",
        geo_mask_low=0.99, geo_mask_high=1.01, outlier_token_is_threshold_low=1e-4,
        outlier_token_is_threshold_high=100.0, token_mask_is_threshold_low=None, token_mask_is_threshold_high=None,
    )  # fmt: skip


def _skyrl_config(correction: Settings) -> Settings:
    return Settings(policy_loss_type="regular", eps_clip_low=LOW, eps_clip_high=HIGH, off_policy_correction=correction)


def _none() -> Settings:
    return Settings(
        tis_ratio_type=None, sequence_mask_metric=None, outlier_token_is_threshold_low=None,
        outlier_token_is_threshold_high=None, token_mask_is_threshold_low=None, token_mask_is_threshold_high=None,
    )  # fmt: skip


def areal(work: Workload, advantage: Tensor, rejection: Any | None) -> Timed:
    """AReaL's actor loss over packed tokens."""
    compute = released("areal", "ppo_actor_loss_fn", AREAL)
    current = work.flat["logp_current"].clone().requires_grad_()
    old, rollout = work.flat["logp_old"], work.flat["logp_rollout"]
    everything, ends = torch.ones(work.num_tokens, dtype=torch.bool), work.cu_seqlens.int()

    def run() -> None:
        loss, _ = compute(
            current, old, rollout if rejection else old, advantage, LOW, everything, HIGH,
            rejection_sampling=rejection, cu_seqlens=ends,
        )  # fmt: skip
        trained(loss, current)

    return run


def skyrl(work: Workload, advantage: Tensor, correction: Settings | None) -> Timed:
    """SkyRL's policy loss over padded rows."""
    compute = released("skyrl", "ppo_policy_loss", f"{SKYRL}ppo_utils.py")
    config = _skyrl_config(correction or _none())
    current, old, mask = work.padded("logp_current").requires_grad_(), work.padded("logp_old"), work.mask.float()
    scaled = work.spread(advantage) / work.num_tokens
    rollout = work.padded("logp_rollout") if correction else None
    return lambda: trained(compute(current, old, scaled, config, mask, rollout)[0], current)


def openrlhf(work: Workload, advantage: Tensor, *, corrected: bool) -> Timed:
    """OpenRLHF's policy loss over padded rows."""
    gate = {"is_correction_level": "seq", "is_correction_threshold": [0.99, 1.01]} if corrected else {}
    compute = released("openrlhf", "PolicyLoss", "openrlhf/models/loss.py")(
        clip_eps_low=LOW, clip_eps_high=HIGH, **gate
    )
    current, old, mask = work.padded("logp_current").requires_grad_(), work.padded("logp_old"), work.mask.float()
    wide, rollout = work.spread(advantage), work.padded("logp_rollout") if corrected else None
    return lambda: trained(compute(current, old, wide, mask, rollout)[0], current)


def full(work: Workload, advantage: Tensor) -> dict[str, Maker]:
    """Correction, policy loss and metrics, forward and backward, as each of them has it."""
    return {
        "AReaL 1-D": lambda: areal(work, advantage, _rejection()),
        "SkyRL": lambda: skyrl(work, advantage, _correction()),
        "OpenRLHF": lambda: openrlhf(work, advantage, corrected=True),
    }


def loss(work: Workload, advantage: Tensor) -> dict[str, Maker]:
    """The clipped policy loss alone, forward and backward: a mean over tokens, and its gradient."""

    def slime() -> Timed:
        compute = compiled(checkout("slime", "compute_policy_loss", SLIME), dynamic=True)
        current, old = work.flat["logp_current"].clone().requires_grad_(), work.flat["logp_old"]
        return acted(lambda: trained(compute(old - current, advantage, LOW, HIGH)[0].mean(), current))

    def verl() -> Timed:
        compute = released("verl", "compute_policy_loss_vanilla", f"{VERL}core_algos.py")
        config = Settings(clip_ratio=LOW, clip_ratio_low=LOW, clip_ratio_high=HIGH, global_batch_info={})
        current, old = work.padded("logp_current").requires_grad_(), work.padded("logp_old")
        wide, mask = work.spread(advantage), work.mask.float()
        return lambda: trained(compute(old, current, wide, mask, config=config)[0], current)

    return {
        **({f"slime{COMPILED}": slime} if has_checkout("slime") else {}),
        "AReaL 1-D": lambda: areal(work, advantage, None),
        "SkyRL": lambda: skyrl(work, advantage, None),
        "OpenRLHF": lambda: openrlhf(work, advantage, corrected=False),
        "verl": verl,
    }


def correction(work: Workload) -> dict[str, Maker]:
    """Off-policy correction alone: weights and decisions, no gradient."""

    def skyrl() -> Timed:
        compute = released("skyrl", "compute_off_policy_correction", f"{SKYRL}off_policy_correction_utils.py")
        old, rollout, mask, config = (
            work.padded("logp_old"),
            work.padded("logp_rollout"),
            work.mask.float(),
            _correction(),
        )
        return lambda: compute(old, rollout, mask, config)

    def areal() -> Timed:
        compute, config = released("areal", "apply_rejection_sampling", AREAL), _rejection()
        everything, ends = torch.ones(work.num_tokens), work.cu_seqlens.int()
        return lambda: compute(work.flat["logp_old"], work.flat["logp_rollout"], everything, ends, config)

    def slime() -> Timed:
        compute = checkout("slime", "vanilla_tis_function", "slime/backends/megatron_utils/loss.py")
        settings, lengths = Settings(tis_clip_low=0.0, tis_clip=2.0), work.lengths.tolist()
        ones, blank = torch.ones(work.num_tokens), torch.zeros(work.num_tokens)
        rows = {name: list(values.split(lengths)) for name, values in {**work.flat, "ones": ones}.items()}
        return lambda: compute(
            settings, pg_loss=blank, train_log_probs=rows["logp_old"], rollout_log_probs=rows["logp_rollout"],
            loss_masks=rows["ones"],
        )  # fmt: skip

    return {
        **({"slime, token TIS": slime} if has_checkout("slime") else {}),
        "AReaL 1-D, one band": areal,
        "SkyRL": skyrl,
    }


def group(work: Workload) -> dict[str, Maker]:
    """Group advantages, spread to tokens."""

    def verl() -> Timed:
        compute = released("verl", "compute_grpo_vectorized_outcome_advantage", f"{VERL}core_algos.py")
        mask, names = work.mask.float(), work.group.numpy()
        rewards = torch.zeros(mask.shape)
        rewards[torch.arange(len(work.lengths)), work.lengths - 1] = work.reward
        return lambda: compute(rewards, mask, names)

    return {"verl vectorised": verl}


def gae(work: Workload) -> dict[str, Maker]:
    """GAE with whitened advantages (slime's has none)."""

    def verl() -> Timed:
        compute = released("verl", "compute_gae_advantage_return", f"{VERL}core_algos.py")
        mask, values, rewards = work.mask.float(), work.padded("value_old"), work.padded("token_reward")
        return lambda: compute(rewards, values, mask, 0.99, 0.95)

    def slime() -> Timed:
        compute = checkout("slime", "chunked_gae", SLIME)
        values, rewards = work.padded("value_old"), work.padded("token_reward")
        return lambda: compute(rewards, values, 0.99, 0.95)

    found: dict[str, Maker] = {"slime chunked": slime} if has_checkout("slime") else {}
    return found | ({"verl": verl} if work.mask.numel() <= 1_000_000 else {})

"""Functions of other frameworks, as their releases have them: the only place that loads and calls one to time it.

Released wheels are fetched once, as `trimtab check areal` does. A checkout is named by an environment variable:
TRIMTAB_SLIME=/path/to/slime.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.workload import Workload
from trimtab.sentinel.examination.wheels import wheel
from trimtab.sentinel.loading import Spec, Tree
from trimtab.sentinel.loading.load import load
from trimtab.sentinel.targets.stand_in import Settings

Timed = Callable[[], Any]


def released(framework: str, name: str, file: str) -> Any:
    """A function or class of a released framework."""
    return load(Spec(name, file=file), Tree.folder(wheel(framework).folder)).function


def checkout(framework: str, name: str, file: str) -> Any | None:
    """The same of a checkout, where one is named."""
    place = os.environ.get(f"TRIMTAB_{framework.upper()}")
    if not place:
        return None
    tree = Tree.git(place) if not (Path(place) / file).is_file() else Tree.folder(place)
    return load(Spec(name, file=file), tree).function


def backward(loss: Tensor, current: Tensor) -> None:
    loss.backward()
    current.grad = None


def full(work: Workload, advantage: Tensor) -> dict[str, Timed]:
    """Correction, policy loss and metrics, forward and backward, as each of them has it."""
    wide = torch.zeros(work.mask.shape)
    wide[work.mask] = advantage
    current = work.padded("logp_current").requires_grad_()
    old, rollout, mask = work.padded("logp_old"), work.padded("logp_rollout"), work.mask.float()
    flat = {name: values.clone() for name, values in work.flat.items()}
    flat_current = flat["logp_current"].requires_grad_()

    areal_loss = released("areal", "ppo_actor_loss_fn", "areal/utils/functional/functional.py")
    rejection = released("areal", "RejectionSamplingConfig", "areal/api/cli_args.py")(
        level="sequence", action="mask", metric="ratio", agg="mean", upper=1.01, lower=0.99
    )
    everything, ends = torch.ones(work.num_tokens, dtype=torch.bool), work.cu_seqlens.int()

    def areal() -> None:
        loss, _ = areal_loss(
            flat_current, flat["logp_old"], flat["logp_rollout"], advantage, 0.2, everything, 0.28,
            rejection_sampling=rejection, cu_seqlens=ends,
        )  # fmt: skip
        backward(loss, flat_current)

    skyrl_loss = released("skyrl", "ppo_policy_loss", "skyrl/backends/skyrl_train/utils/ppo_utils.py")
    correction = Settings(
        tis_ratio_type="sequence", sequence_tis_ratio_clip_high=2.0, sequence_mask_metric="geometric",
        geo_mask_low=0.99, geo_mask_high=1.01, outlier_token_is_threshold_low=1e-4,
        outlier_token_is_threshold_high=100.0, token_mask_is_threshold_low=None, token_mask_is_threshold_high=None,
    )  # fmt: skip
    config = Settings(
        policy_loss_type="regular", eps_clip_low=0.2, eps_clip_high=0.28, off_policy_correction=correction
    )
    scaled = wide / work.num_tokens

    def skyrl() -> None:
        loss, _ = skyrl_loss(current, old, scaled, config, mask, rollout)
        backward(loss, current)

    policy_loss = released("openrlhf", "PolicyLoss", "openrlhf/models/loss.py")(
        clip_eps_low=0.2, clip_eps_high=0.28, is_correction_level="seq", is_correction_threshold=[0.99, 1.01]
    )

    def openrlhf() -> None:
        backward(policy_loss(current, old, wide, mask, rollout)[0], current)

    return {"AReaL 1-D": areal, "SkyRL": skyrl, "OpenRLHF": openrlhf}


def group(work: Workload) -> dict[str, Timed]:
    """Group advantages, spread to tokens."""
    compute = released("verl", "compute_grpo_vectorized_outcome_advantage", "verl/trainer/ppo/core_algos.py")
    mask, names = work.mask.float(), work.group.numpy()
    rewards = torch.zeros(mask.shape)
    rewards[torch.arange(len(work.lengths)), work.lengths - 1] = work.reward
    return {"verl vectorised": lambda: compute(rewards, mask, names)}


def gae(work: Workload) -> dict[str, Timed]:
    """GAE with whitened advantages (slime's has none)."""
    compute = released("verl", "compute_gae_advantage_return", "verl/trainer/ppo/core_algos.py")
    mask, values, rewards = work.mask.float(), work.padded("value_old"), work.padded("token_reward")
    found: dict[str, Timed] = {}
    if work.mask.numel() <= 1_000_000:
        found["verl"] = lambda: compute(rewards, values, mask, 0.99, 0.95)
    chunked = checkout("slime", "chunked_gae", "slime/utils/ppo_utils.py")
    if chunked is not None:
        found["slime chunked"] = lambda: chunked(rewards, values, 0.99, 0.95)
    return found


def scores(logits: Tensor, ids: Tensor) -> dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]]:
    """Log-prob and entropy from logits; AReaL's runs compiled, as it ships."""
    areal = released("areal", "gather_logprobs_entropy", "areal/utils/functional/vocab_parallel.py")

    def plain(given: Tensor) -> tuple[Tensor, Tensor]:
        logs = given.log_softmax(-1)
        return logs.gather(-1, ids[:, None])[:, 0], -(logs.exp() * logs).sum(-1)

    del logits
    return {"AReaL": lambda given: areal(given, ids), "log_softmax": plain}

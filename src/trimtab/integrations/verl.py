"""verl's policy loss, advantages and rollout correction: the only place that knows its names and its layout.

    export VERL_USE_EXTERNAL_MODULES=trimtab.integrations.verl
    export TRIMTAB_WATCH=runs/mine                            # watch: every loss of verl, none is changed
    … actor_rollout_ref.actor.policy_loss.loss_mode=trimtab   # correct: TRIMTAB_RECIPE, or verl's own options
    … algorithm.adv_estimator=trimtab

Written for verl 0.9.1.
"""

import functools
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations.hook import (
    Hook,
    advantages,
    asked_recipe,
    correct,
    fitting,
    fitting_advantage,
    fitting_correction,
    run,
    tell,
    tell_once,
)  # fmt: skip
from trimtab.integrations.looking import FOLDER, Looking
from trimtab.signal import Counts, Part, Recipe, Stage, part

HOOK = Hook(
    framework="verl",
    sees=frozenset({"logp_old"}),
    adds={"kl": "actor.use_kl_loss", "entropy": "actor.entropy_coeff"},
)
ESTIMATOR = Hook(framework="verl", sees=frozenset(), adds={"kl in reward": "algorithm.use_kl_in_reward"})
REJECTIONS = {"token_k1": "keep.token_band", "seq_sum_k1": "keep.product_band", "seq_mean_k1": "keep.geometric_band"}
"""`algorithm.rollout_correction.rollout_rs` in our names. Its bounds are those of rollout/old, ours of old/rollout."""
WEIGHTINGS = {
    "token-mean": "weighting.token_mean",
    "seq-mean-token-mean": "weighting.sequence_mean_token_mean",
    "seq-mean-token-sum": "weighting.sequence_mean_token_sum",
    "seq-mean-token-sum-norm": "weighting.constant_divisor",
    "token-sum": "weighting.token_sum",
}


def register(recipe: Recipe | str | None = None, name: str = "trimtab") -> None:
    """Make `loss_mode=NAME` mean this recipe. In every process that trains, before the trainer is built."""
    from verl.trainer.ppo import core_algos  # pyright: ignore[reportMissingImports]

    _ = core_algos.register_policy_loss(name)(policy_loss(recipe))


def register_advantage(recipe: Recipe | str | None = None, name: str = "trimtab") -> None:
    """Make `algorithm.adv_estimator=NAME` mean the rewards' part of this recipe. In the trainer's process."""
    from verl.trainer.ppo import core_algos  # pyright: ignore[reportMissingImports]

    _ = core_algos.register_adv_est(name)(advantage_estimator(recipe))


def watch(folder: str | Path | None = None, **options: Any) -> Looking:
    """Watch every policy loss that verl has registered. In the processes that train."""
    from verl.trainer.ppo import core_algos  # pyright: ignore[reportMissingImports]

    looking = Looking(HOOK.framework, folder, **options)
    losses: dict[str, Any] = core_algos.POLICY_LOSS_REGISTRY
    for name, loss in losses.items():
        losses[name] = watched(loss, looking)
    return looking


def watched(loss: Any, looking: Looking | None = None) -> Any:
    """A policy loss of verl that is watched; what it returns is what it was."""
    eye = Looking(HOOK.framework) if looking is None else looking
    names = inspect.signature(loss)

    @functools.wraps(loss)
    def look(*given: Any, **named: Any) -> Any:
        had = names.bind(*given, **named).arguments
        eye.see(
            mask=had["response_mask"], logp_current=had["log_prob"], logp_old=had["old_log_prob"],
            advantage=had["advantages"], importance=had.get("rollout_is_weights"),
            corrections=() if had.get("rollout_is_weights") is None else ("importance",),
        )  # fmt: skip
        return loss(*given, **named)

    return look


def policy_loss(recipe: Recipe | str | None = None) -> Any:
    """A policy loss as verl calls it."""

    def trimtab_loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        scale = dict(config.global_batch_info)
        weighting = _weighting(loss_agg_mode, scale, log_prob.shape[1])
        asked = asked_recipe(recipe)
        chosen = own_recipe(config, weighting) if asked is None else asked
        fitted = fitting(HOOK, chosen, weighting, f"actor.loss_agg_mode={loss_agg_mode}")
        tell_once(HOOK, fitted)
        if rollout_is_weights is not None:  # verl's own correction: a detached factor of every token's loss
            advantages = advantages * rollout_is_weights
        return run(
            fitted, log_prob, response_mask, advantages, logp_old=old_log_prob,
            counts=_counts(scale, response_mask), ranks=int(scale.get("dp_size") or 1),
        )  # fmt: skip

    return trimtab_loss


def own_recipe(config: Any, weighting: Part) -> Recipe:
    """What verl's `loss_mode=vanilla` computes with these options."""
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    loss = part("policy_loss.dual_clipped", band=(1 - low, 1 + high), cap=config.get("clip_ratio_c", 3.0))
    return Recipe(
        name="verl vanilla",
        loss=Stage(loss, anchor="old"),
        weighting=weighting,
        normalize=part("normalize.raw"),
    )


def advantage_estimator(recipe: Recipe | str | None = None) -> Any:
    """An advantage estimator as verl calls it."""

    def trimtab_advantage(
        token_level_rewards: Tensor, response_mask: Tensor, config: Any = None, index: Any = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        asked = asked_recipe(recipe)
        chosen = fitting_advantage(ESTIMATOR, own_advantage(config) if asked is None else asked)
        if index is None:
            raise AdapterError("verl: the batch has no uid, so answers to one prompt cannot be compared. Fill in uid.")
        tell(f"trimtab in verl: advantages by {chosen.normalize}, {chosen.advantage}")
        return advantages(chosen, response_mask, token_level_rewards.sum(-1), index)

    return trimtab_advantage


def own_advantage(config: Any) -> Recipe:
    """What verl's `adv_estimator=grpo` computes with these options. A group of one is refused: it has no baseline."""
    std = "group" if config is None or config.get("norm_adv_by_std_in_grpo", True) else "none"
    return Recipe(
        name="verl grpo", loss=Stage(part("policy_loss.reinforce")), weighting=part("weighting.token_mean"),
        normalize=part("normalize.mean_std", mean="group", std=std, ddof=1, eps=1e-6),
    )  # fmt: skip


_replaced: list[tuple[Any, Any]] = []
CORRECTION = "compute_rollout_correction_and_add_to_batch"


def apply(recipe: Recipe | str | None = None) -> None:
    """Replace verl's rollout correction, in the trainer's process. `undo()` takes it back."""
    from verl.trainer.ppo import rollout_corr_helper  # pyright: ignore[reportMissingImports]

    undo()
    ours, theirs = rollout_correction(recipe), getattr(rollout_corr_helper, CORRECTION)
    for module in [*sys.modules.values()]:
        if getattr(module, "__name__", "").startswith("verl.") and vars(module).get(CORRECTION) is theirs:
            _replaced.append((module, theirs))
            setattr(module, CORRECTION, ours)


def undo() -> None:
    """Give verl its own rollout correction back."""
    while _replaced:
        module, theirs = _replaced.pop()
        setattr(module, CORRECTION, theirs)


def rollout_correction(recipe: Recipe | str | None = None) -> Any:
    """A stand-in for `compute_rollout_correction_and_add_to_batch`: it writes response_mask and rollout_is_weights."""

    def trimtab_correction(batch: Any, rollout_corr_config: Any) -> tuple[Any, dict[str, float]]:
        asked, fields = asked_recipe(recipe), batch.batch
        chosen = own_correction(rollout_corr_config) if asked is None else fitting_correction(HOOK, asked)
        if "rollout_log_probs" not in fields:
            raise AdapterError(
                "verl: a correction is on and rollout_log_probs is missing, so it could not act. Set "
                "actor_rollout_ref.rollout.calculate_log_probs=True."
            )
        tell("trimtab in verl: rollout correction by " + ", ".join(map(str, chosen.correction)))
        mask = fields["response_mask"]
        importance, keep, metrics = correct(
            chosen, mask, logp_old=fields["old_log_probs"], logp_rollout=fields["rollout_log_probs"]
        )
        fields["response_mask"] = keep.to(mask.dtype)
        if any(stage.part.formula.stage == "importance" for stage in chosen.correction):
            fields["rollout_is_weights"] = torch.where(mask.bool(), importance, torch.zeros_like(importance))
        return batch, metrics

    return trimtab_correction


def own_correction(config: Any) -> Recipe:
    """What `algorithm.rollout_correction` says, option by option; one that has no equivalent is refused."""
    stages: list[Stage] = []
    level, bound = config.get("rollout_is", None), config.get("rollout_is_threshold", 2.0)
    if level is not None:
        if "_" in str(bound):
            raise AdapterError(
                f"verl: rollout_is_threshold={bound!r} sets weights outside the bounds to 0 (IcePop), which is a "
                "rejection. Use rollout_rs=token_k1 for it, and one number here."
            )
        stages.append(Stage(part("importance.truncated", level=level, band=(0.0, float(bound))), ratio="engine"))
    if config.get("rollout_is_batch_normalize", False):
        raise AdapterError("verl: rollout_is_batch_normalize has no equivalent here. Say False.")
    names = [name.strip() for name in str(config.get("rollout_rs", None) or "").split(",") if name.strip()]
    limits = [limit.strip() for limit in str(config.get("rollout_rs_threshold", None) or "").split(",")]
    if names and len(limits) not in (1, len(names)):
        raise AdapterError(f"verl: {len(names)} of rollout_rs and {len(limits)} of rollout_rs_threshold. Give as many.")
    for place, name in enumerate(names):
        if name not in REJECTIONS:
            raise AdapterError(f"verl: rollout_rs={name} has no equivalent here. There are {', '.join(REJECTIONS)}.")
        stages.append(Stage(part(REJECTIONS[name], band=_band(name, limits[min(place, len(limits) - 1)])), "engine"))
    if not stages:
        raise AdapterError("verl: rollout_correction switches nothing on, so this would do nothing. Leave apply() out.")
    return Recipe(
        name="verl rollout correction", loss=Stage(part("policy_loss.reinforce")), correction=tuple(stages),
        weighting=part("weighting.token_mean"), normalize=part("normalize.raw"),
    )  # fmt: skip


def _band(name: str, limit: str) -> tuple[float, float]:
    """verl's `lower_upper`, or one upper bound; of rollout/old, so they change places."""
    low, _, high = limit.rpartition("_")
    if not high:
        raise AdapterError(f"verl: rollout_rs={name} has no rollout_rs_threshold. Give lower_upper.")
    return 1 / float(high), float(high) if not low else 1 / float(low)


def _weighting(mode: str, scale: dict[str, Any], width: int) -> Part:
    if mode not in WEIGHTINGS:
        raise AdapterError(f"verl: loss_agg_mode={mode!r} is not known here. There are {', '.join(WEIGHTINGS)}.")
    if mode == "seq-mean-token-sum-norm":
        return part(WEIGHTINGS[mode], divisor=scale.get("loss_scale_factor") or width)
    return part(WEIGHTINGS[mode])


def _counts(scale: dict[str, Any], mask: Tensor) -> Counts | None:
    """What verl counts over all micro-batches and ranks; without it, these rows are the whole step."""
    tokens, sequences = scale.get("batch_num_tokens"), scale.get("global_batch_size")
    if tokens is None and sequences is None:
        return None
    filled = mask.bool().any(1)
    return Counts(
        tokens=int(mask.sum() if tokens is None else tokens),
        sequences=int(filled.sum() if sequences is None else sequences),
    )


if "verl" in sys.modules:  # verl imports this module itself: VERL_USE_EXTERNAL_MODULES
    register()
    register_advantage()
    if os.environ.get(FOLDER):
        _ = watch()

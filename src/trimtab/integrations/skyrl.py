"""SkyRL's policy loss and advantages: the only place that knows its names and its layout. Written for SkyRL 0.3.

from trimtab.integrations import skyrl
skyrl.watch()                                  # before ray.init(); no loss is changed
skyrl.register("tis")                          # or correct: trainer.algorithm.policy_loss_type=trimtab
"""

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations.hook import (
    Hook,
    advantages,
    asked_recipe,
    fitting,
    fitting_advantage,
    run,
    tell,
    tell_once,
)  # fmt: skip
from trimtab.integrations.looking import Looking
from trimtab.signal import Recipe, Stage, part
from trimtab.signal.cookbook import recipe as named

HOOK = Hook(
    framework="SkyRL",
    sees=frozenset({"logp_old", "logp_rollout"}),
    adds={"kl": "algorithm.use_kl_loss", "entropy": "algorithm.use_entropy_loss"},
)
ESTIMATOR = Hook(framework="SkyRL", sees=frozenset(), adds={"kl in reward": "algorithm.use_kl_in_reward"})
SUM = part("weighting.token_sum")
"""SkyRL divides the advantages beforehand (algorithm.loss_reduction), so its loss is a plain sum."""
REDUCTIONS = {
    "token_mean": "weighting.token_mean",
    "sequence_mean": "weighting.sequence_mean_token_mean",
    "seq_mean_token_sum_norm": "weighting.constant_divisor",
}


def register(recipe: Recipe | str | None = None, name: str = "trimtab") -> None:
    """Make `policy_loss_type=NAME` mean this recipe; its weighting is SkyRL's `loss_reduction`."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import (  # pyright: ignore[reportMissingImports]
        PolicyLossRegistry,
    )

    PolicyLossRegistry.register(name, policy_loss(recipe))


def register_advantage(recipe: Recipe | str | None = None, name: str = "trimtab") -> None:
    """Make `advantage_estimator=NAME` mean the rewards' part of this recipe."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import (  # pyright: ignore[reportMissingImports]
        AdvantageEstimatorRegistry,
    )

    AdvantageEstimatorRegistry.register(name, advantage_estimator(recipe))


def watch(folder: str | Path | None = None, **options: Any) -> Looking:
    """Watch every policy loss that SkyRL has registered. Before ray.init()."""
    from skyrl.backends.skyrl_train.utils.ppo_utils import (  # pyright: ignore[reportMissingImports]
        PolicyLossRegistry,
    )

    looking = Looking(HOOK.framework, folder, **options)
    losses: dict[str, Any] = PolicyLossRegistry._functions
    for name, loss in losses.items():
        losses[name] = watched(loss, looking)
    return looking


def watched(loss: Any, looking: Looking | None = None) -> Any:
    """A policy loss of SkyRL that is watched; what it returns is what it was."""
    eye = Looking(HOOK.framework) if looking is None else looking
    names = inspect.signature(loss)

    @functools.wraps(loss)
    def look(*given: Any, **named: Any) -> Any:
        had = names.bind(*given, **named).arguments
        if had.get("loss_mask") is not None:
            eye.see(
                mask=had["loss_mask"] > 0, logp_current=had["log_probs"], logp_old=had["old_log_probs"],
                logp_rollout=had.get("rollout_logprobs"), advantage=had["advantages"],
            )  # fmt: skip
        return loss(*given, **named)

    return look


def policy_loss(recipe: Recipe | str | None = None) -> Any:
    """A policy loss as SkyRL calls it."""

    def trimtab_loss(
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        if loss_mask is None:
            raise AdapterError("SkyRL: the loss got no mask, so padding would train. Pass loss_mask.")
        asked = asked_recipe(recipe)
        fitted = own_recipe(config) if asked is None else _fitted(asked, config)
        if rollout_logprobs is None and "logp_rollout" in fitted.needs:
            raise AdapterError(
                "SkyRL: a correction is on and rollout_logprobs is missing, so it could not act. Set "
                "generator.sampling_params.logprobs=0, or leave the correction out."
            )
        tell_once(HOOK, fitted)
        return run(fitted, log_probs, loss_mask > 0, advantages, logp_old=old_log_probs, logp_rollout=rollout_logprobs)

    return trimtab_loss


def _fitted(recipe: Recipe | str, config: Any) -> Recipe:
    """The recipe as a sum; the mean that it names is what SkyRL has divided the advantages by."""
    reduction, chosen = config.loss_reduction, named(recipe) if isinstance(recipe, str) else recipe
    if chosen.weighting.formula.name != REDUCTIONS.get(reduction):
        raise AdapterError(
            f"SkyRL: recipe {chosen.name!r} weighs tokens by {chosen.weighting.formula.name}, and SkyRL has divided "
            f"the advantages by loss_reduction={reduction!r}, so the recipe's own weights would not act. "
            "Make both the same."
        )
    return fitting(HOOK, replace(chosen, weighting=SUM), SUM, "algorithm.loss_reduction")


def advantage_estimator(recipe: Recipe | str | None = None) -> Any:
    """An advantage estimator as SkyRL calls it."""

    def trimtab_advantage(
        token_level_rewards: Tensor, response_mask: Tensor, index: Any, config: Any = None,
        grpo_norm_by_std: bool = True, **_: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        asked = asked_recipe(recipe)
        chosen = fitting_advantage(ESTIMATOR, own_advantage(grpo_norm_by_std) if asked is None else asked)
        tell(f"trimtab in SkyRL: advantages by {chosen.normalize}, {chosen.advantage}")
        return advantages(chosen, response_mask, token_level_rewards.sum(-1), index)

    return trimtab_advantage


def own_advantage(grpo_norm_by_std: bool) -> Recipe:
    """What SkyRL's `advantage_estimator=grpo` computes. A group of one is refused: it has no baseline."""
    std = "group" if grpo_norm_by_std else "none"
    return Recipe(
        name="SkyRL grpo", loss=Stage(part("policy_loss.reinforce")), weighting=part("weighting.token_mean"),
        normalize=part("normalize.mean_std", mean="group", std=std, ddof=1, eps=1e-6),
    )  # fmt: skip


def own_recipe(config: Any) -> Recipe:
    """What SkyRL's `regular` (and, in a name that ends so, `dual_clip`) computes with these options."""
    if getattr(config, "use_tis", False):
        raise AdapterError(
            "SkyRL: use_tis is deprecated and is not read here. Say off_policy_correction.tis_ratio_type=token and "
            "token_tis_ratio_clip_high."
        )
    band = (1 - config.eps_clip_low, 1 + config.eps_clip_high)
    if str(config.policy_loss_type).endswith("dual_clip"):  # register(name="trimtab_dual_clip")
        loss = part("policy_loss.dual_clipped", band=band, cap=config.clip_ratio_c)
    else:
        loss = part("policy_loss.clipped", band=band)
    return Recipe(
        name=f"SkyRL {config.policy_loss_type}",
        loss=Stage(loss, anchor="old"),
        weighting=SUM,
        normalize=part("normalize.raw"),
        correction=_correction(config.off_policy_correction),
    )


def _correction(options: Any) -> tuple[Stage, ...]:
    """SkyRL's off-policy correction, switch by switch; one that has no equivalent is refused."""
    found: list[Stage] = []

    def add(name: str, **settings: Any) -> None:
        found.append(Stage(part(name, **settings), ratio="engine"))

    if options.tis_ratio_type is not None:
        cap = getattr(options, f"{options.tis_ratio_type}_tis_ratio_clip_high")
        add("importance.truncated", level=options.tis_ratio_type, band=(0.0, cap))
    if options.sequence_mask_metric == "geometric":
        add("keep.geometric_band", band=(options.geo_mask_low, options.geo_mask_high))
    if options.sequence_mask_metric == "product":
        add("keep.product_band", band=(options.product_mask_low, options.product_mask_high))
    low, high = options.outlier_token_is_threshold_low, options.outlier_token_is_threshold_high
    if low is not None or high is not None:
        add("keep.veto", low=low, high=high)
    low, high = options.token_mask_is_threshold_low, options.token_mask_is_threshold_high
    if low is not None and high is not None:
        add("keep.token_band", band=(low, high))
    return tuple(found)

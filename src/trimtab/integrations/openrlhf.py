"""OpenRLHF's policy loss: the only place that knows its names and its layout. Written for OpenRLHF 0.11.2.

from trimtab.integrations import openrlhf
openrlhf.watch()                  # in the actor's process, before it is built: Ray's worker_process_setup_hook
openrlhf.apply("tis")             # or correct; openrlhf.apply() computes what OpenRLHF's own options say

Entropy and the KL to a reference are added by OpenRLHF.
"""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations.hook import Hook, asked_recipe, fitting, run, tell_once
from trimtab.integrations.looking import Looking
from trimtab.signal import Counts, Recipe, Stage, part

HOOK = Hook(
    framework="OpenRLHF",
    sees=frozenset({"logp_old", "logp_rollout"}),
    adds={"kl": "algo.kl.use_loss", "entropy": "actor.entropy_coef"},
)
NOT_BELOW, ANY = 0.0, 1e30
"""A band that bounds nothing: OpenRLHF's `mask` keeps the ratio of what it keeps."""
_replaced: list[tuple[Any, Any]] = []


def apply(recipe: Recipe | str | None = None) -> None:
    """Replace `PolicyLoss` in the actor's module. `undo()` takes it back."""
    undo()
    _replace(policy_loss(recipe))


def watch(folder: str | Path | None = None, **options: Any) -> Looking:
    """Watch OpenRLHF's own `PolicyLoss`. In the actor's process, before the actor is built."""
    looking = Looking(HOOK.framework, folder, **options)
    undo()
    _replace(watched(_module().PolicyLoss, looking))
    return looking


def undo() -> None:
    """Give OpenRLHF its own loss back."""
    while _replaced:
        module, theirs = _replaced.pop()
        module.PolicyLoss = theirs


def _module() -> Any:
    from openrlhf.trainer.ray import ppo_actor  # pyright: ignore[reportMissingImports]

    return ppo_actor


def _replace(made: Any) -> None:
    actor = _module()
    _replaced.append((actor, actor.PolicyLoss))
    actor.PolicyLoss = made


def watched(theirs: Any, looking: Looking | None = None) -> Any:
    """OpenRLHF's loss class, or ours, watched; what it returns is what it was."""
    eye = Looking(HOOK.framework) if looking is None else looking

    def built(*given: Any, **named: Any) -> Any:
        loss = theirs(*given, **named)
        inner = loss.forward

        @functools.wraps(inner)
        def look(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *rest: Any, **other: Any) -> Any:
            mask = rest[0] if rest else other.get("action_mask")
            eye.see(
                mask=torch.ones_like(log_probs) if mask is None else mask, logp_current=log_probs,
                logp_old=old_log_probs, advantage=advantages,
                logp_rollout=rest[1] if len(rest) > 1 else other.get("rollout_log_probs"),
            )  # fmt: skip
            return inner(log_probs, old_log_probs, advantages, *rest, **other)

        loss.forward = look
        return loss

    return built


def policy_loss(recipe: Recipe | str | None = None) -> Any:
    """A stand-in for the class: called with OpenRLHF's options, it gives the module that computes."""

    class PolicyLoss(torch.nn.Module):
        """Returns OpenRLHF's five values: loss, clip_ratio, ppo_kl, vllm_kl, is_filter_ratio."""

        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.options: dict[str, Any] = options

        def forward(
            self, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, action_mask: Tensor | None = None,
            rollout_log_probs: Tensor | None = None, dp_size: int = 1, batch_num_tokens: float | None = None,
            global_batch_size: float | None = None,
        ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
            if action_mask is None:
                raise AdapterError("OpenRLHF: the loss got no action_mask, so padding would train. Pass it.")
            fitted = _fitted(recipe, self.options)
            if rollout_log_probs is None and "logp_rollout" in fitted.needs:
                raise AdapterError(
                    "OpenRLHF: a correction is on and rollout_log_probs is missing, so it could not act. Leave the "
                    "correction out, or let vLLM return log-probs."
                )
            tell_once(HOOK, fitted)
            mask = action_mask.bool()
            counts = None if batch_num_tokens is None or global_batch_size is None else Counts(
                tokens=round(float(batch_num_tokens)), sequences=round(float(global_batch_size))
            )  # fmt: skip
            loss, metrics = run(
                fitted, log_probs, mask, advantages, counts=counts, ranks=dp_size if counts else 1,
                logp_old=old_log_probs, logp_rollout=rollout_log_probs,
            )  # fmt: skip
            return loss, *_told(fitted, metrics, log_probs)

    return PolicyLoss


def _told(
    recipe: Recipe, metrics: dict[str, float], like: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """OpenRLHF's four numbers, out of ours. k1 is the mean of −log ratio."""

    def number(name: str) -> Tensor:
        return like.new_tensor(metrics.get(f"trimtab/{name}", 0.0))

    clipped, drift = number(f"{recipe.loss.part.formula.name}/clipped_tokens"), number("k1_update/token_mean")
    if "logp_rollout" not in recipe.needs:
        return clipped, drift, None, None
    return clipped, drift, number("k1_engine/token_mean"), 1 - number("kept/token_fraction")


def _fitted(recipe: Recipe | str | None, options: dict[str, Any]) -> Recipe:
    mode = "token-mean" if options.get("token_level_loss", True) else "seq-mean-token-mean"
    weighting = part(
        "weighting.token_mean" if options.get("token_level_loss", True) else "weighting.sequence_mean_token_mean"
    )
    asked = asked_recipe(recipe)
    chosen = own_recipe(**options) if asked is None else asked
    return fitting(HOOK, chosen, weighting, f"actor.loss_agg_mode={mode}")


def own_recipe(
    clip_eps_low: float = 0.2, clip_eps_high: float = 0.2, dual_clip: float | None = None,
    token_level_loss: bool = True, policy_loss_type: str = "ppo", is_correction_level: str = "off",
    is_correction_mode: str = "mask", is_correction_gating: str = "ratio",
    is_correction_threshold: Any = (0.5, 5.0),
) -> Recipe:  # fmt: skip
    """What OpenRLHF computes with these options; one that has no equivalent is refused."""
    if policy_loss_type != "ppo":
        raise AdapterError(f"OpenRLHF: policy_loss_type={policy_loss_type} is not mapped. Name a recipe, such as gspo.")
    band = (1 - clip_eps_low, 1 + clip_eps_high)
    loss = part("policy_loss.clipped", band=band)
    if dual_clip is not None:
        loss = part("policy_loss.dual_clipped", band=band, cap=dual_clip)
    return Recipe(
        name="OpenRLHF ppo", loss=Stage(loss, anchor="old"), normalize=part("normalize.raw"),
        weighting=part("weighting.token_mean" if token_level_loss else "weighting.sequence_mean_token_mean"),
        correction=_correction(is_correction_level, is_correction_mode, is_correction_gating, is_correction_threshold),
    )  # fmt: skip


def _correction(level: str, mode: str, gating: str, threshold: Any) -> tuple[Stage, ...]:
    if level == "off":
        return ()
    if gating != "ratio":
        raise AdapterError(f"OpenRLHF: is_correction_gating={gating} has no equivalent here. Use ratio.")
    low, high = threshold
    if mode == "clip":
        return (Stage(part("importance.truncated", level="token", band=(low, high)), ratio="engine"),)
    keep = "keep.token_band" if level == "token" else "keep.geometric_band"
    return (
        Stage(part("importance.truncated", level="token", band=(NOT_BELOW, ANY)), ratio="engine"),
        Stage(part(keep, band=(low, high)), ratio="engine"),
    )

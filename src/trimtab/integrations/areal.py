"""AReaL's actor loss: the only place that knows its names and its layout. Written for AReaL 1.0.4.

from trimtab.integrations import areal
areal.watch()                     # before the actor is built
areal.apply("decoupled_ppo")      # or correct; areal.apply() computes what AReaL's own options say

AReaL's `logprobs` of a batch are the sampler's, so logp_rollout here; `prox_logp` is logp_old.
"""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations.hook import Hook, asked_recipe, fitting, rows_of, run, tell_once
from trimtab.integrations.looking import Looking
from trimtab.signal import Recipe, Stage, part

HOOK = Hook(framework="AReaL", sees=frozenset({"logp_old", "logp_rollout", "version"}), adds={"kl": "actor.kl_ctl"})
MEAN = part("weighting.token_mean")
"""AReaL wants the mean over the micro-batch's mask, and weighs it by that mask's size."""
ANY = 1e30
LAYOUT = frozenset({"vocab_min_logits", "vocab_max_logits", "current_version", "sapo_tau_pos", "sapo_tau_neg"})
"""Arguments that choose nothing by themselves."""
_replaced: list[tuple[Any, Any]] = []


def apply(recipe: Recipe | str | None = None) -> None:
    """Replace `grpo_loss_fn`. `undo()` takes it back."""
    undo()
    _replace(loss(recipe))


def watch(folder: str | Path | None = None, **options: Any) -> Looking:
    """Watch AReaL's own loss."""
    looking = Looking(HOOK.framework, folder, **options)
    undo()
    _replace(watched(_module().grpo_loss_fn, looking))
    return looking


def undo() -> None:
    """Give AReaL its own loss back."""
    while _replaced:
        module, theirs = _replaced.pop()
        module.grpo_loss_fn = theirs


def _module() -> Any:
    from areal.trainer.ppo import actor  # pyright: ignore[reportMissingImports]

    return actor


def _replace(made: Any) -> None:
    actor = _module()
    _replaced.append((actor, actor.grpo_loss_fn))
    actor.grpo_loss_fn = made


def watched(theirs: Any, looking: Looking | None = None) -> Any:
    """AReaL's loss, watched; what it returns is what it was."""
    eye = Looking(HOOK.framework) if looking is None else looking

    @functools.wraps(theirs)
    def look(logprobs: Tensor, entropy: Tensor, input_data: dict[str, Any], *given: Any, **named: Any) -> Any:
        fields = _rows(logprobs, input_data)
        eye.see(entropy=_row(entropy, input_data), **fields)
        return theirs(logprobs, entropy, input_data, *given, **named)

    return look


def loss(recipe: Recipe | str | None = None) -> Any:
    """A loss as AReaL calls it."""

    def trimtab_loss(logprobs: Tensor, entropy: Tensor, input_data: dict[str, Any], **options: Any) -> Tensor:
        asked = asked_recipe(recipe)
        fitted = fitting(HOOK, own_recipe(**options) if asked is None else asked, MEAN, "the tokens of the micro-batch")
        if input_data.get("teacher_logp") is not None:
            raise AdapterError("AReaL: teacher_logp asks for distillation, which is not done here. Leave it out.")
        fields = _rows(logprobs, input_data)
        if fields["logp_old"] is None:
            raise AdapterError(
                "AReaL: prox_logp is missing, so there is no old policy. Say actor.prox_logp_method=recompute."
            )
        tell_once(HOOK, fitted)
        current, mask, advantage = (fields.pop(name) for name in ("logp_current", "mask", "advantage"))
        return run(fitted, current, mask, advantage, **fields)[0]

    return trimtab_loss


def _row(values: Tensor | None, data: dict[str, Any]) -> Tensor | None:
    """Packed tokens as padded rows."""
    if values is None or values.ndim == 2:
        return values
    return rows_of(torch.tensor_split(values, data["cu_seqlens"][1:-1].cpu().long()))


def _rows(logprobs: Tensor, data: dict[str, Any]) -> dict[str, Any]:
    mask = _row(data["loss_mask"], data)
    assert mask is not None
    return {
        "mask": mask.bool(),
        "logp_current": _row(logprobs, data),
        "logp_old": _row(data.get("prox_logp"), data),
        "logp_rollout": _row(data["logprobs"], data),
        "advantage": _row(data["advantages"], data),
    }


def own_recipe(
    eps_clip: float, eps_clip_higher: float | None = None, c_clip: float | None = None, rejection_sampling: Any = None,
    m2_threshold: float | None = None, importance_sampling_level: str = "token", use_sapo_loss: bool = False,
    prox_logp_method: str = "recompute", use_decoupled_loss: bool = False, **others: Any,
) -> Recipe:  # fmt: skip
    """What AReaL computes with these options; one that has no equivalent is refused."""
    del use_decoupled_loss  # it decides what prox_logp holds, not what the loss does with it
    refused = {
        "m2_threshold": m2_threshold is not None,
        "importance_sampling_level=sequence": importance_sampling_level != "token",
        "use_sapo_loss": use_sapo_loss,
        f"prox_logp_method={prox_logp_method}": prox_logp_method == "loglinear",
        **{name: name not in LAYOUT and bool(value) for name, value in others.items()},
    }
    found = [name for name, is_on in refused.items() if is_on]
    if found:
        raise AdapterError(
            f"AReaL: {', '.join(found)} is not mapped, so it would be lost. Leave it out, or name a recipe."
        )
    band = (1 - eps_clip, 1 + (eps_clip if eps_clip_higher is None else eps_clip_higher))
    made = part("policy_loss.clipped", band=band)
    if c_clip is not None:
        made = part("policy_loss.dual_clipped", band=band, cap=c_clip)
    return Recipe(
        name="AReaL ppo", loss=Stage(made, anchor="old"), weighting=MEAN, normalize=part("normalize.raw"),
        correction=() if rejection_sampling is None else _correction(rejection_sampling),
    )  # fmt: skip


def _correction(config: Any) -> tuple[Stage, ...]:
    """AReaL's rejection sampling by token ratios."""
    if config.metric != "ratio" or config.level != "token":
        raise AdapterError(
            f"AReaL: rejection_sampling with level={config.level}, metric={config.metric} is not mapped. Use "
            "level=token and metric=ratio, or name a recipe."
        )
    low = 0.0 if config.lower is None else config.lower
    if config.action == "clamp":
        return (Stage(part("importance.truncated", level="token", band=(low, config.upper)), ratio="engine"),)
    return (
        Stage(part("importance.truncated", level="token", band=(0.0, ANY)), ratio="engine"),
        Stage(part("keep.token_band", band=(low, config.upper)), ratio="engine"),
    )

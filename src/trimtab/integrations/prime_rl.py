"""prime-rl's custom loss: the only place that knows its names and its layout.

    [trainer.loss]
    type = "custom"
    import_path = "trimtab.integrations.prime_rl.loss"          # correct, by a recipe
    kwargs = { recipe = "cispo", loss = { anchor = "rollout" } }

    import_path = "trimtab.integrations.prime_rl.watched"       # watch prime-rl's default loss

It is called with one sequence at a time, and prime-rl divides the sum by the token count of the whole step.
"""

from dataclasses import replace
from typing import Any

import torch

from trimtab.errors import AdapterError
from trimtab.integrations.hook import Hook, asked_recipe, fitting, run, tell_once
from trimtab.integrations.looking import Looking
from trimtab.signal import Recipe, part
from trimtab.signal.cookbook import recipe as named

HOOK = Hook(framework="prime-rl", sees=frozenset({"logp_rollout", "logp_ref"}), adds={"entropy": "its own code"})
SUM = part("weighting.token_sum")


def loss(inputs: Any, recipe: Recipe | str | None = None, **settings: Any) -> Any:
    """A loss as prime-rl calls it; further kwargs are settings of the recipe, as in `trimtab.recipe(name, …)`."""
    key = repr((recipe, settings))
    fitted = _known[key] if key in _known else _known.setdefault(key, _fitted(recipe, settings))
    tell_once(HOOK, fitted)
    advantage = inputs.advantages
    if inputs.loss_weights is not None:
        if fitted.kl is not None:
            raise AdapterError(
                "prime-rl: loss_weights weigh the whole loss of a token, and here only its policy term could be "
                "weighed. Leave the KL out of the recipe."
            )
        advantage = advantage * inputs.loss_weights  # every policy loss is linear in the advantage's size
    if not bool(inputs.loss_mask.any()):
        return _outputs(inputs, inputs.trainer_logprobs.sum() * 0.0, {})
    total, metrics = run(
        fitted, inputs.trainer_logprobs[None], inputs.loss_mask[None], advantage[None],
        logp_rollout=inputs.inference_logprobs[None],
        logp_ref=None if inputs.ref_logprobs is None else inputs.ref_logprobs[None],
    )  # fmt: skip
    return _outputs(inputs, total, metrics)


_known: dict[str, Recipe] = {}
"""It is called for every sequence, and a recipe is read once."""


def _fitted(recipe: Recipe | str | None, settings: dict[str, Any]) -> Recipe:
    asked = asked_recipe(recipe)
    if asked is None:
        raise AdapterError(
            "prime-rl: type=custom hands over no options of prime-rl's own losses, and their masks (dppo_mask_low, "
            "dppo_mask_high, ipo_threshold) have no equivalent here. Name a recipe: kwargs = { recipe = … }."
        )
    chosen = named(asked, **settings) if isinstance(asked, str) else asked
    if chosen.weighting.formula.name != "weighting.token_mean":
        raise AdapterError(
            f"prime-rl: recipe {chosen.name!r} weighs tokens by {chosen.weighting.formula.name}, and prime-rl divides "
            "by the tokens of the step, so the recipe's own weights would not act. Say weighting='token_mean'."
        )
    if any(stage.pair in ("engine", "update") for stage in (chosen.loss, *chosen.correction)):
        raise AdapterError(
            f"prime-rl: recipe {chosen.name!r} compares with logp_old in "
            f"{next(s for s in (chosen.loss, *chosen.correction) if s.pair in ('engine', 'update'))}, and prime-rl has "
            "none. Anchor the loss at the rollout (anchor='rollout'), and take ratios as total."
        )
    return fitting(HOOK, replace(chosen, weighting=SUM, old="absent"), SUM, "the global token count")


def _outputs(inputs: Any, total: Any, metrics: dict[str, float]) -> Any:
    from prime_rl.trainer.rl.loss import LossOutputs  # pyright: ignore[reportMissingImports]

    like = inputs.trainer_logprobs
    return LossOutputs(loss=total, metrics={name: like.new_tensor(number) for name, number in metrics.items()})


_looking: list[Looking] = []


def watched(inputs: Any, inner: Any = None, folder: str | None = None, **settings: Any) -> Any:
    """prime-rl's default loss with these settings, or `inner`, watched; what it returns is what it was."""
    from prime_rl.configs.trainer import DefaultLossConfig  # pyright: ignore[reportMissingImports]
    from prime_rl.trainer.rl.loss import default_loss_fn  # pyright: ignore[reportMissingImports]

    if not _looking:
        _looking.append(Looking(HOOK.framework, folder))
    _looking[0].see(
        mask=inputs.loss_mask[None], logp_current=_row(inputs.trainer_logprobs),
        logp_rollout=_row(inputs.inference_logprobs), logp_ref=_row(inputs.ref_logprobs),
        advantage=inputs.advantages[None],
    )  # fmt: skip
    if inner is not None:
        return inner(inputs, **settings)
    return default_loss_fn(inputs, DefaultLossConfig(**settings))


def _row(values: torch.Tensor | None) -> torch.Tensor | None:
    return None if values is None else values[None]

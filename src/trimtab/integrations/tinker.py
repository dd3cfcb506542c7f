"""Tinker's custom loss: the only place that knows its names and its layout. Written for tinker 0.38.

from trimtab.integrations import tinker
await training_client.forward_backward_custom_async(data, tinker.loss("cispo"))               # correct
await training_client.forward_backward_custom_async(data, tinker.watched(my_loss))            # watch your own

A datum's loss_fn_inputs hold `logprobs` (the sampler's), `advantages` and, where some tokens do not train, `mask`. The
call is the whole optimiser step, so recipes that decide across a step act too. It costs one more forward pass.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from trimtab.errors import AdapterError
from trimtab.integrations.hook import Hook, asked_recipe, fitting, rows_of, run, tell_once
from trimtab.integrations.looking import Looking
from trimtab.signal import Recipe, part
from trimtab.signal.cookbook import recipe as named

HOOK = Hook(
    framework="Tinker", sees=frozenset({"logp_rollout"}), adds={"entropy": "no option: there is none"}, is_whole=True
)
SUM = part("weighting.token_sum")
"""Tinker's own losses are sums over tokens, and its learning rates are made for that."""


def loss(recipe: Recipe | str | None = None, *, weighting: str = "token_sum") -> Any:
    """A loss as Tinker calls it. `weighting="as the recipe"` divides as the recipe says, instead of Tinker's sum."""
    asked = asked_recipe(recipe)
    if asked is None:
        raise AdapterError("Tinker: forward_backward_custom has no options of its own. Name a recipe, such as cispo.")
    chosen = named(asked) if isinstance(asked, str) else asked
    if any(stage.pair in ("engine", "update") for stage in (chosen.loss, *chosen.correction)):
        raise AdapterError(
            f"Tinker: recipe {chosen.name!r} compares with logp_old, and a datum has none. Anchor the loss at the "
            "rollout (anchor='rollout'), and take ratios as total."
        )
    wanted = SUM if weighting == "token_sum" else chosen.weighting
    fitted = fitting(HOOK, replace(chosen, weighting=wanted, old="absent"), wanted, "the sum of tokens")

    def trimtab_loss(data: Sequence[Any], logprobs: Sequence[Tensor]) -> tuple[Tensor, dict[str, float]]:
        tell_once(HOOK, fitted)
        fields = rows(data, logprobs)
        current, mask, advantage = (fields.pop(name) for name in ("logp_current", "mask", "advantage"))
        return run(fitted, current, mask, advantage, **fields)

    return trimtab_loss


def rows(data: Sequence[Any], logprobs: Sequence[Tensor]) -> dict[str, Any]:
    """Tinker's data in our names."""

    def field(name: str) -> list[Tensor]:
        return [_tensor(datum.loss_fn_inputs[name]).to(logprobs[0].device) for datum in data]

    has_mask = "mask" in data[0].loss_fn_inputs
    masks = field("mask") if has_mask else [values.new_ones(values.shape) for values in logprobs]
    return {
        "logp_current": rows_of(logprobs),
        "mask": rows_of(masks) > 0,
        "advantage": rows_of(field("advantages")),
        "logp_rollout": rows_of(field("logprobs")),
    }


def _tensor(values: Any) -> Tensor:
    """Tinker's TensorData, or a tensor."""
    return values if isinstance(values, Tensor) else values.to_torch()


def watched(inner: Any, looking: Looking | None = None) -> Any:
    """A custom loss of yours that is watched; what it returns is what it was."""
    eye = Looking(HOOK.framework) if looking is None else looking

    @functools.wraps(inner)
    def look(data: Sequence[Any], logprobs: Sequence[Tensor]) -> Any:
        eye.see(**rows(data, logprobs))
        found = inner(data, logprobs)
        _ = eye.open().step()  # the optimiser runs in another place; one call is one step here
        return found

    return look

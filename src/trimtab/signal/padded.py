"""`loss`: the whole signal in one call, for people with padded tensors and one optimiser step a batch."""

import warnings
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.door import LOGP_SLACK, Numbers
from trimtab.signal.layout import Scalar
from trimtab.signal.preparation import prepare
from trimtab.signal.recipe import Recipe
from trimtab.signal.recipes import recipe as named
from trimtab.signal.state import SignalState
from trimtab.signal.step import decide, step, token_loss
from trimtab.signal.update import select


def loss(
    logp: Tensor,
    *,
    recipe: str | Recipe,
    mask: Tensor,
    reward: Numbers,
    group: Numbers,
    entropy: Tensor | None = None,
    value: Tensor | None = None,
    value_old: Tensor | None = None,
    **fields: Any,
) -> tuple[Scalar, dict[str, float]]:
    """The loss to call backward on, and its metrics.

    logp, mask and every other token field are [rows, width], padded on either side; `mask` is true at tokens the policy
    chose. reward and group hold one entry a row. Other fields by name: logp_old, logp_rollout, logp_ref, ended,
    scored, value_after, token_reward, version, … (see SignalBatch). `value` carries gradient, `value_old` does not.
    """
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(chosen, Recipe):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(f"loss: recipe is {type(recipe).__name__}; give a name (trimtab catalog) or recipe(name, …).")
    if logp.shape != mask.shape:
        raise SignalError(
            f"loss: logp has shape {list(logp.shape)} and mask {list(mask.shape)}, so tokens do not match. "
            "Give both [rows, width]."
        )
    batch = SignalBatch.from_padded(mask, reward=reward, group=group, value=value_old, **fields)
    prepared, _ = prepare(batch, chosen)
    for warning in prepared.warnings:
        warnings.warn(warning, stacklevel=2)
    update = next(prepared.updates(1))
    _, index = select(batch.segments, update.sequences)
    current = {
        name: batch.cells.gather(t, name)[index]
        for name, t in (("logp", logp), ("entropy", entropy), ("value", value))
        if t is not None
    }
    _check_current(current["logp"])
    decided = decide(update, current["logp"].detach() if chosen.needs_logp_now else None)
    (micro,) = decided.split(num=1)
    result = token_loss(micro, current["logp"], entropy=current.get("entropy"), value=current.get("value"))
    stepped = step([result]).metrics
    for warning in SignalState().observe(stepped.values(), chosen)[1]:
        warnings.warn(warning, stacklevel=2)
    return result.loss, prepared.metrics.merge(stepped).values()


def _check_current(logp: Tensor) -> None:
    """What `token_loss` cannot ask of the device, asked here once: finite log-probs, and something to train."""
    if not logp.requires_grad and torch.is_grad_enabled():
        warnings.warn("loss: logp carries no gradient, so nothing will train. Do not detach it.", stacklevel=3)
    values = logp.detach()
    if not values.numel():
        warnings.warn("loss: no token is trainable in a sequence that trains, so the loss is 0.", stacklevel=3)
    elif not bool(torch.isfinite(values).all()):
        raise SignalError(f"loss: logp is {values[~torch.isfinite(values)][0].item()} at a trainable token.")
    elif bool((values > LOGP_SLACK).any()):
        raise SignalError(
            f"loss: logp reaches {values.max().item():.4g}, and a log-prob is never above 0, so this is something else "
            "(probabilities, logits). Give log-probs: logits.log_softmax(-1)."
        )

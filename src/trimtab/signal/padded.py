"""`loss`: the whole signal in one call, for people with padded tensors and one optimiser step a batch."""

import warnings
from typing import Any

from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.layout import Scalar
from trimtab.signal.preparation import prepare
from trimtab.signal.recipe import Recipe
from trimtab.signal.recipes import recipe as named
from trimtab.signal.step import decide, step, token_loss
from trimtab.signal.update import select


def loss(
    logp: Tensor,
    *,
    recipe: str | Recipe,
    mask: Tensor,
    reward: Tensor,
    group: Tensor,
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
    decided = decide(update, current["logp"].detach() if chosen.needs_logp_now else None)
    (micro,) = decided.split(num=1)
    result = token_loss(micro, current["logp"], entropy=current.get("entropy"), value=current.get("value"))
    return result.loss, prepared.metrics.merge(step([result]).metrics).values()

"""`loss`: the whole signal in one call, for people with padded tensors and an optimiser loop of their own."""

import warnings
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.batch import SignalBatch
from trimtab.signal.cell import Cells
from trimtab.signal.composition import Recipe
from trimtab.signal.cookbook import recipe as named
from trimtab.signal.counts import Counts, check_groups, share_of
from trimtab.signal.decision import decide
from trimtab.signal.door import FLOATS, check_floats, check_tokens
from trimtab.signal.layout import PerToken, Scalar, places
from trimtab.signal.objective import TokenLoss, step, token_loss
from trimtab.signal.preparation import Prepared, prepare
from trimtab.signal.state import SignalState
from trimtab.signal.steering import refuse_forgotten
from trimtab.signal.tensors import Numbers, as_count, as_flags, as_number, as_tensor
from trimtab.signal.update import Update, select

REWARD_METRICS = ("reward/", "votes/", "constant_groups/", "groups_without_signal/")
"""What is known of rewards and votes; left out where the caller gives none."""


def loss(
    logp: Tensor,
    *,
    recipe: str | Recipe,
    mask: Numbers,
    reward: Numbers | None = None,
    group: Numbers | None = None,
    advantage: Numbers | None = None,
    entropy: Tensor | None = None,
    value: Tensor | None = None,
    observed: Numbers | None = None,
    counts: Counts | None = None,
    ranks: int = 1,
    grad_scale: float | None = 1.0,
    **fields: Any,
) -> tuple[Scalar, dict[str, float]]:
    """The loss to call backward on, and its metrics.

    **This call is the whole optimiser step**: its denominators are those of these rows. Call backward on the loss as it
    is. A step in several calls (micro-batches, ranks) needs `counts`, the sum of `trimtab.count(…)` over all of them;
    then call backward on each loss as it is, and divide by nothing.

    logp, mask and every other token field are [rows, width], padded on either side; `mask` is true at tokens the policy
    chose. reward and group hold one entry per row. Tensors, arrays and lists are taken; `logp`, `entropy` and `value`
    carry gradient, so they are the model's own tensors. Other fields by name: logp_old, logp_rollout, logp_ref,
    value_old, ended, scored, value_after, token_reward, version, … (see SignalBatch).

    `advantage`: where you have computed it, [rows] or [rows, width]. What the recipe does before the advantage is then
    yours: reward shaping, KL in the reward, normalisation, credit, whitening and clipping do not run. reward and group
    may be left out.
    `observed`: true at tokens that the environment wrote, [rows, width], for a recipe with a term on them.
    `ranks`: data-parallel ranks that average gradients (DDP, FSDP2); the loss is multiplied by it.
    `grad_scale`: what you multiply the loss by before backward, for instance a GradScaler's scale. A warning says so
    when another gradient arrives. None: you do not know, and nothing is said.
    """
    chosen = _recipe(recipe)
    _ = as_count(ranks, "loss", "ranks")
    says = "It is what the loss is multiplied by before backward: a number other than 0."
    if grad_scale is not None:
        _ = as_number(grad_scale, "loss", "grad_scale", lambda scale: 0 < abs(scale) < float("inf"), says)
    given = _in_precision_of(logp, fields)
    seen = None if observed is None else _observed(observed, mask)
    given |= {} if seen is None else {"observed": seen.sum(1)}
    prepared = _prepare(chosen, mask, reward, group, advantage, given)
    for warning in prepared.warnings:
        warnings.warn(warning, stacklevel=2)
    update = next(prepared.updates(1))
    current = _current(prepared.batch, update, logp=logp, entropy=entropy, value=value)
    _check_counts(counts, prepared, update, given_advantage=advantage is not None)
    deciding = prepared.recipe.needs_logp_now
    decided = decide(
        update,
        current["logp"] if deciding else None,
        entropy_now=current["entropy"] if deciding else None,
        counts=counts,
    )
    (micro,) = replace(decided, data_parallel=ranks).split(num=1)
    result = token_loss(
        micro,
        current["logp"],
        entropy=current["entropy"],
        value=current["value"],
        logp_observed=None if seen is None else logp[update.sequences][seen[update.sequences]],
    )
    numbers = _numbers(result, prepared, has_reward=reward is not None)
    if grad_scale is not None:
        _watch(result.loss, grad_scale)
    return result.loss, numbers


def count(
    *,
    recipe: str | Recipe,
    mask: Numbers,
    reward: Numbers | None = None,
    group: Numbers | None = None,
    advantage: Numbers | None = None,
    **fields: Any,
) -> Counts:
    """What trains of these rows: the arguments of `loss` without the current policy's numbers.

    Add up the counts of every micro-batch of an optimiser step, on every rank, and pass the sum to each call of `loss`:
    `whole = sum((trimtab.count(recipe="dapo", **rows) for rows in micro_batches), trimtab.Counts())`.
    """
    return Counts.of(_prepare(_recipe(recipe), mask, reward, group, advantage, fields))


def _observed(observed: Numbers, mask: Numbers) -> Tensor:
    """Which cells the environment wrote; the policy chose none of them."""
    seen, chosen = as_flags(observed, "loss: observed"), as_flags(mask, "SignalBatch: trainable")
    if seen.shape != chosen.shape:
        raise SignalError(
            f"loss: observed has shape {list(seen.shape)} and mask {list(chosen.shape)}, so tokens do not match. "
            "Give both [rows, width]."
        )
    both = places((seen & chosen).any(1))
    if both:
        raise SignalError(
            f"loss: rows {both[:8]} have tokens in both mask and observed, so they would train twice. A token is the "
            "policy's or the environment's."
        )
    return seen


def _recipe(recipe: str | Recipe) -> Recipe:
    chosen = named(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(chosen, Recipe):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(f"loss: recipe is {type(recipe).__name__}; give a name (trimtab catalog) or recipe(name, …).")
    return chosen


def _prepare(
    recipe: Recipe,
    mask: Numbers,
    reward: Numbers | None,
    group: Numbers | None,
    advantage: Numbers | None,
    fields: dict[str, Any],
) -> Prepared:
    missing = [name for name, given in (("reward", reward), ("group", group)) if given is None]
    if reward is None and recipe.nll is not None and recipe.nll.on == "rewarded":
        raise SignalError(
            f"loss: reward is missing, and recipe {recipe.name!r} has a term on answers with a reward above 0, which "
            "would act nowhere. Give one reward per row."
        )
    drops = recipe.filter_constant_groups or recipe.group_mean_band is not None
    if missing and (advantage is None or drops):
        same = "to drop groups whose answers all got the same reward"
        dropping = same if recipe.filter_constant_groups else "to drop groups by their mean reward"
        why = "to compare answers" if advantage is None else dropping
        raise SignalError(
            f"loss: {' and '.join(missing)} is missing, which recipe {recipe.name!r} needs {why}. Give one reward and "
            "one group name per row" + (", or drop no groups." if advantage is not None else ", or advantage=….")
        )
    if advantage is None:
        refuse_forgotten(recipe)
    flags = as_flags(mask, "SignalBatch: trainable")
    rows = range(flags.shape[0] if flags.ndim else 0)
    batch = SignalBatch.from_padded(
        flags,
        reward=[0.0 for _ in rows] if reward is None else reward,
        group=[*rows] if group is None else group,
        **fields,
    )
    given = None if advantage is None else _advantage(advantage, batch)
    return prepare(batch, recipe, advantage=given)[0]


def _in_precision_of(logp: Tensor, fields: dict[str, Any]) -> dict[str, Any]:
    """Plain numbers have no precision of their own: they are read in that of the current log-probs."""
    dtype: torch.dtype | None = getattr(logp, "dtype", None)
    dtype = dtype if dtype in (torch.float32, torch.float64) else None
    plain = {n: v for n, v in fields.items() if n in (*FLOATS, "value_after", "token_reward") and _holds_numbers(v)}
    return {
        **fields,
        **{name: as_tensor(values, f"SignalBatch: {name}", dtype=dtype) for name, values in plain.items()},
    }


def _holds_numbers(values: object) -> bool:
    """A list of numbers, or of rows of them; tensors and arrays know their precision."""
    for _ in range(2):
        if isinstance(values, list | tuple) and values:
            values = cast("list[object]", values)[0]
    return isinstance(values, int | float)


def _advantage(advantage: Numbers, batch: SignalBatch) -> PerToken:
    """One number per row or per cell, as flat tokens."""
    values = as_tensor(advantage, "loss: advantage", dtype=batch.dtype, device=batch.reward.device)
    if values.ndim == 1:
        if values.shape[0] != batch.cells.shape[0]:
            raise SignalError(
                f"loss: advantage has {values.shape[0]} entries for {batch.cells.shape[0]} rows. Give one per row, or "
                "[rows, width]."
            )
        values = values[:, None].expand(batch.cells.shape)
    return batch.cells.gather(values, "advantage")


def _current(batch: SignalBatch, update: Update, **given: Tensor | None) -> dict[str, Any]:
    """What the current policy says of the tokens of this step, checked."""
    _, index = select(batch.segments, update.sequences)
    found = {name: _checked(name, values, batch.cells, index) for name, values in given.items()}
    for name, values in found.items():
        if values is not None:
            check_tokens("loss", name, values, update.whole.segments, is_logp=name == "logp")
    logp = found["logp"]
    if logp is not None and torch.is_grad_enabled():
        if not logp.requires_grad:
            warnings.warn("loss: logp carries no gradient, so nothing will train. Do not detach it.", stacklevel=3)
        if not logp.numel():
            warnings.warn("loss: no token is trainable in a sequence that trains, so the loss is 0.", stacklevel=3)
    return found


def _checked(name: str, values: Tensor | None, cells: Cells, index: Tensor) -> PerToken | None:
    if values is None and name != "logp":
        return None
    if not isinstance(values, Tensor):
        raise SignalError(
            f"loss: {name} is {type(values).__name__}, which carries no gradient. Give the model's own tensor."
        )
    if tuple(as_tensor(values, f"loss: {name}").shape) != cells.shape:
        raise SignalError(
            f"loss: {name} has shape {list(values.shape)} and mask {list(cells.shape)}, so tokens do not match. "
            "Give both [rows, width]."
        )
    check_floats("loss", name, values)
    return cells.gather(values, name)[index]


def _check_counts(counts: Counts | None, prepared: Prepared, update: Update, *, given_advantage: bool) -> None:
    """A call that is only a part of the step must not compute what only the whole step can tell."""
    if counts is None:
        return
    if not isinstance(counts, Counts):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(f"loss: counts is {type(counts).__name__}. Add up trimtab.count(…) of every micro-batch.")
    recipe, batch = prepared.recipe, prepared.batch
    if share_of(recipe.weighting, update.whole.segments, counts) == 1.0:
        return
    if recipe.decides_across:
        raise SignalError(
            f"loss: recipe {recipe.name!r} decides across the whole step, and this call holds a part of it. "
            "Use prepare → updates → decide → token_loss on the whole step."
        )
    if given_advantage:
        return
    check_groups(counts, batch.group)
    if recipe.whiten or "batch" in recipe.normalize.settings.values():
        raise SignalError(
            f"loss: recipe {recipe.name!r} compares across the whole batch, and this call holds a part of it. "
            "Pass advantage=…, or use prepare → updates → decide → token_loss."
        )


def _numbers(result: TokenLoss, prepared: Prepared, *, has_reward: bool) -> dict[str, float]:
    stepped = step([result]).metrics
    found = stepped.numbers()
    undefined = [name for name, number in found.items() if name.startswith("loss/") and not abs(number) < float("inf")]
    if undefined:
        raise SignalError(
            f"loss: {', '.join(f'{name} is {found[name]}' for name in undefined)}, so the gradient would be undefined. "
            "A number or a coefficient is too large for its precision: look at advantage/token_std, kl_ref/token_mean."
        )
    for warning in SignalState().observe(found, prepared.recipe)[1]:
        warnings.warn(warning, stacklevel=3)
    merged = prepared.metrics.merge(stepped).numbers()
    return {name: number for name, number in merged.items() if has_reward or not name.startswith(REWARD_METRICS)}


def _watch(total: Scalar, grad_scale: float) -> None:
    """Say so when the gradient that arrives is not the one that was declared: somebody divided the loss again."""

    def look(gradient: Tensor) -> None:
        arrived = float(gradient)
        if not abs(arrived - grad_scale) <= 1e-6 * abs(grad_scale):
            warnings.warn(
                f"loss: a gradient of {arrived:g} arrived where {grad_scale:g} was due, so this step is "
                f"{arrived / grad_scale:g} times what the recipe says. Do not divide the loss by the number of "
                "micro-batches: pass counts=…, the counts of the whole step, and call backward on each loss as it is. "
                "A scale on purpose is declared as grad_scale=….",
                stacklevel=2,
            )

    if total.requires_grad:
        total.register_hook(look)

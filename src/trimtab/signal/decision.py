"""`decide`: what needs the current policy and looks across sequences, and every denominator. Once per optimiser step.

Whatever is decided here, and whatever was seen on the way, travels with the tokens: a split changes neither.
"""

from collections import ChainMap
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.catalogue import INPUTS
from trimtab.signal.composition import Recipe
from trimtab.signal.counts import Counts, refuse_own_denominators, share_of
from trimtab.signal.door import FLOATS, check_floats
from trimtab.signal.fast.choice import is_fast
from trimtab.signal.fast.per_sequence import StageShortcuts
from trimtab.signal.fast.per_sequence import weights as per_sequence_weights
from trimtab.signal.fields import Field, everything
from trimtab.signal.ingredient import REWARDED
from trimtab.signal.layout import PerToken
from trimtab.signal.observed import observed_share
from trimtab.signal.parts import Part, run
from trimtab.signal.proximal import CURRENT_SHARE, interpolated
from trimtab.signal.stages import Decisions, conjunction, run_stages, stage_inputs
from trimtab.signal.tensors import as_tensor, quiet
from trimtab.signal.update import OBSERVED_SHARE, Decided, Slice, Update, with_fields


@quiet
@torch.no_grad()
def decide(
    update: Update,
    logp_now: PerToken | None = None,
    *,
    entropy_now: PerToken | None = None,
    counts: Counts | None = None,
) -> Decided:
    """Weights of the update, and what needs the current policy across sequences. Once per optimiser step.

    `logp_now`: log-probs of the policy as it is before this step, over the update's tokens. Needed when
    `recipe.needs_logp_now`; on a batch's first step it is logp_old, which is then taken by itself.
    `entropy_now`: its entropy, where `recipe.needs_entropy_now`.
    `counts`: of the whole optimiser step, where this update is only a part of it.
    """
    if not isinstance(update, Update):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(
            f"decide: takes an update, not {type(update).__name__}. Cut the batch first: "
            "for update in prepared.updates(1)."
        )
    whole, recipe = update.whole, update.whole.recipe
    check_given("decide", whole, logp_now=logp_now, entropy_now=entropy_now)
    keep = whole.fields.held("keep")
    if recipe.needs_logp_now:
        entropy = None if entropy_now is None else entropy_now.detach()
        available = available_now(whole, _now(update, logp_now).detach(), entropy)
        late = run_stages(recipe.late_stages, available, StageShortcuts({}) if is_fast() else None)
        keep = conjunction(keep, late.keeps)
        whole = with_fields(whole, **_settled(late, whole))
        selector = recipe.loss.part.selector
        if selector is not None:
            picked = stage_inputs(recipe.loss, available).new_child({"keep": keep.tokens})
            whole = with_fields(whole, selected=Field(run(selector, picked), whole.segments))
    share = 1.0 if counts is None else share_of(recipe.weighting, whole.segments, counts)
    weights = _weights(whole, recipe, keep, share)
    if share != 1.0:
        refuse_own_denominators(recipe)
    if recipe.observed is not None:
        weights[OBSERVED_SHARE] = observed_share(whole, whole.fields.held("advantage").dtype)
    return Decided(with_fields(whole, **weights))


def _settled(late: Decisions, whole: Slice) -> dict[str, Field]:
    """What was decided about the whole update, and what was seen on the way, as token fields that a split cuts."""
    fields = {f"decided:{label}": value for label, value in {**late.keeps, **late.importances}.items()}
    for label, seen in late.seen.items():
        for name, flags in seen.items():
            field = flags if isinstance(flags, Field) else Field(flags, whole.segments, True)
            fields[f"seen:{label}:{name}"] = field
    return fields


def _now(update: Update, logp_now: PerToken | None) -> PerToken:
    if logp_now is not None:
        return logp_now
    if update.is_first and "logp_old" in update.whole.fields:
        return update.whole.fields["logp_old"]
    raise SignalError(
        f"decide: recipe {update.whole.recipe.name!r} decides about the current policy across sequences, "
        "so it needs logp_now. Run the model over update.sequences without gradient and pass the log-probs."
    )


def _weights(whole: Slice, recipe: Recipe, keep: Field, share: float) -> dict[str, Field]:
    """Each term's share per token: the policy's over what is kept so far, a regulariser's over all that trains."""
    advantage = whole.fields.held("advantage")

    def weight(counted: Field, weighting: Part = recipe.weighting) -> Field:
        weights = per_sequence_weights(weighting, advantage.dtype, counted) if is_fast() else None
        if weights is None:
            given = {"segments": whole.segments, "keep": counted.tokens}
            weights = Field(run(weighting, ChainMap(given, cast("Any", whole.fields))), whole.segments)
        return weights if share == 1.0 else weights.map(lambda values: values * share)

    weights = {"weight_policy": weight(keep)}
    kl = recipe.kl if recipe.kl and recipe.kl.into == "loss" else None
    terms = {"kl": kl, "entropy": recipe.entropy, "value": recipe.value, "nll": recipe.nll}
    for name, term in terms.items():
        if term is not None and term.on == "rewarded":
            weights[f"weight_{name}"] = weight(whole.fields.held(REWARDED), _over_kept(recipe.weighting))
        elif term is not None:
            weights[f"weight_{name}"] = weight(keep if term.on == "kept" else everything(whole.segments))
    return weights


def _over_kept(weighting: Part) -> Part:
    """The same weighting, divided by what it is given and not by everything."""
    if "over" not in weighting.settings:
        return weighting
    return replace(weighting, settings={**weighting.settings, "over": "kept"})


def check_given(where: str, part: Slice, **given: PerToken | None) -> None:
    """What the caller's model said of these tokens: one float per token, in the precision of the batch's log-probs."""
    held = next((part.fields.held(name).dtype for name in FLOATS if name in part.fields), None)
    for name, values in given.items():
        if values is None and name != "logp_current":
            continue
        if not isinstance(values, Tensor):
            raise SignalError(
                f"{where}: {name} is {type(values).__name__}, which carries no gradient. Give the model's own tensor."
            )
        values = as_tensor(values, f"{where}: {name}")
        if values.shape != (part.num_tokens,):
            raise SignalError(
                f"{where}: {name} has shape {list(values.shape)} for {part.num_tokens} trainable tokens, "
                "so numbers and tokens would not match. Give one number per token, sequence after sequence."
            )
        check_floats(where, name, values)
        if held is not None and values.dtype != held:
            raise SignalError(
                f"{where}: {name} is {values.dtype} and the batch {held}, so one side of every log-ratio is rounded. "
                "Give one dtype."
            )


def available_now(part: Slice, logp_now: PerToken, entropy: PerToken | None) -> ChainMap[str, Any]:
    """Every input by name, without gradient; `old` may make the old policy from the current one."""
    now: dict[str, Any] = {
        "segments": part.segments, "logp_current": logp_now, "entropy": entropy,
        "trains": torch.ones_like(part.segments.token_counts, dtype=torch.bool),
    }  # fmt: skip
    if part.recipe.old == "current":
        now["logp_old"] = logp_now
    elif CURRENT_SHARE in part.fields:
        now["logp_old"] = interpolated(logp_now, part.fields["logp_rollout"], part.fields[CURRENT_SHARE])
    return ChainMap(now, cast("MutableMapping[str, Any]", part.fields), dict.fromkeys(INPUTS["value_loss"]))

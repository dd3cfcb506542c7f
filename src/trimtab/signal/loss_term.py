"""The terms of the loss: the only place that makes one from a formula's numbers per token.

coef · Σ_t weight[term]_t · term_t. A rejected token enters on the way in as log-ratio 0 and advantage 0, by
torch.where, so neither its value nor its gradient can leak.
"""

import operator
from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.signal.composition import Recipe
from trimtab.signal.diagnostics import observe
from trimtab.signal.fast.choice import is_all_watched
from trimtab.signal.fast.fused import OWN_SLOPE, Given, policy_term, zero_where
from trimtab.signal.fast.fused import Term as PolicyTerm
from trimtab.signal.fields import Field, everything
from trimtab.signal.ingredient import KL, RATIO_TO, REWARDED, Term
from trimtab.signal.layout import Keep, PerToken, Scalar
from trimtab.signal.loss_metrics import population_of
from trimtab.signal.metric_kind import Metric
from trimtab.signal.parts import Part, run
from trimtab.signal.ratio import Ratio
from trimtab.signal.stages import observations, stage_inputs
from trimtab.signal.tally import Tally
from trimtab.signal.tensors import host
from trimtab.signal.update import Slice


def written_policy(
    part: Slice, available: Mapping[str, Any], logp_current: PerToken, keep: Field, importance: Field
) -> PolicyTerm:
    """The policy term by its formula, as it is written. A rejected token enters as log-ratio 0 and advantage 0."""
    stage, kept = part.recipe.loss, keep.tokens
    inputs = stage_inputs(stage, available).new_child({"logp_current": logp_current, "keep": kept})
    for name in ("logp_current", "logp_anchor", "advantage"):
        if inputs.get(name) is not None:
            inputs[name] = torch.where(kept, inputs[name], torch.zeros_like(inputs[name]))
    tokens, seen = run(stage.part, inputs)
    policy = tokens * importance.tokens
    detached = policy.detach()
    return PolicyTerm(weighted(policy, part.fields["weight_policy"], kept), lambda _: detached, seen)


def fused_policy(
    part: Slice,
    available: Mapping[str, Any],
    ratios: Mapping[str, Ratio],
    logp_current: PerToken,
    keep: Field,
    importance: Field,
) -> PolicyTerm:
    """The policy term and its gradient in one pass."""
    stage, logp = part.recipe.loss, available["logp_current"]
    value = inside = None
    if stage.anchor is not None:
        follows = part.recipe.old_moves and stage.anchor == "old"  # then the anchor is not what was recorded
        ratio = Ratio(logp - available["logp_old"], part.segments) if follows else ratios[RATIO_TO[stage.anchor]]
        value = ratio.value(sums_too=not follows and is_all_watched())
        inside = ratio.inside
        if ratio is ratios.get("update") and is_all_watched() and "total" in ratios:
            ratios["total"].measure()  # while the factor is at hand: it need not be held beside the loss
    cost, weight = part.fields.held("advantage").map(operator.neg), part.fields.held("weight_policy")
    kept = host(keep.values)
    if isinstance(kept, Tensor) or not kept.all():  # read only where reading costs nothing
        rejected = ~keep.tokens
        logp = zero_where(rejected, logp) if stage.part.formula.name in OWN_SLOPE else logp
        value = None if value is None else zero_where(rejected, value)
        cost, weight = cost.where(keep), weight.where(keep)
    given = Given((weight * importance * cost).tokens, logp, value, available.get("selected"))
    return policy_term(stage.part, given, logp_current, inside)


def kl_in_loss(recipe: Recipe, available: Mapping[str, Any], logp_current: PerToken, keep: Field) -> PerToken | None:
    """The KL of the current policy, where it acts in the loss. With on = "kept" a rejected token enters as KL 0."""
    if recipe.kl is None or recipe.kl.into != "loss":
        return None
    anchor = available.get(f"logp_{recipe.kl.anchor}")
    given = {"logp_current": logp_current, "logp_anchor": anchor}
    inputs = ChainMap(given, cast("MutableMapping[str, Any]", available))
    if recipe.kl.on == "kept":
        for name in ("logp_current", "logp_anchor", "logp_ref"):
            held = inputs[name]
            inputs[name] = None if held is None else torch.where(keep.tokens, held, torch.zeros_like(logp_current))
    return run(recipe.kl.part, inputs)


def regularisers(
    part: Slice,
    available: Mapping[str, Any],
    keep: Field,
    kl: PerToken | None,
    logp_current: PerToken,
    entropy: PerToken | None,
    value: PerToken | None,
) -> tuple[dict[str, Scalar], dict[str, Metric]]:
    """The other terms, each over its own population, and what the value loss observed."""
    recipe, fields = part.recipe, part.fields
    terms: dict[str, Scalar] = {}
    seen: dict[str, Metric] = {}

    def add(name: str, term: KL | Term, values: PerToken) -> None:
        every = everything(part.segments)
        acts = keep if term.on == "kept" else fields.held(REWARDED) if term.on == "rewarded" else every
        terms[name] = term.coef * weighted(values, fields[f"weight_{name}"], acts.tokens)

    if recipe.kl is not None and kl is not None:
        add("kl", recipe.kl, kl)
    if recipe.entropy is not None and entropy is not None:
        add("entropy", recipe.entropy, -entropy)
    if recipe.value is not None and value is not None:
        assert isinstance(recipe.value.part, Part)
        distance, found = run(recipe.value.part, ChainMap({"value": value}, cast("Any", available)))
        add("value", recipe.value, distance)
        tally, trains = Tally(part.segments), population_of(part)
        observe(tally, recipe.value.part.formula.name, observations(found, part.segments), trains)
        seen = tally.entries()
    if recipe.nll is not None:
        add("nll", recipe.nll, -logp_current)
    return terms, seen


def weighted(term: PerToken, weight: PerToken, keep: Keep) -> Scalar:
    """What a term adds to the loss: the weighted sum over its kept tokens."""
    return (torch.where(keep, term, torch.zeros_like(term)) * weight).sum()

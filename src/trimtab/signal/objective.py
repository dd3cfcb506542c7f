"""`token_loss` and `step`: the loss of the current policy, and its sum over micro-batches.

loss = Σ_term coef · Σ_t weight[term]_t · term_t. A rejected token enters on the way in as log-ratio 0 and advantage 0,
by torch.where, so neither its value nor its gradient can leak. `token_loss` never asks the device for a number.
"""

import operator
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.composition import Recipe
from trimtab.signal.decision import available_now, check_given
from trimtab.signal.diagnostics import Population, by_sign, drift, kept_share, observe, stage_metrics
from trimtab.signal.fast.choice import is_all_watched, is_fast
from trimtab.signal.fast.fused import FUSED, OWN_SLOPE, Given, policy_term, zero_where
from trimtab.signal.fast.fused import Term as PolicyTerm
from trimtab.signal.fast.per_sequence import StageShortcuts
from trimtab.signal.fields import Field, Fields, everything
from trimtab.signal.ingredient import KL, RATIO_TO, Term
from trimtab.signal.layout import Keep, PerToken, Scalar
from trimtab.signal.metric_kind import Mean, Metric, Sum
from trimtab.signal.metrics import Metrics
from trimtab.signal.parts import Part, run
from trimtab.signal.ratio import EXACT_RATIO, EXACT_TOTAL, Exact, Ratio
from trimtab.signal.stages import Decisions, Seen, conjunction, observations, product, run_stages, stage_inputs
from trimtab.signal.tally import Tally
from trimtab.signal.tensors import Number, host, quiet, read_if_plain
from trimtab.signal.update import MicroBatch, Slice, weight_sums


@dataclass(frozen=True)
class TokenLoss:
    """One micro-batch's share of the loss, to be back-propagated as it is."""

    loss: Scalar
    metrics: Metrics
    fields: Fields
    """What was decided in the end: keep and importance; and the advantage that it was decided about."""
    policy: Callable[[PerToken], PerToken]

    @property
    def token_loss(self) -> PerToken:
        """The policy term of each token before weighting; detached, and computed where somebody asks."""
        fields = self.fields
        pull = fields.held("advantage").map(operator.neg).where(fields.held("keep")) * fields.held("importance")
        return self.policy(pull.tokens)

    @property
    def keep(self) -> Keep:
        return self.fields["keep"]

    @property
    def importance(self) -> PerToken:
        return self.fields["importance"]


@dataclass(frozen=True)
class StepResult:
    """One optimiser step: the summed loss (detached) and its metrics."""

    loss: Scalar
    metrics: Metrics

    @property
    def kept_weight(self) -> Tensor:
        """Sum of all weights that acted, on this rank; with several ranks, sum it over them first."""
        weights = [metric.value()[0] for name, metric in self.metrics.items() if name.startswith("weight/")]
        return torch.as_tensor(sum(weights), dtype=torch.float64)

    @property
    def is_empty(self) -> bool:
        """Nothing was kept and no other term acts: skip the optimiser step and count it."""
        return float(self.kept_weight) == 0


@quiet
def token_loss(
    micro: MicroBatch, logp_current: PerToken, *, entropy: PerToken | None = None, value: PerToken | None = None
) -> TokenLoss:
    """The loss of one micro-batch: a plain weighted sum. Call backward on it as it is.

    `logp_current` covers the micro-batch's trainable tokens, sequence after sequence in the order of `micro.sequences`.
    """
    if not isinstance(micro, MicroBatch):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(
            f"token_loss: takes a micro-batch, not {type(micro).__name__}. First decide(update), then split: "
            "for micro in decide(update).split(max_tokens=…)."
        )
    part, recipe = micro.part, micro.part.recipe
    check_given("token_loss", part, logp_current=logp_current, entropy=entropy, value=value)
    _refuse_missing(part, entropy=entropy, value=value)
    available = available_now(part, logp_current.detach(), None if entropy is None else entropy.detach())
    ratios = _ratios(part, available)
    late = _late_decisions(part, available, ratios)
    keep = conjunction(part.fields.held("keep"), late.keeps)
    importance = product(part.fields.held("importance"), late.importances)
    if is_fast() and recipe.loss.part.formula.name in FUSED:
        policy = _fused_policy(part, available, ratios, logp_current, keep, importance)
    else:
        policy = _policy(part, available, logp_current, keep, importance)
    kl = _kl(recipe, available, logp_current, keep)
    terms = {"policy": policy.loss}
    others, value_seen = _regularisers(part, available, keep, kl, logp_current, entropy, value)
    terms |= others
    loss = torch.stack(list(terms.values())).sum() if others else policy.loss
    loss = loss if micro.data_parallel == 1 else micro.data_parallel * loss
    weights = weight_sums(part)
    _watch(loss, sum(weights.values()), micro)
    entries = _entries(part, terms, weights, keep, importance, policy, late) | value_seen | _means(kl, entropy)
    watched = drift(ratios, part.segments) if is_all_watched() else Metrics.empty()
    metrics = watched.after(entries)
    decided = Fields(
        part.segments, {"keep": keep, "importance": importance, "advantage": part.fields.held("advantage")}
    )
    return TokenLoss(loss, metrics, decided, policy.tokens)


def _ratios(part: Slice, available: Mapping[str, Any]) -> dict[str, Ratio]:
    """The ratios of the current policy to the earlier ones, as far as they were recorded."""
    now, fields, segments = available["logp_current"], part.fields, part.segments
    ratios: dict[str, Ratio] = {}
    engine = _exact_engine(fields)
    if "logp_old" in fields:
        ratios["update"] = Ratio(lambda: now - fields["logp_old"], segments, is_factor=engine is not None)
    if "logp_rollout" in fields:
        factors = None if engine is None or "update" not in ratios else (ratios["update"], engine)
        ratios["total"] = Ratio(lambda: now - fields["logp_rollout"], segments, factors=factors)
    return ratios


def _exact_engine(fields: Fields) -> Exact | None:
    """What `prepare` computed of ratio_engine, where it is still held as it was then."""
    is_there = EXACT_RATIO in fields and fields.held(EXACT_TOTAL).is_shared
    if not (is_there and is_fast() and is_all_watched()):
        return None
    return Exact(fields[EXACT_RATIO], fields.held(EXACT_TOTAL).values)


def _late_decisions(part: Slice, available: Mapping[str, Any], ratios: Mapping[str, Ratio]) -> Decisions:
    """Late decisions: what `decide` settled for the whole update is kept as it is; the other stages run here."""
    stages = part.recipe.late_stages
    if not stages:
        return Decisions({}, {}, {})
    settled = {label: part.fields.held(f"decided:{label}") for label in stages if f"decided:{label}" in part.fields}
    waiting = {label: stage for label, stage in stages.items() if label not in settled}
    # Where the old policy moves, a stage compares with another one than was recorded.
    known = {} if part.recipe.old_moves else dict(ratios)
    now = run_stages(waiting, available, StageShortcuts(known) if is_fast() else None)
    return Decisions(
        {label: value for label, value in settled.items() if stages[label].part.formula.stage == "keep"},
        {label: value for label, value in settled.items() if stages[label].part.formula.stage == "importance"},
        {label: _seen(part, label) for label in settled},
    ).merge(now)


def _seen(part: Slice, label: str) -> Seen:
    head = f"seen:{label}:"
    found = {name.removeprefix(head): part.fields.held(name) for name in part.fields if name.startswith(head)}
    return {name: flags.sequences if name.endswith("_sequences") else flags for name, flags in found.items()}


def _refuse_missing(part: Slice, **given: PerToken | None) -> None:
    terms = {"entropy": part.recipe.entropy, "value": part.recipe.value}
    for name, term in terms.items():
        if term is not None and given[name] is None:
            raise SignalError(f"token_loss: recipe {part.recipe.name!r} has a term on {name}, which was not given.")


def _policy(
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
    return PolicyTerm(_weighted(policy, part.fields["weight_policy"], kept), lambda _: detached, seen)


def _fused_policy(
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


def _weighted(term: PerToken, weight: PerToken, keep: Keep) -> Scalar:
    return (torch.where(keep, term, torch.zeros_like(term)) * weight).sum()


def _kl(recipe: Recipe, available: Mapping[str, Any], logp_current: PerToken, keep: Field) -> PerToken | None:
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


def _regularisers(
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
        acts = keep if term.on == "kept" else everything(part.segments)
        terms[name] = term.coef * _weighted(values, fields[f"weight_{name}"], acts.tokens)

    if recipe.kl is not None and kl is not None:
        add("kl", recipe.kl, kl)
    if recipe.entropy is not None and entropy is not None:
        add("entropy", recipe.entropy, -entropy)
    if recipe.value is not None and value is not None:
        assert isinstance(recipe.value.part, Part)
        distance, found = run(recipe.value.part, ChainMap({"value": value}, cast("Any", available)))
        add("value", recipe.value, distance)
        tally, trains = Tally(part.segments), _all_of(part)
        observe(tally, recipe.value.part.formula.name, observations(found, part.segments), trains)
        seen = tally.entries()
    if recipe.nll is not None:
        add("nll", recipe.nll, -logp_current)
    return terms, seen


def _watch(loss: Scalar, weight: Number, micro: MicroBatch) -> None:
    """Let the ledger see the gradient that reaches this loss: 1, unless the caller scaled it."""

    def spend(gradient: Tensor) -> None:
        micro.ledger.record(gradient, weight)

    if loss.requires_grad:
        loss.register_hook(spend)


def _all_of(part: Slice) -> Population:
    return Population(everything(part.segments), part.fields.held("advantage"), is_everything=True)


def _entries(
    part: Slice, terms: Mapping[str, Scalar], weights: Mapping[str, Number], keep: Field, importance: Field,
    policy: PolicyTerm, late: Decisions,
) -> dict[str, Metric]:  # fmt: skip
    segments, fields = part.segments, part.fields
    label, tally = part.recipe.loss.part.formula.name, Tally(segments)
    for name, value in terms.items():
        tally.number(f"loss/{name}", Sum, read_if_plain(value.detach()))
    for name, value in weights.items():
        tally.number(f"weight/{name.removeprefix('weight_')}", Sum, value)
    tally.sum("weight/policy", fields.held("weight_policy"), keep)
    trains, kept = _all_of(part), Population(keep, fields.held("advantage"))
    seen = observations(policy.seen, segments)
    observe(tally, label, seen, kept)
    clipped = seen.get("clipped_tokens")
    if isinstance(clipped, Field):
        by_sign(tally, label, "clipped", clipped, kept)
    kept_share(tally, kept, trains)
    stage_metrics(tally, late, trains, before=fields.held("keep"))
    stood = fields.held("voted").sequences
    tally.share_of_sequences("voted_then_rejected/sequence_fraction", stood & ~keep.sequences)
    tally.mean("importance/token_mean", importance, keep)
    return tally.entries()


def _means(kl: PerToken | None, entropy: PerToken | None) -> dict[str, Metric]:
    given = {"kl_ref/token_mean": kl, "entropy/token_mean": entropy}
    return {name: Mean.of(values) for name, values in given.items() if values is not None}


def step(losses: Iterable[TokenLoss]) -> StepResult:
    """Join the micro-batches of one optimiser step: losses and metrics add up, whatever the split."""
    joined = list(losses) if isinstance(losses, Iterable) else [losses]  # pyright: ignore[reportUnnecessaryIsInstance]
    wrong = next((type(one).__name__ for one in joined if not isinstance(one, TokenLoss)), None)  # pyright: ignore[reportUnnecessaryIsInstance]
    if wrong is not None:
        raise SignalError(f"step: takes a list of what token_loss returned; it holds a {wrong}.")
    if not joined:
        raise SignalError("step: there is no micro-batch, so there is no loss. Pass the results of token_loss.")
    metrics = joined[0].metrics
    for other in joined[1:]:
        metrics = metrics.merge(other.metrics)
    parts = [one.loss.detach() for one in joined]
    return StepResult(torch.stack(parts).sum() if len(parts) > 1 else parts[0], metrics)

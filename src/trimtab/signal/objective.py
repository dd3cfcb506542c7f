"""`token_loss` and `step`: the loss of the current policy, and its sum over micro-batches.

loss = Σ_term coef · Σ_t weight[term]_t · term_t. A rejected token enters on the way in as log-ratio 0 and advantage 0,
by torch.where, so neither its value nor its gradient can leak. `token_loss` never asks the device for a number.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.composition import KL, Recipe, Term
from trimtab.signal.decision import available_now, check_given, late_stages
from trimtab.signal.diagnostics import Trains, by_sign, drift, kept_share, observed, stage_metrics
from trimtab.signal.layout import Keep, PerToken, Scalar
from trimtab.signal.metrics import Mean, Metric, Metrics, Sum
from trimtab.signal.parts import Part, run
from trimtab.signal.reduce import sequence_any
from trimtab.signal.stages import Decisions, conjunction, product, run_stages, stage_inputs
from trimtab.signal.update import MicroBatch, Slice, total_weight


@dataclass(frozen=True)
class TokenLoss:
    """One micro-batch's share of the loss, to be back-propagated as it is."""

    loss: Scalar
    metrics: Metrics
    token_loss: PerToken
    """The policy term of each token before weighting; detached."""
    keep: Keep
    importance: PerToken


@dataclass(frozen=True)
class StepResult:
    """One optimiser step: the summed loss (detached) and its metrics."""

    loss: Scalar
    metrics: Metrics

    @property
    def kept_weight(self) -> Tensor:
        """Sum of all weights that acted, on this rank; with several ranks, sum it over them first."""
        weights = [metric.value()[0] for name, metric in self.metrics.items() if name.startswith("weight/")]
        return torch.stack(weights).sum()

    @property
    def is_empty(self) -> bool:
        """Nothing was kept and no other term acts: skip the optimiser step and count it."""
        return float(self.kept_weight) == 0


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
    late = _late_decisions(part, available)
    keep = conjunction(part.fields["keep"], late.keeps)
    importance = product(part.fields["importance"], late.importances)
    policy, found = _policy(recipe, available, logp_current, keep)
    policy = policy * importance
    terms = {"policy": _weighted(policy, part.fields["weight_policy"], keep)}
    kl = _kl(recipe, available, logp_current, keep)
    others, value_seen = _regularisers(part, available, keep, kl, logp_current, entropy, value)
    terms |= others
    loss = micro.data_parallel * torch.stack(list(terms.values())).sum()
    _watch(loss, total_weight(part), micro)
    metrics = _metrics(part, available, terms, keep, importance, found, late)
    metrics = metrics.merge(Metrics(value_seen, {}))
    metrics = metrics.merge(Metrics(_means(kl, entropy), {}))
    return TokenLoss(loss, metrics, policy.detach(), keep, importance)


def _late_decisions(part: Slice, available: Mapping[str, Any]) -> Decisions:
    """Late decisions: what `decide` settled for the whole update is kept as it is; the other stages run here."""
    stages = late_stages(part.recipe)
    settled = {label: part.fields[f"decided:{label}"] for label in stages if f"decided:{label}" in part.fields}
    now = run_stages({label: stage for label, stage in stages.items() if label not in settled}, available)
    return Decisions(
        {label: value for label, value in settled.items() if stages[label].part.formula.stage == "keep"},
        {label: value for label, value in settled.items() if stages[label].part.formula.stage == "importance"},
        {label: _seen(part, label) for label in settled},
    ).merge(now)


def _seen(part: Slice, label: str) -> dict[str, Tensor]:
    head = f"seen:{label}:"
    found = {name.removeprefix(head): flags for name, flags in part.fields.items() if name.startswith(head)}
    return {
        name: sequence_any(flags, part.segments) if name.endswith("_sequences") else flags
        for name, flags in found.items()
    }


def _refuse_missing(part: Slice, **given: PerToken | None) -> None:
    terms = {"entropy": part.recipe.entropy, "value": part.recipe.value}
    for name, term in terms.items():
        if term is not None and given[name] is None:
            raise SignalError(f"token_loss: recipe {part.recipe.name!r} has a term on {name}, which was not given.")


def _policy(
    recipe: Recipe, available: Mapping[str, Any], logp_current: PerToken, keep: Keep
) -> tuple[PerToken, dict[str, Tensor]]:
    """Token losses of the policy term. A rejected token enters as log-ratio 0 and advantage 0."""
    inputs = stage_inputs(recipe.loss, {**available, "logp_current": logp_current, "keep": keep})
    for name in ("logp_current", "logp_anchor", "advantage"):
        if inputs.get(name) is not None:
            inputs[name] = torch.where(keep, inputs[name], torch.zeros_like(inputs[name]))
    return run(recipe.loss.part, inputs)


def _weighted(term: PerToken, weight: PerToken, keep: Keep) -> Scalar:
    return (torch.where(keep, term, torch.zeros_like(term)) * weight).sum()


def _kl(recipe: Recipe, available: Mapping[str, Any], logp_current: PerToken, keep: Keep) -> PerToken | None:
    """The KL of the current policy, where it acts in the loss. With on = "kept" a rejected token enters as KL 0."""
    if recipe.kl is None or recipe.kl.into != "loss":
        return None
    anchor = available.get(f"logp_{recipe.kl.anchor}")
    inputs: dict[str, Any] = {**available, "logp_current": logp_current, "logp_anchor": anchor}
    if recipe.kl.on == "kept":
        for name in ("logp_current", "logp_anchor", "logp_ref"):
            inputs[name] = (
                None if inputs[name] is None else torch.where(keep, inputs[name], torch.zeros_like(logp_current))
            )
    return run(recipe.kl.part, inputs)


def _regularisers(
    part: Slice,
    available: Mapping[str, Any],
    keep: Keep,
    kl: PerToken | None,
    logp_current: PerToken,
    entropy: PerToken | None,
    value: PerToken | None,
) -> tuple[dict[str, Scalar], dict[str, Metric]]:
    """The other terms, each over its own population, and what the value loss observed."""
    recipe, fields = part.recipe, part.fields
    terms: dict[str, Scalar] = {}
    seen: dict[str, Metric] = {}
    everything = torch.ones_like(keep)

    def add(name: str, term: KL | Term, values: PerToken) -> None:
        acts = keep if term.on == "kept" else everything
        terms[name] = term.coef * _weighted(values, fields[f"weight_{name}"], acts)

    if recipe.kl is not None and kl is not None:
        add("kl", recipe.kl, kl)
    if recipe.entropy is not None and entropy is not None:
        add("entropy", recipe.entropy, -entropy)
    if recipe.value is not None and value is not None:
        assert isinstance(recipe.value.part, Part)
        distance, found = run(recipe.value.part, {**available, "value": value})
        add("value", recipe.value, distance)
        seen = observed(recipe.value.part.formula.name, found, Trains(everything, part.segments, is_everything=True))
    if recipe.nll is not None:
        add("nll", recipe.nll, -logp_current)
    return terms, seen


def _watch(loss: Scalar, weight: Tensor, micro: MicroBatch) -> None:
    """Let the ledger see the gradient that reaches this loss: 1, unless the caller scaled it."""

    def spend(gradient: Tensor) -> None:
        micro.ledger.record(gradient, weight)

    if loss.requires_grad:
        loss.register_hook(spend)


def _metrics(
    part: Slice,
    available: Mapping[str, Any],
    terms: Mapping[str, Scalar],
    keep: Keep,
    importance: PerToken,
    found: Mapping[str, Tensor],
    late: Decisions,
) -> Metrics:
    segments, advantage = part.segments, part.fields["advantage"]
    everything = torch.ones_like(keep)
    label = part.recipe.loss.part.formula.name
    entries: dict[str, Metric] = {f"loss/{name}": Sum.of(value) for name, value in terms.items()}
    entries |= {
        f"weight/{n.removeprefix('weight_')}": Sum.of(v) for n, v in part.fields.items() if n.startswith("weight_")
    }
    entries["weight/policy"] = Sum.of(torch.where(keep, part.fields["weight_policy"], torch.zeros_like(importance)))
    kept, trains = Trains(keep, segments), Trains(everything, segments, is_everything=True)
    entries |= observed(label, found, kept)
    if "clipped_tokens" in found:
        entries |= by_sign(label, "clipped", found["clipped_tokens"], kept.by_sign(advantage))
    entries |= kept_share(kept, advantage, trains)
    entries |= stage_metrics(late, advantage, trains, before=part.fields["keep"])
    stood = sequence_any(part.fields["voted"], segments)
    entries["voted_then_rejected/sequence_fraction"] = Mean.fraction(stood & ~cast("Tensor", kept.sequences.flags))
    entries["importance/token_mean"] = Mean.of(importance, kept.tokens)
    metrics = Metrics(entries, {})
    for name, earlier in (("update", "logp_old"), ("total", "logp_rollout")):
        if earlier in part.fields:
            metrics = metrics.merge(drift(name, available["logp_current"] - part.fields[earlier], segments))
    return metrics


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
    return StepResult(torch.stack([one.loss.detach() for one in joined]).sum(), metrics)

"""`token_loss` and `step`: the loss of the current policy, and its sum over micro-batches.

loss = Σ_term coef · Σ_t weight[term]_t · term_t: the only place that adds the terms up, each of them from loss_term.py.
`token_loss` never asks the device for a number.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.decision import available_now, check_given
from trimtab.signal.diagnostics import drift
from trimtab.signal.fast.choice import is_all_watched, is_fast
from trimtab.signal.fast.fused import FUSED
from trimtab.signal.fast.per_sequence import StageShortcuts
from trimtab.signal.fields import Fields
from trimtab.signal.layout import Keep, PerToken, Scalar
from trimtab.signal.loss_metrics import loss_metrics, token_means
from trimtab.signal.loss_term import fused_policy, kl_in_loss, regularisers, written_policy
from trimtab.signal.metrics import Metrics
from trimtab.signal.observed import check_observed, observed_term
from trimtab.signal.ratio import EXACT_RATIO, EXACT_TOTAL, Exact, Ratio
from trimtab.signal.stages import Decisions, Seen, conjunction, product, run_stages
from trimtab.signal.tensors import Number, quiet
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
    micro: MicroBatch,
    logp_current: PerToken,
    *,
    entropy: PerToken | None = None,
    value: PerToken | None = None,
    logp_observed: PerToken | None = None,
) -> TokenLoss:
    """The loss of one micro-batch: a plain weighted sum. Call backward on it as it is.

    `logp_current` covers the micro-batch's trainable tokens, sequence after sequence in the order of `micro.sequences`.
    `logp_observed` covers its tokens of the environment, in the same order, where the recipe has a term on them.
    """
    if not isinstance(micro, MicroBatch):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(
            f"token_loss: takes a micro-batch, not {type(micro).__name__}. First decide(update), then split: "
            "for micro in decide(update).split(max_tokens=…)."
        )
    part, recipe = micro.part, micro.part.recipe
    check_given("token_loss", part, logp_current=logp_current, entropy=entropy, value=value)
    _refuse_missing(part, entropy=entropy, value=value)
    check_observed(part, logp_observed)
    available = available_now(part, logp_current.detach(), None if entropy is None else entropy.detach())
    ratios = _ratios(part, available)
    late = _late_decisions(part, available, ratios)
    keep = conjunction(part.fields.held("keep"), late.keeps)
    importance = product(part.fields.held("importance"), late.importances)
    if is_fast() and recipe.loss.part.formula.name in FUSED:
        policy = fused_policy(part, available, ratios, logp_current, keep, importance)
    else:
        policy = written_policy(part, available, logp_current, keep, importance)
    kl = kl_in_loss(recipe, available, logp_current, keep)
    terms = {"policy": policy.loss}
    others, value_seen = regularisers(part, available, keep, kl, logp_current, entropy, value)
    if logp_observed is not None:
        others["observed"] = observed_term(part, logp_observed)
    terms |= others
    loss = torch.stack(list(terms.values())).sum() if others else policy.loss
    loss = loss if micro.data_parallel == 1 else micro.data_parallel * loss
    weights = weight_sums(part)
    _watch(loss, sum(weights.values()), micro)
    entries = loss_metrics(part, terms, weights, keep, importance, policy, late) | value_seen | token_means(kl, entropy)
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


def _watch(loss: Scalar, weight: Number, micro: MicroBatch) -> None:
    """Let the ledger see the gradient that reaches this loss: 1, unless the caller scaled it."""

    def spend(gradient: Tensor) -> None:
        micro.ledger.record(gradient, weight)

    if loss.requires_grad:
        loss.register_hook(spend)


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

"""Our loss from advantages on, through `decide` and `token_loss`, and our aggregation of token losses."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel import Case, Out, Result, Subject
from trimtab.sentinel.of import is_clipped, log_ratio
from trimtab.signal import KL, Recipe, Stage, Term, decide, part, token_loss
from trimtab.signal.loss_term import weighted
from trimtab.signal.reduce import bounded_exp
from trimtab.signal.update import Ledger, MicroBatch, Slice, Update

FIELDS = ("advantage", "logp_old", "logp_rollout", "logp_ref", "returns", "value_old")


def _recipe(options: Mapping[str, Any], estimator: str) -> Recipe:
    return Recipe(
        name="surrogate", loss=Stage(part("policy_loss.clipped", band=options["band"]), anchor="old"),
        weighting=part(options["weighting"]), normalize=part("normalize.raw"),
        kl=KL(part(estimator), coef=options["kl_coef"], into="loss", anchor=_anchor(estimator)),
        entropy=Term(options["entropy_coef"]),
    )  # fmt: skip


def _anchor(estimator: str) -> Any:
    return "old" if estimator == "kl.importance_weighted_k3" else None


def _micro(case: Case, chosen: Recipe, keep: bool) -> MicroBatch:
    """The case as a part of its whole update, decided there."""
    whole = case.whole
    count = whole.segments.num_tokens
    yes, one = torch.ones(count, dtype=torch.bool), torch.ones(count, dtype=torch.float64)
    flat = {name: whole.flat(name).detach() for name in FIELDS if name in whole.tokens}
    kept = whole.flat("keep") if keep else yes
    slice_ = Slice(
        chosen,
        torch.arange(whole.num_sequences),
        whole.segments,
        {
            **flat, "keep": kept, "voted": yes, "importance": one,
            "episode_of_token": whole.flat("episode"), "group_of_token": whole.flat("group"),
        },
    )  # fmt: skip
    decided = decide(Update(slice_, True), whole.flat("logp_current").detach())
    return MicroBatch(decided.whole.take(torch.tensor(_mine(case), dtype=torch.long)), 1, Ledger())


@cache
def surrogate(estimator: str = "kl.k3", *, metrics: bool = False, keep: bool = False, **changes: Any) -> Subject:
    """Clipped policy loss, KL to the reference and entropy, as `token_loss` adds them up."""
    options = {"band": (0.8, 1.2), "kl_coef": 0.1, "entropy_coef": 0.05, "weighting": "weighting.token_mean"}

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        micro = _micro(case, _recipe(chosen, estimator), keep)
        for name in ("advantage", "logp_old", "logp_ref"):
            case.flat(name)
        out = token_loss(micro, case.flat("logp_current"), entropy=case.flat("entropy"))
        found = {"loss": Result.scalar(out.loss, "loss")}
        return found | (_measured(out.metrics, chosen["band"]) if metrics else {})

    return Subject(
        "surrogate", call, options={**options, **changes}, combine="sum",
        penalties={"kl_coef": "logp_ref", "entropy_coef": "entropy"}, couples="sequence",
    )  # fmt: skip


def _measured(metrics: Any, band: tuple[float, float]) -> Out:
    """What `token_loss` reports, each with what it is made of."""
    said = {
        "policy_loss.clipped/clipped_tokens": {"of": is_clipped(*band), "range": (0.0, 1.0), "agreed": 0.0},
        "kl_ref/token_mean": {"of": _k3, "agreed": 0.0},
        "entropy/token_mean": {"of": "entropy"},
    }
    return {
        name: Result.scalar(torch.as_tensor(metrics[name].value()[0]).double(), "metric", reduction="mean", **facts)
        for name, facts in said.items()
    }


def _k3(case: Case) -> Tensor:
    gap = log_ratio("logp_ref", "logp_current")(case)
    return bounded_exp(gap) - gap - 1


@cache
def aggregation(weighting: str, *, declared: str | None = None, **settings: Any) -> Subject:
    """One number a token to the loss: weights over the whole update, then a sum over the part."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        whole = case.whole
        yes = torch.ones(whole.segments.num_tokens, dtype=torch.bool)
        given = {"advantage": yes.double(), "keep": yes, "segments": whole.segments}
        weights = part(options["weighting"], **{k: v for k, v in options.items() if k != "weighting"})(given)
        own = weights[whole.token_places(_mine(case))]
        kept = torch.ones(case.segments.num_tokens, dtype=torch.bool)
        return {"loss": Result.scalar(weighted(case.flat("token_loss"), own, kept), "loss")}

    return Subject(
        f"aggregation({weighting})", call, options={"weighting": f"weighting.{weighting}", **settings}, combine="sum",
        conventions={"denominator": declared} if declared else {},
    )  # fmt: skip


def _mine(case: Case) -> list[int]:
    """Which sequences of the whole this part is."""
    whole = case.whole
    return [whole.origin.index(i) for i in case.origin] if case.within is not None else list(range(whole.num_sequences))


@cache
def value_loss(**changes: Any) -> Subject:
    """The critic's scalar loss: clipped squared errors, weighed over the whole update."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        whole = case.whole
        yes = torch.ones(whole.segments.num_tokens, dtype=torch.bool)
        weights = part("weighting.token_mean")({"advantage": yes.double(), "keep": yes})
        given = {name: case.flat(name) for name in ("value", "value_old", "returns")}
        errors, _ = part("value_loss.squared_clipped", reach=options["reach"])(given)
        kept = torch.ones(case.segments.num_tokens, dtype=torch.bool)
        total = weighted(errors, weights[whole.token_places(_mine(case))], kept)
        return {"loss": Result.scalar(total, "loss")}

    return Subject("value_loss", call, options={"reach": 0.2, **changes}, combine="sum")

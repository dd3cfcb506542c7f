"""AReaL: actor and critic losses over packed micro-batches, rejection, and log-probs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.like import like, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.areal.source import (
    ACTOR,
    OWN,
    VOCABULARY,
    functional,
    places_of,
    uncompiled,
)
from trimtab.sentinel.targets.stand_in import Settings, bounded
from trimtab.sentinel.targets.target import Binding


def _weighed(values: list[Tensor], parts: list[Case]) -> Tensor:
    """Combine micro-batches as the engine does: each loss value by its share of trainable tokens."""
    tokens = [float(part.segments.num_tokens) for part in parts]
    return torch.stack([v * (n / max(sum(tokens), 1.0)) for v, n in zip(values, tokens, strict=True)]).sum()


def _packed(case: Case, names: Mapping[str, str]) -> dict[str, Any]:
    """One row with all tokens, each field one cell before its token, as in packed micro-batches."""
    shifted = {n: _before(case, case.packed(field)) for n, field in names.items()}
    return {
        **shifted,
        "loss_mask": _before(case, case.packed("trainable", dtype=torch.bool)),
        "cu_seqlens": case.cu_seqlens,
    }


def _before(case: Case, values: Tensor) -> Tensor:
    pieces = [torch.cat([piece[1:], torch.zeros_like(piece[:1])]) for piece in values.split(case.lengths)]
    return torch.cat(pieces) if pieces else values


def _trained(case: Case, values: Tensor) -> Tensor:
    """From cells before their tokens back to the tokens."""
    pieces = [torch.cat([torch.zeros_like(piece[:1]), piece[:-1]]) for piece in values.split(case.lengths)]
    return torch.cat(pieces)[case.trainable]


def _prompted(case: Case) -> Case:
    if any(not row or row[0] != "p" for row in case.kinds):
        raise case.cannot("a sequence starts with its prompt")
    return case


FIELDS = {
    "logprobs": "logp_current",
    "proximal_logprobs": "logp_old",
    "old_logprobs": "logp_rollout",
    "advantages": "advantage",
}


def _loss(boundary: Boundary, options: Mapping[str, Any], fields: Mapping[str, str] = FIELDS, **facts: Any) -> Subject:
    """A policy loss over one packed micro-batch, with the clip mask that it reports."""

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        told = dict(chosen)
        if (rejection := _rejecting(told)) is not None:
            told["rejection_sampling"] = rejection
        loss, seen = boundary(**handed.accepted(boundary, **_packed(_prompted(case), fields)), **told)
        clip = _trained(case, seen["clip_mask"])
        out = {"loss": Result.scalar(loss, "loss")}
        return out | ({"clipped": Result(clip, "token", "observation", agreed=0.0)} if "eps_clip" in chosen else {})

    facts = {"combine": _weighed, "waived": OWN, **facts}
    return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, role="policy_loss", **facts)


def _sapo(boundary: Boundary) -> Subject:
    gated = like(
        "policy_loss.soft_gated",
        mean="token_mean",
        temperature_positive=lambda o: o["tau_pos"],
        temperature_negative=lambda o: o["tau_neg"],
    )
    return _loss(
        boundary,
        {"tau_pos": 1.0, "tau_neg": 1.05},
        {"logprobs": "logp_current", "old_logprobs": "logp_old", "advantages": "advantage"},
        definition=bounded(gated, "logp_current", "logp_old"),
        variants={"tau_pos": (2.0,), "tau_neg": (2.0,)},
        impossible={"tau_pos": (0.0,), "tau_neg": (-1.0,)},
    )


def _ppo(boundary: Boundary) -> list[Subject]:
    clips: dict[str, Any] = {"eps_clip": 0.2, "eps_clip_higher": 0.28}
    clipped = like("policy_loss.clipped", mean="token_mean", band=_band)
    dual = like("policy_loss.dual_clipped", mean="token_mean", band=_band, cap=lambda o: o["c_clip"])
    apart = ("logp_current", "logp_old")
    other = {"eps_clip": (0.5,), "eps_clip_higher": (0.9,)}
    return [
        _loss(
            boundary,
            clips,
            definition=bounded(clipped, *apart),
            variants=other,
            impossible={"importance_sampling_level": ("turn",)},
        ),
        _loss(
            boundary,
            {**clips, "c_clip": 3.0},
            definition=bounded(dual, *apart),
            variants={**other, "c_clip": (1.5, None)},
            impossible={"c_clip": (0.5,)},
        ),
        _loss(
            boundary,
            {**clips, "importance_sampling_level": "sequence"},
            variants=other,
            adapt=handed.one_per_sequence("advantage"),
        ),
        _loss(
            boundary,
            {**clips, "level": "token", "action": "clamp", "metric": "ratio", "upper": 2.0},
            variants={"upper": (1.1,), "action": ("mask",), "level": ("sequence",)},
        ),
    ]


def _band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["eps_clip"], 1 + options["eps_clip_higher"]


def _rejecting(chosen: dict[str, Any]) -> Settings | None:
    """Take the rejection config out of the options of a subject."""
    names = ("level", "action", "metric", "agg", "upper", "lower")
    found = {n: chosen.pop(n) for n in names if n in chosen}
    return Settings(**{"agg": "mean", "lower": None, **found}) if found else None


def _decided(boundary: Boundary, kind: str, options: Mapping[str, Any], **facts: Any) -> Subject:
    """The result of the rejection per token: a keep, or a factor."""

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        fields = {"proximal_logprobs": "logp_old", "old_logprobs": "logp_rollout"}
        found = boundary(**_packed(_prompted(case), fields), config=_rejecting(dict(chosen)))
        scope = str(chosen["level"])
        if kind == "keep":
            return {"keep": Result(_trained(case, found.loss_mask), "token", "keep", scope)}
        weight = _trained(case, found.behave_imp_weight)
        facts_of: dict[str, Any] = {
            "pair": ("logp_old", "logp_rollout"),
            "range": (chosen.get("lower") or 0.0, chosen["upper"]),
        }
        return {"importance": Result(weight, "token", "importance", scope, **facts_of)}

    return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, **facts)


def _rejection(boundary: Boundary) -> list[Subject]:
    band = {"upper": (1.1,)}
    return [
        _decided(
            boundary,
            "keep",
            {"level": "token", "action": "mask", "metric": "ratio", "upper": 2.0, "lower": 0.5},
            variants=band,
            definition=like("keep.token_band", band=lambda o: (o["lower"], o["upper"])),
            impossible={"metric": ("kl",)},
        ),
        _decided(
            boundary,
            "keep",
            {"level": "sequence", "action": "mask", "metric": "ratio", "upper": 1.25, "lower": 0.8},
            variants=band,
            definition=like("keep.geometric_band", band=lambda o: (o["lower"], o["upper"])),
            impossible={"agg": ("median",)},
        ),
        _decided(
            boundary,
            "keep",
            {"level": "sequence", "action": "mask", "metric": "kl_k2", "upper": 0.1},
            variants={"upper": (1e-4,)},
        ),
        _decided(
            boundary,
            "importance",
            {"level": "token", "action": "clamp", "metric": "ratio", "upper": 2.0},
            variants=band,
            definition=like("importance.truncated", level="token", band=lambda o: (0.0, o["upper"])),
        ),
    ]


def _critic(boundary: Boundary) -> Subject:
    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        fields = {"value": "value", "old_value": "value_old", "target_value": "returns"}
        given = _packed(_prompted(case), fields)
        tensors = {n: given[n].float() for n in fields}
        loss, seen = boundary(**tensors, loss_mask=given["loss_mask"], **chosen)
        return {
            "loss": Result.scalar(loss, "loss"),
            "clipped": Result(_trained(case, seen["clip_mask"]), "token", "observation"),
        }

    define = like("value_loss.squared_clipped", mean="token_mean", reach=lambda o: o["value_eps_clip"])
    return Subject(
        boundary.spec.name,
        call,
        options={"value_eps_clip": 0.5},
        definition=define,
        boundary=boundary,
        role="value_loss",
        waived=OWN,
        variants={"value_eps_clip": (0.1,)},
        impossible={"loss_fn_type": ("l1",)},
        combine=_weighed,
    )


def _m2po(boundary: Boundary) -> Subject:
    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        given = _packed(_prompted(case), {"old_logp": "logp_rollout", "prox_logp": "logp_old"})
        keep = boundary(given["old_logp"], given["prox_logp"], given["loss_mask"], **chosen)
        return {"keep": Result(_trained(case, keep), "token", "keep", scope="batch")}

    why = "torch.sort breaks ties between equal differences by position"
    return Subject(
        boundary.spec.name,
        call,
        options={"m2_threshold": 0.04},
        couples="batch",
        boundary=boundary,
        variants={"m2_threshold": (0.001,)},
        waived={"permutation": why},
    )


def _gather(boundary: Boundary) -> Subject:
    names = ("logp", "entropy") if "entropy" in boundary.spec.name else ("logp",)

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        found = boundary(case.packed("logits"), case.packed("token_id"), **chosen)
        found = found if isinstance(found, tuple) else (found,)
        return {n: Result.token(case, v, n, layout="packed") for n, v in zip(names, found, strict=True)}  # type: ignore[arg-type]

    return Subject(
        boundary.spec.name,
        call,
        options={"temperature": 0.7, "chunk_size": 2},
        boundary=boundary,
        couples="token",
        definition=scored(temperature="temperature", names=names),
        variants={"temperature": (1.0,)},
    )


BINDINGS: tuple[Binding, ...] = (
    functional("ppo_actor_loss_fn", _ppo),
    functional("sapo_loss_fn", _sapo),
    functional("apply_rejection_sampling", _rejection),
    functional("ppo_critic_loss_fn", _critic),
    Binding("_apply_m2po_masking", places_of("_apply_m2po_masking", ACTOR), _m2po),
    Binding("gather_logprobs", places_of("gather_logprobs", VOCABULARY), _gather, uncompiled),
    Binding("gather_logprobs_entropy", places_of("gather_logprobs_entropy", VOCABULARY), _gather, uncompiled),
)

"""OpenRLHF: policy, value and SFT losses, their aggregation, and the correction for the sampler."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import average, like
from trimtab.sentinel.binding.subject import Call, Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.openrlhf.source import (
    LOSS,
    MEANS,
    NEXT,
    OWN,
    added_up,
    built,
    found_in,
    whole_counts,
)
from trimtab.sentinel.targets.stand_in import bounded
from trimtab.sentinel.targets.target import Binding, CouldNotBind


def _kl_of(case: Case) -> Tensor:
    return case.flat("logp_old") - case.flat("logp_current")


def policy_loss(boundary: Boundary, options: Mapping[str, Any], **facts: Any) -> Subject:
    """The policy loss with its metrics; settings go to the constructor."""
    built(boundary, "PolicyLoss", options)

    def loss(case: Case, **chosen: Any) -> Any:
        module = built(boundary, "PolicyLoss", chosen)
        tensors = {"log_probs": "logp_current", "old_log_probs": "logp_old", "advantages": "advantage"}
        given = {n: case.padded(field, **NEXT) for n, field in tensors.items()}
        if "rollout_log_probs" in handed.parameters(boundary) and _corrects(chosen):
            given["rollout_log_probs"] = case.padded("logp_rollout", **NEXT)
        return boundary(module, **given, action_mask=case.padded("trainable", **NEXT), **whole_counts(boundary, case))

    returns = {
        "loss": at(0, "loss"),
        "clip_ratio": at(1, "metric", range=(0.0, 1.0), agreed=0.0, reduction="mean"),
        "ppo_kl": at(2, "metric", of=_kl_of, agreed=0.0, reduction="mean"),
    }
    facts = {"combine": added_up(boundary), "waived": OWN, **facts}
    return bind(
        loss,
        role="policy_loss",
        name=boundary.spec.name,
        args={"case": lambda c: c},
        options=options,
        returns=returns,
        **facts,
    )


def _corrects(chosen: Mapping[str, Any]) -> bool:
    return bool(chosen.get("enable_vllm_is_correction")) or chosen.get("is_correction_level", "off") != "off"


def _band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["clip_eps_low"], 1 + options["clip_eps_high"]


CLIPS = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
OTHER_CLIPS = {"clip_eps_low": (0.5,), "clip_eps_high": (0.9,)}


def _averaged(formula: str, by_token: bool, **settings: Any) -> Call:
    return bounded(handed.simply(like(formula, mean=MEANS[by_token], **settings)), "logp_current", "logp_old")


def _policy(boundary: Boundary) -> list[Subject]:
    found: list[Subject] = []
    for by_token in (True, False):
        found.append(
            policy_loss(
                boundary,
                {**CLIPS, "token_level_loss": by_token},
                variants={**OTHER_CLIPS, "token_level_loss": (not by_token,)},
                definition=_averaged("policy_loss.clipped", by_token, band=_band),
            )
        )
    dual = _averaged("policy_loss.dual_clipped", True, band=_band, cap=lambda o: o["dual_clip"])
    found.append(
        policy_loss(
            boundary,
            {**CLIPS, "dual_clip": 3.0},
            definition=dual,
            variants={"dual_clip": (1.5, None)},
            impossible={"dual_clip": (0.5,)},
        )
    )
    return found


def _gspo(boundary: Boundary) -> Subject:
    return policy_loss(
        boundary,
        {**CLIPS, "policy_loss_type": "gspo"},
        variants=OTHER_CLIPS,
        adapt=handed.one_per_sequence("advantage"),
        impossible={"policy_loss_type": ("grpo",)},
        definition=_averaged("policy_loss.geometric_clipped", False, band=_band),
    )


def _settings(boundary: Boundary) -> dict[str, dict[str, Any]]:
    """The corrections this version knows, by its own names."""
    try:
        threshold = {"enable_vllm_is_correction": True, "vllm_is_truncated_threshold": [0.5, 2.0]}
        built(boundary, "PolicyLoss", threshold | {"vllm_is_correction_type": "tis"})
    except CouldNotBind:
        level = {"is_correction_threshold": [0.5, 2.0]}
        return {
            "tis": {**level, "is_correction_level": "token", "is_correction_mode": "clip"},
            "icepop": {**level, "is_correction_level": "token", "is_correction_mode": "mask"},
            "sequence mask": {**level, "is_correction_level": "seq", "is_correction_mode": "mask"},
        }
    return {kind: {**threshold, "vllm_is_correction_type": kind} for kind in ("tis", "icepop", "seq-mask-tis")}


def _importance(boundary: Boundary) -> list[Subject]:
    """The factor of the correction per token: corrected gradient over plain gradient, on-policy and with A = 1."""

    def weight(case: Case, chosen: Mapping[str, Any]) -> Tensor:
        slopes: list[Tensor] = []
        old, mask = case.padded("logp_old", **NEXT).detach(), case.padded("trainable", **NEXT)
        for settings in ({}, chosen):
            logp = old.clone().requires_grad_()
            given = {"log_probs": logp, "old_log_probs": old, "advantages": torch.ones_like(old), "action_mask": mask}
            if settings:
                given["rollout_log_probs"] = case.padded("logp_rollout", **NEXT).detach()
            with torch.enable_grad():
                loss = boundary(built(boundary, "PolicyLoss", settings), **given)[0]
                slopes.append(torch.autograd.grad(loss, logp)[0] if loss.requires_grad else torch.zeros_like(old))
        plain, corrected = (case.from_padded(slope, **NEXT) for slope in slopes)
        return corrected / plain

    found: list[Subject] = []
    for kind, settings in _settings(boundary).items():
        # The comment at seq-mask-tis promises the truncated factor. Later options promise the raw one.
        ceiling = float("inf") if kind == "sequence mask" else 2.0
        facts: dict[str, Any] = {
            "range": (0.5 if kind == "tis" else 0.0, ceiling),
            "pair": ("logp_old", "logp_rollout"),
        }

        def call(case: Case, chosen: Mapping[str, Any], facts: dict[str, Any] = facts) -> Out:
            return {"importance": Result(weight(case, chosen), "token", "importance", **facts)}

        define = like("importance.truncated", level="token", band=(0.5, 2.0)) if kind == "tis" else None
        found.append(
            Subject(f"PolicyLoss[{kind}]", call, options=settings, boundary=boundary, waived=OWN, definition=define)
        )
    return found


def _value(boundary: Boundary) -> list[Subject]:
    def loss(case: Case, **chosen: Any) -> Any:
        module = built(boundary, "ValueLoss", chosen)
        fields = {"values": "value", "old_values": "value_old", "returns": "returns", "action_mask": "trainable"}
        return boundary(
            module, **{n: case.padded(f, **NEXT) for n, f in fields.items()}, **whole_counts(boundary, case)
        )

    return [
        bind(
            loss,
            role="value_loss",
            name=boundary.spec.name,
            args={"case": lambda c: c},
            options={"clip_eps": 0.5, "token_level_loss": by_token},
            waived=OWN,
            combine=added_up(boundary),
            definition=like("value_loss.squared_clipped", mean=MEANS[by_token], reach=lambda o: o["clip_eps"]),
            variants={"clip_eps": (0.1, None), "token_level_loss": (not by_token,)},
        )
        for by_token in (True, False)
    ]


def _aggregate(boundary: Boundary) -> list[Subject]:
    args: dict[str, Any] = {"loss": "token_loss", "loss_mask": "trainable"}
    told: dict[str, Callable[[Case], Any]] = {
        "batch_num_tokens": lambda c: handed.counts(c)[0],
        "global_batch_size": lambda c: handed.counts(c)[1],
    }
    return [
        bind(
            boundary,
            role="aggregation",
            args=args | told,
            options={"token_level_loss": by_token},
            combine="sum",
            definition=average(MEANS[by_token]),
            variants={"token_level_loss": (not by_token,)},
        )
        for by_token in (True, False)
    ]


def _sft(boundary: Boundary) -> Subject:
    def loss(case: Case, **chosen: Any) -> Any:
        mask = case.padded("trainable", **NEXT)
        return boundary(
            built(boundary, "SFTLoss", chosen),
            case.padded("logp_current", **NEXT),
            mask,
            **whole_counts(boundary, case),
        )

    return bind(
        loss,
        role="policy_loss",
        name=boundary.spec.name,
        args={"case": lambda c: c},
        waived=OWN,
        options={"token_level_loss": True},
        variants={"token_level_loss": (False,)},
        combine=added_up(boundary),
        definition=like("policy_loss.cross_entropy", mean="token_mean"),
    )


BINDINGS: tuple[Binding, ...] = (
    found_in(LOSS, "PolicyLoss.forward", _policy),
    found_in(LOSS, "PolicyLoss.forward", _gspo, "PolicyLoss.forward[gspo]"),
    found_in(LOSS, "PolicyLoss.forward", _importance, "PolicyLoss.forward[correction]"),
    found_in(LOSS, "ValueLoss.forward", _value),
    found_in(LOSS, "aggregate_loss", _aggregate),
    found_in(LOSS, "SFTLoss.forward", _sft),
)

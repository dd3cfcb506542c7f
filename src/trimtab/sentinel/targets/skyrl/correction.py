"""SkyRL: the off-policy correction, its factors, its masks and their logged numbers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.skyrl.loss import algorithm
from trimtab.sentinel.targets.skyrl.source import (
    LEFT,
    OWN,
    correction,
    single,
)
from trimtab.sentinel.targets.target import Binding


def _ratios(case: Case) -> dict[str, Tensor]:
    return {
        "old_log_probs": single(case, "logp_old"),
        "rollout_logprobs": single(case, "logp_rollout"),
        "loss_mask": single(case, "trainable"),
    }


def _decision(boundary: Boundary, kind: str, scope: str, options: Mapping[str, Any], **facts: Any) -> Subject:
    """A factor or a mask of the correction, one per token or one per sequence."""
    direct = [n for n in ("tis_ratio_type", "sequence_mask_metric") if n in handed.parameters(boundary)]

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        told = {n: chosen[n] for n in direct}
        values, _ = boundary(**_ratios(case), **told, off_policy_correction=algorithm(chosen).off_policy_correction)
        fact: dict[str, Any] = facts.get("of", {})
        if scope == "sequence":
            return {kind: Result.sequence(values[:, 0], kind, scope=scope, **fact)}  # type: ignore[arg-type]
        return {kind: Result(case.from_padded(values, **LEFT), "token", kind, scope=scope, **fact)}  # type: ignore[arg-type]

    rest = {n: v for n, v in facts.items() if n != "of"}
    return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, waived=OWN, **rest)


def _tis(boundary: Boundary) -> list[Subject]:
    pair = ("logp_old", "logp_rollout")
    token = _decision(
        boundary,
        "importance",
        "token",
        {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 2.0},
        of={"pair": pair, "range": (0.0, 2.0)},
        variants={"token_tis_ratio_clip_high": (1.1,)},
        definition=like("importance.truncated", level="token", band=lambda o: (0.0, o["token_tis_ratio_clip_high"])),
        impossible={"tis_ratio_type": ("turn",)},
    )
    sequence = _decision(
        boundary,
        "importance",
        "sequence",
        {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 5.0},
        of={"pair": pair, "range": (0.0, 5.0)},
        variants={"sequence_tis_ratio_clip_high": (1.1,)},
    )
    return [token, sequence]


def _sequence_mask(boundary: Boundary) -> list[Subject]:
    return [
        _decision(
            boundary,
            "keep",
            "sequence",
            {"sequence_mask_metric": kind, **band},
            variants={name: (value * 1.2,) for name, value in band.items()},
            impossible={"sequence_mask_metric": ("mean",)},
        )
        for kind, band in (
            ("geometric", {"geo_mask_low": 0.8, "geo_mask_high": 1.25}),
            ("product", {"product_mask_low": 0.5, "product_mask_high": 2.0}),
        )
    ]


def _outlier(boundary: Boundary) -> Subject:
    options = {"outlier_token_is_threshold_low": 0.5, "outlier_token_is_threshold_high": 2.0}
    variants = {"outlier_token_is_threshold_low": (0.9,), "outlier_token_is_threshold_high": (1.1, None)}
    return _decision(boundary, "keep", "sequence", options, variants=variants)


def _token_mask(boundary: Boundary) -> Subject:
    options = {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}
    variants = {"token_mask_is_threshold_low": (0.9,), "token_mask_is_threshold_high": (1.1,)}
    define = like(
        "keep.token_band", band=lambda o: (o["token_mask_is_threshold_low"], o["token_mask_is_threshold_high"])
    )
    return _decision(boundary, "keep", "token", options, variants=variants, definition=define)


def _correction(boundary: Boundary) -> Subject:
    def correct(case: Case, **chosen: Any) -> Any:
        found = boundary(**_ratios(case), off_policy_correction=algorithm(chosen).off_policy_correction)[1]
        return {name: torch.tensor(value, dtype=torch.float32) for name, value in found.items()}

    def ratio(case: Case) -> Tensor:
        return (case.flat("logp_old").float() - case.flat("logp_rollout").float()).clamp(-20, 20).exp()

    metrics = {
        f"is_ratio_{kind}": at((f"is_ratio_{kind}",), "metric", of=ratio, reduction=kind, agreed=1.0)
        for kind in ("mean", "max", "min")
    }
    return bind(
        correct,
        name=boundary.spec.name,
        args={"case": lambda c: c},
        couples="batch",
        waived=OWN,
        options={"tis_ratio_type": "token"},
        returns=metrics,
    )


BINDINGS: tuple[Binding, ...] = (
    correction("compute_tis_ratio", _tis),
    correction("compute_sequence_mask", _sequence_mask),
    correction("compute_outlier_token_mask", _outlier),
    correction("compute_token_mask", _token_mask),
    correction("compute_off_policy_correction", _correction),
)

"""TRL: masks, correction for the sampler, log-probs, entropies, packing and distillation."""

from collections.abc import Mapping
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import divergence, like, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.stand_in import Settings, bounded
from trimtab.sentinel.targets.target import Binding
from trimtab.sentinel.targets.trl.source import (
    GKD,
    GRPO,
    OWN,
    RATIO,
    RIGHT,
    SCORE,
    UTILS,
    Alone,
    found_in,
)


def _off_policy_mask(boundary: Boundary) -> Subject:
    def keep(case: Case, off_policy_threshold: float) -> Any:
        found = boundary(
            case.sequence("outcome")[:, None],
            case.padded("logp_current", **RIGHT),
            case.padded("logp_rollout", **RIGHT),
            case.padded("trainable", **RIGHT),
            off_policy_threshold,
        )
        return found[:, 0]

    return bind(
        keep,
        role="keep",
        name=boundary.spec.name,
        args={"case": lambda c: c},
        options={"off_policy_threshold": 0.05},
        returns={"keep": at((), "keep", level="sequence", scope="sequence")},
        variants={"off_policy_threshold": (1e-6,)},
    )


def _entropy_mask(boundary: Boundary) -> Subject:
    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        trainer = boundary.made(accelerator=Alone())
        found = boundary(trainer, case.padded("entropy", **RIGHT), case.padded("trainable", **RIGHT), **chosen)
        return {"keep": Result.token(case, found, "keep", scope="batch", **RIGHT)}

    return Subject(
        boundary.spec.name,
        call,
        options={"threshold": 0.5},
        boundary=boundary,
        couples="batch",
        variants={"threshold": (0.1,)},
    )


def _ratio(boundary: Boundary, mode: str, **facts: Any) -> Subject:
    """The correction in one of its modes."""

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        trainer = Settings(vllm_importance_sampling_mode=mode, vllm_importance_sampling_clip_min=None, **chosen)
        mask = case.padded("trainable", **RIGHT)
        found = torch.no_grad()(boundary)(  # as the trainer does, before any loss
            self=trainer,
            completion_mask=mask,
            tool_mask=None,
            mask=mask,
            old_per_token_logps=case.padded("logp_old", **RIGHT),
            sampling_per_token_logps=case.padded("logp_rollout", **RIGHT),
        )["vllm_importance_sampling_ratio"]
        of: dict[str, Any] = {
            "pair": ("logp_old", "logp_rollout"),
            "range": (0.0, chosen["vllm_importance_sampling_clip_max"]),
        }
        if mode.startswith("sequence"):
            return {"importance": Result.sequence(found[:, 0], "importance", scope="sequence", **of)}
        return {"importance": Result(case.from_padded(found, **RIGHT), "token", "importance", **of)}

    return Subject(
        f"{boundary.spec.name}[{mode}]",
        call,
        options={"vllm_importance_sampling_clip_max": 2.0},
        boundary=boundary,
        variants={"vllm_importance_sampling_clip_max": (1.1,)},
        waived=OWN,
        **facts,
    )


def _sampling_ratio(boundary: Boundary) -> list[Subject]:
    """The statements that make the correction for the sampler's log-probs."""

    truncated = like(
        "importance.truncated", level="token", band=lambda o: (0.0, o["vllm_importance_sampling_clip_max"])
    )
    return [
        _ratio(boundary, "token_truncate", definition=bounded(truncated, "logp_old", "logp_rollout")),
        _ratio(boundary, "token_mask"),
        _ratio(boundary, "sequence_truncate"),
        _ratio(boundary, "sequence_mask"),
    ]


def _logp(boundary: Boundary) -> Subject:
    own = handed.parameters(boundary)
    options = {"temperature": 0.7} if "temperature" in own else {}
    facts: dict[str, Any] = (
        {"variants": {"temperature": (1.0,)}, "impossible": {"temperature": (0.0,)}} if options else {}
    )
    names = ("logp", "entropy") if "entropy" in boundary.spec.name else ("logp",)
    return bind(
        boundary,
        role="logp",
        args={"logits": "logits", "index": "token_id"},
        options=options,
        definition=scored(temperature="temperature", names=names),
        returns={n: at((i,) if len(names) > 1 else (), n, level="token") for i, n in enumerate(names)},
        **facts,
        # type: ignore[arg-type]
    )


def _entropy(boundary: Boundary) -> Subject:
    options = {"chunk_size": 2} if "chunk_size" in handed.parameters(boundary) else {}
    return bind(
        boundary,
        role="entropy",
        args={"logits": "logits"},
        options=options,
        definition=scored(names=("entropy",)),
        returns={"entropy": at((), "entropy", level="token")},
    )


def _flush_left(boundary: Boundary) -> Subject:
    def call(case: Case, _: Mapping[str, Any]) -> Out:
        if not case.kinds or any(not row for row in case.kinds):
            raise case.cannot("a sequence must have a token")
        mask = case.padded("attention", dtype=torch.long, side="left")
        flushed = boundary(mask, case.padded("logp_old", side="left"), case.padded("token_reward", side="left"))
        rows = [torch.arange(len(row)) for row in case.kinds]
        carried = {
            n: torch.cat([flushed[i + 1][row][place] for row, place in enumerate(rows)])
            for i, n in enumerate(("logp_old", "token_reward"))
        }
        return {n: Result(v[case.trainable], "token", "carried", of=n) for n, v in carried.items()}

    return Subject(boundary.spec.name, call, boundary=boundary)


def _jsd(boundary: Boundary) -> list[Subject]:
    def each(case: Case, beta: float, temperature: float) -> Any:
        student, teacher = case.padded("logits", **RIGHT), case.padded("teacher_logits", **RIGHT)
        return boundary(student, teacher, beta=beta, temperature=temperature, reduction="none").sum(-1)

    return [
        bind(
            each,
            role="distillation",
            name=boundary.spec.name,
            args={"case": lambda c: c},
            returns={"kl": at((), "kl")},
            options={"beta": beta, "temperature": 1.0},
            definition=divergence(kind, weight=beta),
            variants={"beta": (0.3,), "temperature": (2.0,)},
            waived=dict.fromkeys(("mask_content", "nonfinite_isolation"), "without labels it takes no mask"),
        )
        for kind, beta in (("jsd", 0.5), ("forward", 0.0), ("reverse", 1.0))
    ]


BINDINGS: tuple[Binding, ...] = (
    found_in(
        GRPO,
        f"GRPOTrainer.{SCORE}",
        _sampling_ratio,
        "GRPOTrainer sampling ratio",
        **RATIO,
        results=("vllm_importance_sampling_ratio",),
    ),
    found_in(GRPO, "GRPOTrainer.get_off_policy_mask", _off_policy_mask),
    found_in(GRPO, "GRPOTrainer.get_high_entropy_mask", _entropy_mask),
    found_in(UTILS, "selective_log_softmax", _logp),
    found_in(UTILS, "selective_log_softmax_and_entropy", _logp),
    found_in(UTILS, "entropy_from_logits", _entropy),
    found_in(UTILS, "flush_left", _flush_left),
    Binding("generalized_jsd_loss", tuple(Spec("GKDTrainer.generalized_jsd_loss", file=f) for f in GKD), _jsd),
)

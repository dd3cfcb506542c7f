"""TRL: the losses of the GRPO and RLOO trainers, called on a trainer without a model."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Call, Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.stand_in import Settings, bounded
from trimtab.sentinel.targets.target import Binding
from trimtab.sentinel.targets.trl.source import (
    GRPO,
    OWN,
    RIGHT,
    RLOO,
    Alone,
    by_row,
    found_in,
)

ARGS: dict[str, Any] = {
    "delta": None,
    "use_bias_correction_kl": False,
    "sapo_temperature_pos": 1.0,
    "sapo_temperature_neg": 1.05,
    "steps_per_generation": 1,
    "vespo_k_pos": 2.0,
    "vespo_lambda_pos": 3.0,
    "vespo_k_neg": 3.0,
    "vespo_lambda_neg": 2.0,
    "gradient_accumulation_steps": 1,
    "report_to": (),
}
OPTIONS: dict[str, Any] = {
    "beta": 0.0,
    "loss_type": "dapo",
    "epsilon_low": 0.2,
    "epsilon_high": 0.28,
    "top_entropy_quantile": 1.0,
    "off_policy_mask_threshold": None,
    "importance_sampling_level": "token",
    "use_vllm": False,
    "vllm_importance_sampling_correction": False,
    "max_completion_length": 8,
    "temperature": 1.0,
    "_entropy_bonus_enabled": False,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "aux_loss_enabled": False,
    "current_gradient_accumulation_steps": 1,
    "use_liger_kernel": False,
    "scale_rewards": "group",
    "num_iterations": 1,
}


def _trainer(boundary: Boundary, case: Case, chosen: Mapping[str, Any]) -> Any:
    """A trainer in the state after its constructor, whose model returns the log-probs of the case."""
    own = {n: v for n, v in chosen.items() if n not in ARGS}
    told = Settings(**{**ARGS, **{n: v for n, v in chosen.items() if n in ARGS}})
    logp, entropy = case.padded("logp_current", **RIGHT), case.padded("entropy", **RIGHT)
    given = {**OPTIONS, **own, "args": told, "accelerator": Alone(), "model": Settings(training=True)}
    trainer = boundary.made(
        **given,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _step=0,
        _metric_events=defaultdict(list),
        state=Settings(global_step=0),
        control=Settings(should_evaluate=False),
    )
    scored_by = (logp, entropy, None) if "entropies, aux_loss = " in boundary.source else (logp, entropy)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: scored_by
    trainer._get_per_token_logps = lambda *_, **__: logp
    return trainer


def _inputs(boundary: Boundary, case: Case) -> dict[str, Any]:
    ids, mask = case.padded("token_id", **RIGHT), case.padded("response", dtype=torch.long, **RIGHT)
    old = case.padded("logp_old", **RIGHT)
    is_told = '"num_items_in_batch"' in boundary.source  # of the tokens of the whole batch
    return {
        "prompt_ids": torch.zeros(len(ids), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(ids), 1, dtype=torch.long),
        "completion_ids": ids,
        "completion_mask": mask.double(),
        "tool_mask": case.padded("trainable", **RIGHT),
        "advantages": case.sequence("outcome"),
        "old_per_token_logps": old,
        **({"num_items_in_batch": torch.tensor(float(handed.counts(case)[0]))} if is_told else {}),
        "ref_per_token_logps": case.padded("logp_ref", **RIGHT),
        "old_logps": (old * mask).sum(1),
        "sampling_per_token_logps": case.padded("logp_rollout", **RIGHT),
    }


READ: dict[str, dict[str, Any]] = {
    "clip_ratio/region_mean": {"range": (0.0, 1.0), "agreed": 0.0, "reduction": "mean"},
    "clip_ratio/low_mean": {"agreed": 0.0, "reduction": "mean"},
    "clip_ratio/high_mean": {"agreed": 0.0, "reduction": "mean"},
    "clip_ratio": {"range": (0.0, 1.0), "agreed": 0.0, "reduction": "mean"},
    "kl": {"agreed": 0.0, "reduction": "mean"},
    "entropy": {"of": "entropy", "reduction": "mean"},
}
CLIPPED = ("clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean")


def loss(
    boundary: Boundary,
    options: Mapping[str, Any],
    *,
    read: tuple[str, ...] = (),
    population: str = "token",
    **facts: Any,
) -> Subject:
    """The loss of a trainer over one micro-batch. Metrics are read from the trainer's own log."""

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        if not case.padded("response", **RIGHT).shape[1]:
            raise case.cannot("a completion must have a token")
        if "tool_mask" not in boundary.source and any("o" in row for row in case.kinds):
            raise case.cannot("this version has no tools")
        trainer = _trainer(boundary, case, chosen)
        found = boundary(trainer, None, _inputs(boundary, case))
        out = {"loss": Result.scalar(found, "loss")}
        metrics = {n: trainer._metrics["train"][n] for n in read if n in trainer._metrics["train"]}
        facts_of = {n: {**READ[n], "population": population} for n in metrics}
        if population == "token" and str(options.get("importance_sampling_level", "token")) == "token":
            for n in {"clip_ratio/region_mean", "clip_ratio"} & metrics.keys():
                facts_of[n]["of"] = lambda one: _clips(one, chosen)
        return out | {n: Result.scalar(v[-1], "metric", **facts_of[n]) for n, v in metrics.items()}

    facts = {"waived": OWN, **facts}
    return Subject(
        f"{boundary.spec.name}[{options.get('loss_type', 'rloo')}]",
        call,
        options=dict(options),
        boundary=boundary,
        role="policy_loss",
        **facts,
    )


def _clips(case: Case, options: Mapping[str, Any]) -> Tensor:
    """Tokens at which the minimum takes the bounded side."""
    low, high = band(options)
    ratio, credit = (case.flat("logp_current") - case.flat("logp_old")).exp(), case.flat("outcome")
    return (((ratio < low) & (credit < 0)) | ((ratio > high) & (credit > 0))).double()


def band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["epsilon_low"], 1 + options["epsilon_high"]


def one_advantage(define: Call, *names: str) -> Call:
    """A definition with one advantage per sequence."""
    held = handed.simply(define)
    return bounded(
        lambda case, o: held(handed.one_per_sequence("advantage")(case), o), *(names or ("logp_current", "logp_old"))
    )


CLIPS = {"epsilon_low": 0.2, "epsilon_high": 0.28}
OTHER = {"epsilon_low": (0.5,), "epsilon_high": (0.9,)}


ROWS = "sequence_mean_token_mean over all rows"


def _grpo(boundary: Boundary) -> list[Subject]:
    """The PPO-like loss types, each with the average that its name stands for."""
    clipped = {m: one_advantage(like("policy_loss.clipped", mean=m, band=band)) for m in ("token_mean", ROWS)}
    local = {**OWN, "split": "bnpo is a mean over the tokens of each micro-batch, as its documentation says"}
    return [
        loss(
            boundary,
            {**CLIPS, "loss_type": "dapo"},
            read=(*CLIPPED, "entropy"),
            combine="sum",
            variants={**OTHER, "delta": (1.5,)},
            definition=clipped["token_mean"],
            impossible={"loss_type": ("ppo",), "importance_sampling_level": ("turn",)},
        ),
        loss(
            boundary,
            {**CLIPS, "loss_type": "grpo", "beta": 0.1},
            read=(*CLIPPED, "kl"),
            combine=by_row,
            penalties={"beta": "logp_ref"},
            variants={**OTHER, "beta": (0.5,)},
        ),
        loss(
            boundary,
            {**CLIPS, "loss_type": "grpo"},
            combine=by_row,
            definition=clipped[ROWS],
            variants={"loss_type": ("dapo", "sapo")},
        ),
        loss(boundary, {**CLIPS, "loss_type": "bnpo"}, waived=local, definition=clipped["token_mean"]),
        loss(
            boundary,
            {**CLIPS, "loss_type": "dr_grpo", "max_completion_length": 8},
            combine=by_row,
            variants={"max_completion_length": (4,)},
        ),
        *_other_types(boundary),
        *_with_options(boundary),
    ]


def _other_types(boundary: Boundary) -> list[Subject]:
    gated = one_advantage(
        like(
            "policy_loss.soft_gated",
            mean=ROWS,
            temperature_positive=lambda o: o["sapo_temperature_pos"],
            temperature_negative=lambda o: o["sapo_temperature_neg"],
        )
    )
    weighed = one_advantage(
        like("policy_loss.clipped_importance", mean="token_mean", band=lambda o: (0.0, o["epsilon_high"]))
    )
    return [
        loss(
            boundary,
            {"epsilon_high": 2.0, "loss_type": "cispo"},
            combine="sum",
            definition=weighed,
            stops_gradient=True,
            variants={"epsilon_high": (1.1,)},
        ),
        loss(
            boundary,
            {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05, "loss_type": "sapo"},
            combine=by_row,
            definition=gated,
            variants={"sapo_temperature_pos": (2.0,), "sapo_temperature_neg": (2.0,)},
        ),
        loss(boundary, {"loss_type": "vespo"}, combine="sum", stops_gradient=True),
    ]


def _with_options(boundary: Boundary) -> list[Subject]:
    geometric = one_advantage(like("policy_loss.geometric_clipped", mean=ROWS, band=band))
    return [
        loss(
            boundary,
            {**CLIPS, "importance_sampling_level": "sequence", "loss_type": "grpo"},
            combine=by_row,
            variants=OTHER,
            definition=geometric,
        ),
        loss(
            boundary,
            {**CLIPS, "off_policy_mask_threshold": 0.5, "loss_type": "dapo"},
            combine="sum",
            variants={"off_policy_mask_threshold": (0.01,)},
        ),
        loss(
            boundary,
            {**CLIPS, "_entropy_bonus_enabled": True, "entropy_coef": 0.1, "loss_type": "grpo"},
            combine=by_row,
            waived={**OWN, "split": "the entropy bonus is a mean over each micro-batch's tokens, as its comment says"},
            penalties={"entropy_coef": "entropy"},
            variants={"entropy_coef": (0.5,)},
        ),
    ]


def _rloo(boundary: Boundary) -> Subject:
    return loss(
        boundary,
        CLIPS,
        read=("clip_ratio/region_mean",),
        population="sequence",
        combine=by_row,
        variants=OTHER,
        adapt=_without_tools,
    )


def _without_tools(case: Case) -> Case:
    if any("o" in row for row in case.kinds):
        raise case.cannot("this trainer has no tools")
    return case


BINDINGS: tuple[Binding, ...] = (
    Binding(
        "GRPOTrainer._compute_loss",
        tuple(Spec(f"GRPOTrainer.{n}", file=GRPO) for n in ("_compute_loss", "compute_loss")),
        _grpo,
    ),
    found_in(RLOO, "RLOOTrainer._compute_loss", _rloo),
)

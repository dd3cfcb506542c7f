"""NeMo-RL's loss functions: objects called with log-probs, a batch and the counts of the whole batch."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets.stand_in import bounded
from trimtab.sentinel.targets.target import CouldNotBind

FINITE = {
    "nonfinite_isolation": "log-probs of padded positions are the model's own and those of the engine are 0 there "
    "(grpo.py: generation_logprobs = zeros_like)"
}


class Batch(dict[str, Any]):
    """A batch: tensors by name."""


def given() -> dict[str, object]:
    return {"BatchedDataDict": Batch}


def lead(values: Tensor) -> Tensor:
    """Add one position in front, which the loss drops: a first token that is never predicted."""
    return torch.cat([values.new_zeros(values.shape[0], 1), values], 1)


def data(case: Case, **fields: str) -> Batch:
    """The fields of a batch that the loss reads."""
    mask = case.padded("trainable", dtype=torch.float64)
    held = {name: lead(case.padded(own).detach()) for name, own in fields.items()}
    return Batch(token_mask=lead(mask), sample_mask=torch.ones(case.num_sequences, dtype=torch.float64), **held)


def counts(case: Case) -> dict[str, Tensor]:
    """Counts over the whole batch, which the trainer takes before it splits the batch."""
    if not case.whole.segments.num_tokens:
        raise case.cannot("nothing trains in the whole batch")
    return {
        "global_valid_seqs": torch.tensor(float(case.whole.num_sequences)),
        "global_valid_toks": torch.tensor(float(case.whole.segments.num_tokens)),
    }


CLIPPED: dict[str, Any] = {
    "reference_policy_kl_penalty": 0.0, "reference_policy_kl_type": "k3", "kl_input_clamp_value": 20.0,
    "kl_output_clamp_value": None, "ratio_clip_min": 0.2, "ratio_clip_max": 0.28, "ratio_clip_c": None,
    "use_on_policy_kl_approximation": False, "use_importance_sampling_correction": False,
    "truncated_importance_sampling_ratio": None, "truncated_importance_sampling_type": None,
    "truncated_importance_sampling_ratio_min": None, "token_level_loss": True, "force_on_policy_ratio": False,
    "sequence_level_importance_ratios": False, "disable_ppo_ratio": False, "use_cispo": False,
    "positive_example_nll_weight": 0.0, "use_kl_in_reward": False,
}  # fmt: skip
SUMMED = {
    "probs_ratio": 1.0, "gen_kl_error": 0.0, "policy_kl_error": 0.0, "js_divergence_error": 0.0,
    "token_mult_prob_error": 1.0,
}  # fmt: skip
"""Means over the tokens of the whole batch. Parts add up; the value is the one where all policies agree."""


def clipped(fn: Boundary) -> list[Subject]:
    """PPO, dual clip, sequence level, GSPO, CISPO, REINFORCE, corrections, penalties."""
    if "next_token_logprobs" not in inspect.signature(fn.function.__call__).parameters:
        raise CouldNotBind(f"{fn.spec.name} takes logits, not log-probs")

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        config = fn.get("ClippedPGLossConfig")(**options)
        loss_fn = fn.function(config)
        more = {"reference_policy_logprobs": "logp_ref"} if options["reference_policy_kl_penalty"] else {}
        batch = data(case, advantages="advantage", prev_logprobs="logp_old", generation_logprobs="logp_rollout", **more)
        if options["positive_example_nll_weight"]:
            batch["rewards"] = case.sequence("reward")
        loss, seen = loss_fn(case.padded("logp_current"), batch, **counts(case))
        out = {"loss": Result.scalar(loss, "loss")}
        for name, quiet in SUMMED.items():
            told = not options["sequence_level_importance_ratios"] and not options["force_on_policy_ratio"]
            if name in seen and told:
                agreed = quiet if case.segments.num_tokens == case.whole.segments.num_tokens else None
                out[name] = Result.scalar(seen[name], "metric", reduction="sum", agreed=agreed)
        return out

    subjects: list[Subject] = []
    for options, facts in variants():
        known = {k: v for k, v in {**CLIPPED, **options}.items() if f'"{k}"' in fn.source or f".{k}" in fn.source}
        if set(options) <= set(known):
            told: dict[str, Any] = {"waived": FINITE, **facts}
            subjects.append(Subject("ClippedPGLossFn", call, options=known, combine="sum", role="policy_loss", **told))
    return subjects


def variants() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Options, with facts about the loss that they select."""
    band = lambda o: (1 - o["ratio_clip_min"], 1 + o["ratio_clip_max"])  # noqa: E731
    tokens = {"conventions": {"denominator": "token_mean"}}
    shared = {**FINITE, "denominator": "the sequence ratio shares a token's gradient among its sequence"}
    fixed, likely = "the ratio is 1 by request", "a likelihood of good samples is added to the surrogate"
    tis = {"use_importance_sampling_correction": True, "truncated_importance_sampling_ratio": 2.0}
    kl = {"penalties": {"reference_policy_kl_penalty": "logp_ref"}}
    return [
        ({}, {**tokens, "definition": bounded(like("policy_loss.clipped", mean="token_mean", band=band)),
              "variants": {"ratio_clip_min": (0.5,), "ratio_clip_max": (0.6,), "ratio_clip_c": (1.5,),
                           "token_level_loss": (False,), "disable_ppo_ratio": (True,)}}),
        ({"ratio_clip_c": 3.0}, {**tokens, "impossible": {"ratio_clip_c": (0.5,)}, "definition": bounded(
            like("policy_loss.dual_clipped", mean="token_mean", band=band, cap=lambda o: o["ratio_clip_c"]))}),
        ({"token_level_loss": False}, {}),
        ({"token_level_loss": False, "sequence_level_importance_ratios": True}, {"waived": shared}),
        ({"use_cispo": True}, {"stops_gradient": True, "definition": bounded(
            like("policy_loss.clipped_importance", mean="token_mean", band=band))}),
        ({"disable_ppo_ratio": True}, {**tokens, "definition": like("policy_loss.reinforce", mean="token_mean")}),
        ({"force_on_policy_ratio": True}, {**tokens, "waived": {**FINITE, "clip_geometry": fixed}}),
        ({**tis, "truncated_importance_sampling_type": "tis"},
         {"variants": {"truncated_importance_sampling_ratio": (1.1,)}}),
        ({**tis, "truncated_importance_sampling_type": "icepop", "truncated_importance_sampling_ratio_min": 0.5},
         {"variants": {"truncated_importance_sampling_ratio_min": (0.9,)}}),
        ({**tis, "truncated_importance_sampling_type": "seq-mask-tis", "truncated_importance_sampling_ratio_min": 0.5},
         {"variants": {"truncated_importance_sampling_ratio_min": (0.9,)}}),
        ({"reference_policy_kl_penalty": 0.1, "reference_policy_kl_type": "k1"},
         {**kl, "variants": {"reference_policy_kl_type": ("k2", "k3")}}),
        ({"reference_policy_kl_penalty": 0.1, "use_on_policy_kl_approximation": True}, kl),
        ({"positive_example_nll_weight": 0.5},
         {"variants": {"positive_example_nll_weight": (0.0,)},
          "waived": {**FINITE, "clip_geometry": likely, "denominator": likely}}),
    ]  # fmt: skip


def likelihood(fn: Boundary) -> Subject:
    """Negative log-likelihood over the whole batch's tokens."""
    if "next_token_logprobs" not in inspect.signature(fn.function.__call__).parameters:
        raise CouldNotBind(f"{fn.spec.name} takes logits, not log-probs")

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        loss, _ = fn.function()(case.padded("logp_current"), data(case), **counts(case))
        return {"loss": Result.scalar(loss, "loss")}

    define = like("policy_loss.cross_entropy", mean="token_mean")
    return Subject("NLLLossFn", call, combine="sum", definition=define, waived=FINITE)


def value(fn: Boundary) -> list[Subject]:
    """Squared error of the values, clipped or not."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        held = fn.made(fn.function, **options)
        mask = case.padded("trainable", dtype=torch.float64)
        batch = Batch(
            token_mask=mask, sample_mask=torch.ones(case.num_sequences, dtype=torch.float64),
            returns=case.padded("returns").detach(), values=case.padded("value_old").detach(),
        )  # fmt: skip
        loss, _ = held(case.padded("value"), batch, **counts(case))
        return {"loss": Result.scalar(loss, "loss")}

    squared = like("value_loss.squared", mean="token_mean")
    reach = like("value_loss.squared_clipped", mean="token_mean", reach=lambda o: o["cliprange"])
    return [
        Subject("MseValueLossFn", call, combine="sum", role="value_loss", options={"scale": 1.0, "cliprange": clip},
                definition=reach if clip else squared, waived=FINITE, variants={"scale": (2.0,)})
        for clip in (None, 0.2)
    ]  # fmt: skip

"""prime-rl (PrimeIntellect-ai/prime-rl): losses over packed sequences of unequal length, scaled by the step's tokens.

A loss sums over tokens; the trainer divides by the count of the whole step. Every ratio is against the sampler.
"""

import inspect
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import like, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.stand_in import Settings, bounded, by_group, normalised
from trimtab.sentinel.targets.target import Binding, CouldNotBind, Target

LOGITS = {"nonfinite_isolation": "logits that are not finite are a broken model, not the content of a masked cell"}


def losses(fn: Boundary) -> list[Subject]:
    """The loss of a micro-batch: trust region, symmetric trust region, distillation, likelihood."""
    if "rl_loss_fn" not in inspect.signature(fn.function).parameters:
        raise CouldNotBind("compute_loss takes no rl_loss_fn")

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        scale = max(case.whole.segments.num_tokens, 1)
        view = {n: case.list(n) for n in ("logp_current", "logp_rollout")}
        plain = options["loss"] in ("ce_loss_fn", "ref_kl_loss_fn")
        credit = [torch.zeros_like(v.detach()) for v in view["logp_current"]] if plain else case.list("advantage")
        mask = case.list("trainable", dtype=torch.bool)
        chosen = {k: v for k, v in options.items() if k not in ("loss", "weight")}
        function = partial(fn.get(options["loss"]), loss_config=Settings(**chosen))
        on = [m.double() * options["weight"] for m in mask]
        parts = {"rl": None, "ce": None, "ref_kl": None}
        if plain:
            parts = {"rl": [torch.zeros_like(w) for w in on], "ce": None, "ref_kl": None}
            parts[options["loss"].removesuffix("_loss_fn")] = on
        ref = case.list("logp_ref") if options["loss"] == "ref_kl_loss_fn" else None
        loss, metrics = fn(
            trainer_logprobs=view["logp_current"], inference_logprobs=view["logp_rollout"], ref_logprobs=ref,
            advantages=credit, loss_mask=mask, rl_weights=parts["rl"], ce_weights=parts["ce"],
            ref_kl_weights=parts["ref_kl"], rl_loss_fn=function, rl_scale=scale, ce_scale=scale, ref_kl_scale=scale,
        )  # fmt: skip
        out = {"loss": Result.scalar(loss, "loss")}
        if "is_masked" in metrics:
            shown = metrics["is_masked"].reshape(-1)
            if shown.numel() == case.num_sequences:
                out["is_masked"] = Result(shown, "sequence", "metric", range=(0, 1), agreed=0.0)
        return out

    trust = {"dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "adv_tau": 1.0, "kl_tau": 0.0}
    tokens = {"denominator": "token_mean"}
    pulled = "a squared log-ratio pulls the policy back to the sampler"
    nll = like("policy_loss.cross_entropy", mean="token_mean")
    chosen: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"loss": "default_loss_fn", **trust}, {"conventions": tokens, "variants": {
            "dppo_mask_low": (0.05,), "dppo_mask_high": (0.05,), "adv_tau": (0.5,), "kl_tau": (0.1,)}}),
        ({"loss": "default_loss_fn", **trust, "kl_tau": 0.1}, {"waived": {"clip_geometry": pulled}}),
        ({"loss": "ipo_loss_fn", "ipo_threshold": 0.2, "adv_tau": 1.0, "kl_tau": 0.0}, {"conventions": tokens,
         "waived": {"clip_geometry": "its trust region is symmetric by design"},
         "variants": {"ipo_threshold": (0.05,), "adv_tau": (0.5,), "kl_tau": (0.1,)}}),
        ({"loss": "ce_loss_fn"}, {"definition": nll}),
        ({"loss": "ref_kl_loss_fn"}, {"stops_gradient": True}),
    ]  # fmt: skip
    return [
        Subject("compute_loss", call, options={"weight": 1.0, **options}, combine="sum", role="policy_loss", **facts)
        for options, facts in chosen
    ]


def mismatch(fn: Boundary) -> Subject:
    """Ratio and k3 of trainer against sampler."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        _, ratio, kl = fn(case.flat("logp_current"), case.flat("logp_rollout"))
        return {"ratio": Result(ratio, "token", "statistic"), "mismatch_kl": Result(kl, "token", "kl")}

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        gap = (case.flat("logp_current") - case.flat("logp_rollout")).detach()
        value = torch.tensor([2.718281828459045**g - g - 1 for g in gap.tolist()], dtype=torch.float64)
        return {"mismatch_kl": Result(value, "token", "kl")}

    return Subject("compute_importance_ratio_and_mismatch_kl", call, couples="token", definition=bounded(define))


def scores(fn: Boundary, name: str) -> Subject:
    """Log-probs or entropies from logits that are already shifted."""
    one = "logp" if name == "selective_log_softmax" else "entropy"
    args: dict[str, Any] = {"logits" if one == "logp" else "shifted_logits": lambda c: c.padded("logits")}
    if one == "logp":
        args["index"] = lambda c: c.padded("token_id")
    return bind(
        fn, role=one, name=name, args=args, view={"with_prompt": True}, returns={one: at((), one, level="token")},
        definition=scored(names=(one,)), waived=LOGITS,
    )  # fmt: skip


def shifts(fn: Boundary) -> Subject:
    """Shift left and right again: the value of every token is back at its place."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        back = fn.get("shift_tensor_right")(fn(case.padded("logp_current")))
        if any(kinds[:1] != ("p",) for kinds in case.kinds):
            raise case.cannot("a sequence has no prompt")
        return {"logp": Result(case.from_padded(back), "token", "carried", of="logp_current")}

    return Subject("shift_tensor_left", call, role="packing")


def scored_groups(fn: Boundary, name: str) -> Subject:
    """The credit of the episodes of a group, one group at a time."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        out = torch.zeros(case.num_sequences)
        reward = case.sequence("reward")
        for rows in by_group(case):
            traces = [
                SimpleNamespace(
                    reward=float(reward[i]), num_output_tokens=2, num_total_tokens=3, num_turns=1, is_trainable=True,
                    nodes=[SimpleNamespace(mask=[True], token_ids=[0], advantages=None)], id=i,
                )
                for i in rows
            ]  # fmt: skip
            fn.awaited(fn.made(length_penalty=None), [SimpleNamespace(traces=[t]) for t in traces])
            for i, trace in zip(rows, traces, strict=True):
                out[i] = trace.nodes[0].advantages[0]
        return {"advantage": Result(out, "sequence", "advantage")}

    define = normalised("group", "none") if name == "GRPOAlgorithm" else None
    return Subject(f"{name}.score_group", call, couples="group", role="reward_normalisation", definition=define)


def trainable(episodes: Any) -> list[tuple[Any, Any]]:
    """A stand-in for the filter over traces: the single trace of each episode."""
    return [(episode, episode.traces[0]) for episode in episodes]


LOSS = "src/prime_rl/trainer/rl/loss.py"


def bindings() -> tuple[Binding, ...]:
    """Losses, scores, shifts, credit."""

    def at_loss(name: str, make: Any) -> Binding:
        return Binding(name, (Spec(name, file=LOSS, or_files=("src/prime_rl/trainer/loss.py",)),), make)

    algorithms = {"GRPOAlgorithm": "grpo", "MaxRLAlgorithm": "max_rl"}
    return (
        at_loss("compute_loss", losses),
        at_loss("compute_importance_ratio_and_mismatch_kl", mismatch),
        at_loss("selective_log_softmax", partial(scores, name="selective_log_softmax")),
        at_loss("compute_entropy", partial(scores, name="compute_entropy")),
        at_loss("shift_tensor_left", shifts),
        *[
            Binding(
                name, (Spec(f"{name}.score_group", file=f"src/prime_rl/orchestrator/algo/{file}.py"),),
                partial(scored_groups, name=name), given=lambda: {"iter_trainable_traces": trainable},
            )
            for name, file in algorithms.items()
        ],
    )  # fmt: skip


TARGET = Target("prime_rl", "PrimeIntellect-ai/prime-rl", bindings=bindings())

"""verl: KL, correction for the sampler, log-probs, entropies, statistics and masks."""

from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import average, like, scored
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.findings.alone import Record, Settings
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.target import Binding
from trimtab.sentinel.targets.verl.source import (
    OWN_FORWARD,
    RAY,
    algo,
    correction,
    functional,
    given,
)


def _kl(boundary: Boundary) -> list[Subject]:
    found: list[Subject] = []
    for name, formula in (("kl", "kl.k1"), ("mse", "kl.k2"), ("low_var_kl", "kl.k3"), ("abs", None)):
        ours = {"logp_current": "logp_current", "logp_ref": "logp_ref"}
        define = like(formula) if formula and formula != "kl.k3" else None
        found.append(
            bind(
                boundary,
                role="kl",
                name=f"{boundary.spec.name}",
                options={"kl_penalty": name},
                definition=define,
                args={"logprob": ours["logp_current"], "ref_logprob": ours["logp_ref"]},
                variants={"kl_penalty": tuple({"kl", "mse", "abs"} - {name})},
                impossible={"kl_penalty": ("k4",)},
                waived={
                    "mask_content": "it takes no mask: its callers mask what it returns",
                    "nonfinite_isolation": "it takes no mask: its callers mask what it returns",
                },
            )
        )
    return found


def _kl_in_reward(boundary: Boundary) -> list[Subject]:
    def shaped(case: Case, kl_coef: float, kl_penalty: str) -> Any:
        view: dict[str, Any] = {"with_prompt": False}
        batch = Record(
            response_mask=case.padded("trainable", **view),
            token_level_scores=handed.reward_on_last(case, trained=True),
            old_log_probs=case.padded("logp_old", **view),
            ref_log_prob=case.padded("logp_ref", **view),
            responses=case.padded("token_id", **view),
            attention_mask=case.padded("attention", dtype=torch.long),
        )
        control = Settings(value=kl_coef, update=lambda current_kl, n_steps: None)
        data, metrics = boundary(Settings(batch=batch), control, kl_penalty=kl_penalty)
        return data.batch["token_level_rewards"], metrics.get("actor/reward_kl_penalty", metrics.get("critic/kl"))

    waived = {"nonfinite_isolation": OWN_FORWARD}
    returns = {
        "reward": at(0, "reward"),
        "kl": at(1, "metric", level="scalar", agreed=0.0, reduction="mean", population="sequence"),
    }
    return [
        bind(
            shaped,
            role="kl_in_reward",
            name=boundary.spec.name,
            args={"case": lambda c: c},
            options={"kl_coef": 0.1, "kl_penalty": kind},
            returns=returns,
            waived=waived,
            penalties={"kl_coef": "logp_ref"},
            variants={"kl_coef": (0.5,), "kl_penalty": ("mse",)},
        )
        for kind in ("kl", "low_var_kl")
    ]


def _weights(boundary: Boundary) -> list[Subject]:
    def ratio(case: Case) -> Any:
        return case.padded("logp_old", with_prompt=False) - case.padded("logp_rollout", with_prompt=False)

    found: list[Subject] = []
    for level in ("token", "sequence"):
        reads: dict[str, Any] = {"pair": ("logp_old", "logp_rollout"), "range": (0.0, 2.0)}
        returns = {
            "importance": at(0, "importance", scope=level, **reads),
            "high": at((1, "rollout_is_ratio_fraction_high"), "metric", range=(0.0, 1.0), agreed=0.0),
            "low": at((1, "rollout_is_ratio_fraction_low"), "metric", range=(0.0, 1.0), agreed=0.0),
            "mean": at((1, "rollout_is_mean"), "metric", agreed=1.0),
        }
        define = like("importance.truncated", level=level, band=lambda o: (0.0, o["rollout_is_threshold"]))
        found.append(
            bind(
                boundary,
                role="importance",
                args={"log_ratio": ratio, "response_mask": "trainable"},
                returns=returns,
                options={"rollout_is": level, "rollout_is_threshold": 2.0},
                definition=define,
                variants={"rollout_is_threshold": (1.1,)},
                waived={"nonfinite_isolation": OWN_FORWARD},
                impossible={"rollout_is": ("turn",), "rollout_is_threshold": (0.0, -1.0)},
            )
        )
    return found


def _rejection(boundary: Boundary) -> list[Subject]:
    def ratio(case: Case) -> Any:
        return case.padded("logp_old", with_prompt=False) - case.padded("logp_rollout", with_prompt=False)

    bands = {
        "token_k1": ("0.5_2.0", "token"),
        "seq_mean_k1": ("0.8_1.25", "sequence"),
        "seq_sum_k1": ("0.5_2.0", "sequence"),
        "seq_max_k2": ("0.1", "sequence"),
        "token_k3": ("0.1", "token"),
    }
    return [
        bind(
            boundary,
            role="keep",
            args={"log_ratio": ratio, "response_mask": "trainable"},
            options={"rollout_rs": kind, "rollout_rs_threshold": threshold},
            returns={"keep": at(0, "keep", scope=scope)},
            waived={"nonfinite_isolation": OWN_FORWARD},
            variants={"rollout_rs_threshold": ("1.001" if "k1" in kind else "1e-6",)},
            impossible={"rollout_rs": ("token_k4",), "rollout_rs_threshold": ("-1.0",)},
        )
        for kind, (threshold, scope) in bands.items()
    ]


def _logp(boundary: Boundary) -> Subject:
    return bind(
        boundary,
        role="logp",
        definition=scored(names=("logp",)),
        returns={"logp": at((), "logp", level="token")},
        args={"logits": "logits", "labels": "token_id"},
    )


def _entropy(boundary: Boundary) -> Subject:
    if "chunking" in boundary.spec.name:
        return bind(
            boundary,
            role="entropy",
            layout="packed",
            args={"logits": "logits"},
            options={"chunk_size": 2},
            definition=scored(names=("entropy",)),
        )
    return bind(boundary, role="entropy", args={"logits": "logits"}, definition=scored(names=("entropy",)))


def _masked_mean(boundary: Boundary) -> Subject:
    # Callers average trained values (losses, log-probs), so the field must have a gradient.
    returns = {"mean": at((), "statistic", level="scalar", of="token_loss", reduction="mean")}
    define = average("token_mean", result="mean")
    return bind(
        boundary,
        role="statistic",
        args={"values": "token_loss", "mask": "trainable"},
        returns=returns,
        definition=define,
    )


def _whiten(boundary: Boundary) -> Subject:
    # Estimators whiten under no_grad, so its gradient is never used.
    return bind(
        torch.no_grad()(boundary),
        role="whitening",
        name=boundary.spec.name,
        args={"values": "advantage", "mask": "trainable"},
        options={"shift_mean": True},
        variants={"shift_mean": (False,)},
    )


def _response_mask(boundary: Boundary) -> Subject:
    ids = handed.named(boundary, "response_id", "response_ids")
    return bind(boundary, role="response_mask", args={ids: handed.ending_ids, "eos_token": lambda c: list(c.eos_ids)})


BINDINGS: tuple[Binding, ...] = (
    algo("kl_penalty", _kl),
    Binding("apply_kl_penalty", (Spec("apply_kl_penalty", file=RAY),), _kl_in_reward, given),
    correction("compute_rollout_correction_weights", _weights),
    correction("compute_rollout_rejection_mask", _rejection),
    functional("logprobs_from_logits_v2", _logp),
    functional("entropy_from_logits", _entropy),
    functional("entropy_from_logits_with_chunking", _entropy),
    functional("masked_mean", _masked_mean),
    functional("masked_whiten", _whiten),
    functional("get_response_mask", _response_mask, "get_eos_mask"),
)

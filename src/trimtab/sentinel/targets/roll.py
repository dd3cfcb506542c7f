"""ROLL (alibaba/ROLL): `roll/utils/functionals.py` holds most of its signal: aggregation, KL, rewards, returns."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import average, like, scored
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.targets.stand_in import bounded, contiguous_groups, normalised
from trimtab.sentinel.targets.target import Binding, Target

LOGITS = {"nonfinite_isolation": "logits that are not finite are a broken model, not the content of a masked cell"}
MODES = {
    "token-mean": "token_mean", "seq-mean-token-sum": "sequence_mean_token_sum",
    "seq-mean-token-mean": "sequence_mean_token_mean",
}  # fmt: skip


def aggregated(fn: Boundary) -> list[Subject]:
    """The loss of a micro-batch, with the counts that the worker takes over the whole batch."""
    taken = inspect.signature(fn.function).parameters

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        whole = case.whole if {"batch_num_tokens", "global_valid_samples"} & set(taken) else case
        filled = int((whole.segments.token_counts > 0).sum())
        if not filled:
            raise case.cannot("nothing trains in the whole batch")
        counts = {"batch_num_tokens": whole.segments.num_tokens, "global_valid_samples": filled}
        told = {name: value for name, value in counts.items() if name in taken}
        mask = case.padded("trainable", with_prompt=False)
        return {
            "loss": Result.scalar(fn(case.padded("token_loss", with_prompt=False), mask, **options, **told), "loss")
        }

    combine = "sum" if "batch_num_tokens" in taken else None
    return [
        Subject(
            "agg_loss", call, role="aggregation", options={"loss_agg_mode": mode}, definition=average(name),
            combine=combine, variants={"loss_agg_mode": tuple(m for m in MODES if m != mode)},
            impossible={"loss_agg_mode": ("token_mean",)}, conventions={"denominator": name},
        )
        for mode, name in MODES.items()
    ]  # fmt: skip


def masked_mean(fn: Boundary) -> Subject:
    """A mean over a mask."""
    return bind(
        fn, role="aggregation", name="masked_mean", args={"tensor": "token_loss"}, definition=average("token_mean"),
        conventions={"denominator": "token_mean"},
    )  # fmt: skip


def approx_kl(fn: Boundary) -> list[Subject]:
    """Differences, their squares, k3 within 10."""
    formulas = {"kl": like("kl.k1"), "mse": like("kl.k2"), "k3": None}
    return [
        bind(
            fn, role="kl", name="compute_approx_kl", options={"kl_penalty": kind}, impossible={"kl_penalty": ("k9",)},
            args={"log_probs": "logp_current", "log_probs_base": "logp_ref", "action_mask": "trainable"},
            definition=bounded(definition) if definition else None,
            variants={"kl_penalty": tuple(k for k in formulas if k != kind)},
        )
        for kind, definition in formulas.items()
    ]  # fmt: skip


def scores(fn: Boundary, name: str) -> Subject:
    """Log-probs or entropies from logits that are already shifted."""
    one = "logp" if name == "log_probs_from_logits" else "entropy"
    args: dict[str, Any] = {"logits": lambda c: c.padded("logits")}
    if one == "logp":
        args["labels"] = lambda c: c.padded("token_id")
    return bind(
        fn, role=one, name=name, args=args, view={"with_prompt": True}, returns={one: at((), one, level="token")},
        definition=scored(names=(one,)), waived=LOGITS,
    )  # fmt: skip


def rewards(fn: Boundary) -> list[Subject]:
    """Rewards minus a mean, over a spread, of group or batch. Groups have equal size and are found by position."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        sizes = {len(rows) for rows in contiguous_groups(case)}
        if len(sizes) != 1 or sizes == {1}:
            raise case.cannot("its groups must have the same size, two or more")
        found = fn(case.sequence("reward"), n_sample=sizes.pop(), **options)
        return {"advantage": Result(found, "sequence", "advantage")}

    pairs = (("group", "group"), ("group", None), ("batch", "batch"), ("group", "batch"), ("batch", "group"))
    return [
        Subject(
            "reward_norm", call, role="reward_normalisation", options={"norm_mean_type": mean, "norm_std_type": std},
            couples="batch" if "batch" in (mean, std) else "group",
            definition=normalised(mean, std or "none", ddof=1, eps=1e-6),
            variants={} if std == "group" else {"norm_mean_type": (None,)},
        )
        for mean, std in pairs
    ]  # fmt: skip


def paid(case: Case) -> Any:
    """Token rewards times the mask, as compute_advantage passes them on."""
    mask = case.padded("trainable", with_prompt=False, dtype=torch.float64)
    return case.padded("token_reward", with_prompt=False) * mask


MASKED = {"nonfinite_isolation": "rewards are made from finite scores and log-probs of the model's own"}


def returns(fn: Boundary) -> Subject:
    """Rewards, masked by the caller, summed from the right."""
    return bind(
        fn, role="returns", name="compute_reinforce_return", options={"gamma": 1.0, "lambd": 1.0},
        args={"token_level_rewards": paid}, variants={"gamma": (0.5,)}, waived=MASKED,
        returns={"advantage": at(0, "return", level="token")},
    )  # fmt: skip


def gae(fn: Boundary) -> Subject:
    """GAE over every position of a row: rewards are masked by the caller, values are not."""
    return bind(
        fn, role="returns", name="compute_gae_advantage_return", options={"gamma": 1.0, "lambd": 0.95},
        args={"token_level_rewards": paid, "values": "value_old"}, waived=MASKED,
        variants={"gamma": (0.5,), "lambd": (0.5,)},
        returns={"advantage": at(0, "advantage", level="token"), "returns": at(1, "return", level="token")},
    )  # fmt: skip


def whiten(fn: Boundary) -> Subject:
    """Advantages to mean 0 and spread 1 over trainable tokens."""
    masked = "compute_advantage multiplies by the mask afterwards"
    return bind(
        fn, role="whitening", name="masked_whiten", args={"values": "advantage"}, options={"shift_mean": True},
        returns={"advantage": at((), "advantage", level="token")}, variants={"shift_mean": (False,)},
        waived={"mask_content": masked},
    )  # fmt: skip


def eos_mask(fn: Boundary) -> Subject:
    """The response up to and including its first end token. It knows only one end token."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        first, *others = case.eos_ids
        if others:
            raise case.cannot("it knows one end token")
        ids, there = (case.padded(n, with_prompt=False) for n in ("token_id", "attention"))
        if not ids.numel() or any("o" in kinds or "a" not in kinds for kinds in case.kinds):
            raise case.cannot("it gets answers without tool output")
        last = there.sum(1).long() - 1
        full = last == ids.shape[1] - 1
        if not bool((full | case.sequence("ended")).all()):
            raise case.cannot("an answer that did not end fills its row")
        ids = ids.clone()
        ids[torch.arange(len(ids)), last] = first
        return {"mask": Result.cell(case, fn(ids, eos_token=first), with_prompt=False)}

    return Subject("get_eos_mask", call, role="response_mask")


def _file(name: str) -> tuple[Spec, ...]:
    return (Spec(name, file="roll/utils/functionals.py"),)


def bindings() -> tuple[Binding, ...]:
    """The functions of functionals.py."""
    makes: dict[str, Any] = {
        "agg_loss": aggregated, "masked_mean": masked_mean, "compute_approx_kl": approx_kl, "reward_norm": rewards,
        "compute_reinforce_return": returns, "compute_gae_advantage_return": gae, "masked_whiten": whiten,
        "get_eos_mask": eos_mask,
    }  # fmt: skip
    makes |= {n: partial(scores, name=n) for n in ("log_probs_from_logits", "entropy_from_logits")}
    return tuple(Binding(name, _file(name), make) for name, make in makes.items())


TARGET = Target("roll", "alibaba/ROLL", bindings=bindings())

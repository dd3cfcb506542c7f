"""Functions of slime on one token or one sequence: KL, sequence masking, surrogates, returns. miles has them too."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets.stand_in import Settings, answers, bounded
from trimtab.sentinel.targets.target import CouldNotBind

EPS = {"eps_clip": 0.2, "eps_clip_high": 0.28}


def band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["eps_clip"], 1 + options["eps_clip_high"]


def log_ratio(case: Case) -> Tensor:
    """Old minus current, as the trainer passes it: stored values have no gradient."""
    return case.flat("logp_old").detach() - case.flat("logp_current")


def fixed_advantage(case: Case) -> Tensor:
    return case.flat("advantage").detach()


def approx_kl(fn: Boundary) -> list[Subject]:
    """k1, k2, k3 between two log-probs, one token at a time."""
    kinds = {"k1": "kl.k1", "k2": "kl.k2", "k3": "kl.k3"}
    return [
        bind(
            fn, role="kl", layout="flat", name="compute_approx_kl", args={"log_probs_base": "logp_ref"},
            options={"kl_loss_type": kind}, definition=bounded(like(formula)), impossible={"kl_loss_type": ("k9",)},
            variants={"kl_loss_type": tuple(k for k in kinds if k != kind)},
        )
        for kind, formula in kinds.items()
    ]  # fmt: skip


def opsm(fn: Boundary) -> Subject:
    """Off-policy sequence masking: a factor on the loss, which is masked again afterwards."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        view = partial(case.list, with_prompt=False)
        keep, rejected = fn(
            args=Settings(**options), full_log_probs=view("logp_current"), full_old_log_probs=view("logp_old"),
            advantages=view("advantage"), loss_masks=view("trainable"),
        )  # fmt: skip
        metric = Result.scalar(rejected, "metric", reduction="sum", agreed=0.0)
        return {"keep": answers(case, keep, "keep", scope="sequence"), "opsm_clipfrac": metric}

    return Subject("compute_opsm_mask", call, options={"opsm_delta": 0.1}, role="keep", variants={"opsm_delta": (0.6,)})


def gspo_kl(fn: Boundary) -> Subject:
    """The mean log-ratio of each sequence, at each of its tokens."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        now, old, mask = (case.list(n, with_prompt=False) for n in ("logp_current", "logp_old", "trainable"))
        old = [one.detach() for one in old]
        values = fn(full_log_probs=now, full_old_log_probs=old, local_log_probs=now, loss_masks=mask)
        return {"kl": answers(case, values, "kl")}

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        gap, owner = (case.flat("logp_old") - case.flat("logp_current")).detach(), case.segments.sequence_of_token
        means = torch.stack([gap[owner == i].mean() for i in owner]) if owner.numel() else gap
        return {"kl": Result(means, "token", "kl")}

    return Subject("compute_gspo_kl", call, definition=define, role="kl")


def policy_term(fn: Boundary, dtype: torch.dtype = torch.float64) -> list[Subject]:
    """The clipped surrogate per token, with and without a dual clip."""
    taken = inspect.signature(fn.function).parameters
    if "ppo_kl" in taken:
        args: dict[str, Any] = {"ppo_kl": lambda c: log_ratio(c).to(dtype)}
    elif "old_logprobs" in taken:
        args = {"log_probs": "logp_current", "old_logprobs": lambda c: c.flat("logp_old").detach()}
    else:
        raise CouldNotBind(f"compute_policy_loss takes {', '.join(taken)}")
    args["advantages"] = lambda c: fixed_advantage(c).to(dtype)
    returns = {
        "term": at(0, "term"),
        "clipfrac": at(1, "metric", level="token", range=(0, 1), of=partial(clipped_flags, options=EPS)),
    }
    plain = bind(
        fn, role="policy_loss", layout="flat", name="compute_policy_loss", args=args, options=EPS, returns=returns,
        definition=bounded(like("policy_loss.clipped", result="term", band=band)), couples="token",
        variants={"eps_clip": (0.5,), "eps_clip_high": (0.6,)},
    )  # fmt: skip
    if "eps_clip_c" not in taken:
        return [plain]
    capped = like("policy_loss.dual_clipped", result="term", band=band, cap=lambda o: o["eps_clip_c"])
    dual = bind(
        fn, role="policy_loss", layout="flat", name="compute_policy_loss", args=args, couples="token", returns=returns,
        options={**EPS, "eps_clip_c": 3.0}, definition=bounded(capped), variants={"eps_clip_c": (1.5, None)},
        impossible={"eps_clip_c": (0.5,)},
    )  # fmt: skip
    return [plain, dual]


def clipped_flags(case: Case, options: Mapping[str, Any]) -> Tensor:
    """Tokens at which the clipped side of the surrogate counts, as a plain loop."""
    low, high = band(options)
    flags: list[float] = []
    for gap, advantage in zip(
        (case.flat("logp_current") - case.flat("logp_old")).exp().tolist(), case.flat("advantage").tolist(), strict=True
    ):
        flags.append(float(-min(max(gap, low), high) * advantage > -gap * advantage))
    return torch.tensor(flags, dtype=torch.float64)


def cispo_term(fn: Boundary) -> Subject:
    """The clipped, detached ratio times the score."""
    args: dict[str, Any] = {
        "ppo_kl": log_ratio, "log_probs": "logp_current", "advantages": fixed_advantage,
    }  # fmt: skip
    return bind(
        fn, role="policy_loss", layout="flat", name="compute_cispo_loss", args=args, options=EPS, couples="token",
        returns={"term": at(0, "term"), "clipfrac": at(1, "metric", level="token", range=(0, 1), agreed=0.0)},
        definition=bounded(like("policy_loss.clipped_importance", result="term", band=band)), stops_gradient=True,
        variants={"eps_clip": (0.5,), "eps_clip_high": (0.6,)},
    )  # fmt: skip


def grpo_returns(fn: Boundary) -> Subject:
    """The sequence's normalised reward at each of its tokens."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        values = fn(case.sequence("outcome"), case.list("kl", with_prompt=False))
        return {"advantage": answers(case, values, "advantage")}

    return Subject("get_grpo_returns", call, definition=like("advantage.broadcast"), role="group_advantage")


def togo(fn: Boundary) -> Subject:
    """REINFORCE++: reward on the last trainable token minus the KL penalty, summed from the right."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        if any("a" not in kinds for kinds in case.kinds):
            raise case.cannot("it refuses a sequence that is fully masked")
        values = fn(
            rewards=case.sequence("outcome"), kl=case.list("kl", with_prompt=False),
            loss_masks=case.list("trainable", with_prompt=False), response_lengths=case.response_lengths,
            total_lengths=case.lengths, **options,
        )  # fmt: skip
        return {"return": answers(case, values, "return")}

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        kl, out = case.flat("kl").detach().tolist(), [0.0] * case.segments.num_tokens
        for i in range(case.num_sequences):
            running = float(case.sequence("outcome")[i])
            for t in reversed(case.token_places([i]).tolist()):
                running = out[t] = running - options["kl_coef"] * kl[t]
        return {"return": Result(torch.tensor(out, dtype=torch.float64), "token", "return")}

    return Subject(
        "get_reinforce_plus_plus_returns", call, options={"kl_coef": 0.1, "gamma": 1.0}, definition=define,
        role="returns", penalties={"kl_coef": "kl"}, variants={"kl_coef": (0.2,), "gamma": (0.5,)},
    )  # fmt: skip


def baseline_advantages(fn: Boundary) -> Subject:
    """REINFORCE++ with a baseline: the reward of the sequence minus the KL penalty of each token."""

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        kl, mask = case.list("kl", with_prompt=False), case.list("trainable", with_prompt=False)
        values = fn(rewards=case.sequence("outcome"), kl=kl, loss_masks=mask, **options)
        return {"advantage": answers(case, values, "advantage")}

    def define(case: Case, options: Mapping[str, Any]) -> Out:
        values = case.flat("outcome") - options["kl_coef"] * case.flat("kl").detach()
        return {"advantage": Result(values, "token", "advantage")}

    return Subject(
        "get_reinforce_plus_plus_baseline_advantages", call, options={"kl_coef": 0.1}, definition=define,
        role="group_advantage", penalties={"kl_coef": "kl"}, variants={"kl_coef": (0.3,)},
    )  # fmt: skip


def gae(fn: Boundary) -> Subject:
    """Generalised advantage estimation. The one of slime gets no mask, the one of miles gets one."""
    taken = inspect.signature(fn.function).parameters

    def call(case: Case, options: Mapping[str, Any], **more: Any) -> Out:
        values, rewards = (case.list(n, with_prompt=False) for n in ("value_old", "token_reward"))
        if "terminal_rewards" in taken:
            more |= {"terminal_rewards": case.sequence("outcome").tolist()}
        if "loss_masks" in taken:
            mask = case.list("trainable", with_prompt=False)
            more |= {"loss_masks": mask, "qkv_format": "thd", "max_seq_lens": None}
        advantages, returns = fn(
            total_lengths=case.lengths, response_lengths=case.response_lengths, values_list=values,
            rewards_list=rewards, **options, **more,
        )  # fmt: skip
        return {"advantage": answers(case, advantages, "advantage"), "returns": answers(case, returns, "return")}

    return Subject(
        "get_advantages_and_returns_batch", call, options={"gamma": 1.0, "lambd": 0.95}, role="returns",
        variants={"gamma": (0.5,), "lambd": (0.5,)}, twin=partial(call, chunked=False) if "chunked" in taken else None,
    )  # fmt: skip

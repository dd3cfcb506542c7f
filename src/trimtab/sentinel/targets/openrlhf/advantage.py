"""OpenRLHF: KL, rewards, returns, advantages and penalties on length."""

from collections.abc import Mapping
from typing import Any, Literal

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import at, bind
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Call, Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.openrlhf.source import (
    MAKER,
    NEXT,
    OWN,
    PENALTY,
    UTILS,
    found_in,
)
from trimtab.sentinel.targets.stand_in import Settings, bounded, contiguous_groups
from trimtab.sentinel.targets.target import Binding


def _kl(boundary: Boundary) -> list[Subject]:
    no_mask = "it takes no mask: its readers mask what it returns"
    waived = {"mask_content": no_mask, "nonfinite_isolation": no_mask}
    args = {"log_probs": "logp_current", "log_probs_base": "logp_ref"}
    if "use_kl_estimator_k3" in handed.parameters(boundary):
        return [
            bind(
                boundary,
                role="kl",
                args=args,
                options={"use_kl_estimator_k3": third},
                waived=waived,
                half=True,
                definition=bounded(like("kl.k3" if third else "kl.k1"), "logp_current", "logp_ref"),
                variants={"use_kl_estimator_k3": (not third,)},
            )
            for third in (True, False)
        ]
    small = lambda kind: _within(like(f"kl.{kind}"), 3.0)  # noqa: E731  beyond, it bounds the estimate at 10
    return [
        bind(
            boundary,
            role="kl",
            args=args,
            options={"kl_estimator": kind},
            waived=waived,
            half=True,
            definition=small(kind),
            variants={"kl_estimator": tuple({"k1", "k2", "k3"} - {kind})},
            impossible={"kl_estimator": ("k4",)},
        )
        for kind in ("k1", "k2", "k3")
    ]


def _within(define: Call, reach: float) -> Call:
    def defined(case: Case, options: Mapping[str, Any]) -> Out:
        gap = (case.flat("logp_current") - case.flat("logp_ref")).abs()
        if gap.numel() and float(gap.max()) > reach:
            raise case.cannot("the estimate is bounded there")
        return define(case, options)

    return defined


def _reward(boundary: Boundary) -> Subject:
    def shaped(case: Case, kl_coef: float) -> Any:
        if any("a" not in row or row[0] != "p" for row in case.kinds):
            raise case.cannot("a rollout must have a prompt and an answer")
        kl = case.padded("kl", **NEXT) * case.padded("trainable", **NEXT)  # the maker masks it
        return boundary(case.sequence("reward"), kl_coef, kl, action_mask=case.padded("trainable", **NEXT))

    return bind(
        shaped,
        role="kl_in_reward",
        name=boundary.spec.name,
        args={"case": lambda c: c},
        view={"with_prompt": True, **NEXT},
        options={"kl_coef": 0.1},
        penalties={"kl_coef": "kl"},
        variants={"kl_coef": (0.5,)},
        waived=OWN,
        returns={"reward": at((), "reward", level="token")},
    )


def _returns(boundary: Boundary) -> Subject:
    critic = "values" in handed.parameters(boundary)

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        reward = handed.reward_on_last(case, trained=True, with_prompt=True, **NEXT)
        mask = case.padded("trainable", **NEXT)
        made = boundary.made()
        if not critic:
            found = boundary(made, reward.float(), mask.float(), **chosen)
            return {"returns": Result(case.from_padded(found, **NEXT), "token", "return")}
        both = boundary(made, case.padded("value_old", **NEXT), reward, mask, **chosen)
        return {
            "advantage": Result(case.from_padded(both[0], **NEXT), "token", "advantage"),
            "returns": Result(case.from_padded(both[1], **NEXT), "token", "return"),
        }

    options = {"gamma": 0.9, "lambd": 0.8} if critic else {"gamma": 0.9}
    gae = handed.simply(like("advantage.gae", gamma=lambda o: o["gamma"], lam=lambda o: o["lambd"]))
    togo = handed.simply(like("advantage.reward_to_go", gamma=lambda o: o["gamma"], result="returns"))
    return Subject(
        boundary.spec.name,
        call,
        options=options,
        boundary=boundary,
        definition=gae if critic else togo,
        variants=dict.fromkeys(options, (1.0,)),
        waived=OWN,
    )


def _maker(boundary: Boundary, estimator: str, samples: int, chosen: Mapping[str, Any]) -> Any:
    """An experience maker in the state after its constructor. Old versions have flat options, new ones sections."""
    advantage = Settings(estimator=estimator, gamma=1.0, lambd=0.9, no_std_norm=False)
    flat = {"n_samples_per_prompt": samples, "advantage_estimator": estimator, "gamma": 1.0, "lambd": 0.9}
    sections = {"rollout": Settings(n_samples_per_prompt=samples), "algo": Settings(advantage=advantage)}
    args = Settings(**flat, **sections, reward=Settings(), data=Settings())
    control = Settings(value=chosen["kl_coef"])
    return boundary.made(strategy=Settings(args=args), kl_ctl=control, advantage_estimator=estimator, args=args)


def _shaped(boundary: Boundary, estimator: str, couples: Literal["group", "batch"], **facts: Any) -> Subject:
    """One estimator, from experiences to advantages."""

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        groups = contiguous_groups(case)
        if len({len(g) for g in groups}) != 1 or any("a" not in row or row[0] != "p" for row in case.kinds):
            raise case.cannot("prompts must have the same number of samples, and every sample a prompt and an answer")
        if estimator != "gae" and len(groups[0]) < 2:
            raise case.cannot("the command line refuses one sample per prompt for this estimator")
        mask = case.padded("trainable", **NEXT)
        one = Settings(
            rewards=case.sequence("reward"),
            index=list(range(case.num_sequences)),
            kl=case.padded("kl", **NEXT) * mask,
            action_mask=mask,
            values=case.padded("value_old", **NEXT),
            info={},
            truncated=~case.sequence("ended"),
            response_length=mask.sum(-1),
        )
        maker = _maker(boundary, estimator, len(groups[0]), chosen)
        done = boundary(maker, [one])
        got = done[0] if isinstance(done, list) else one
        return {"advantage": Result(case.from_padded(got.advantages, **NEXT), "token", "advantage")}

    return Subject(
        f"compute_advantages_and_returns[{estimator}]",
        call,
        options={"kl_coef": 0.0},
        boundary=boundary,
        couples=couples,
        waived=OWN,
        **facts,
    )


def _shaping(boundary: Boundary) -> list[Subject]:
    """The whole path: penalties, baseline, KL, returns and normalisation, over a batch of experiences."""

    over_std = handed.normalised(mean="group", std="group", ddof=1, eps=1e-9)
    mean_only = handed.normalised(mean="group", std="none", ddof=1, eps=0.0)
    return [
        _shaped(
            boundary,
            "rloo",
            "group",
            definition=handed.simply(like("normalize.leave_one_out", tokens=True, result="advantage")),
        ),
        _shaped(boundary, "dr_grpo", "group", definition=mean_only),
        _shaped(boundary, "group_norm", "group", definition=over_std),
        _shaped(boundary, "reinforce_baseline", "batch"),
        _shaped(boundary, "gae", "batch"),
    ]


def _overlong(boundary: Boundary) -> Subject:
    def shaped(case: Case, **chosen: Any) -> Any:
        one = Settings(rewards=case.sequence("reward").clone(), response_length=torch.tensor(case.response_lengths))
        boundary([one], **chosen)
        return one.rewards

    define = like(
        "reward.soft_overlong",
        max_length=lambda o: float(o["max_new_tokens"]),
        buffer=lambda o: float(o["overlong_buffer_len"]),
        factor=lambda o: o["overlong_penalty_factor"],
    )

    def defined(case: Case, options: Mapping[str, Any]) -> Out:
        lengths = torch.tensor([float(n) for n in case.response_lengths], dtype=torch.float64)
        return define(case.with_sequences(length=lengths), options)

    return bind(
        shaped,
        name=boundary.spec.name,
        args={"case": lambda c: c},
        definition=defined,
        options={"max_new_tokens": 4, "overlong_buffer_len": 2, "overlong_penalty_factor": 1.0},
        returns={"reward": at((), "reward", level="sequence")},
        variants={"max_new_tokens": (3,), "overlong_buffer_len": (3,), "overlong_penalty_factor": (0.5,)},
        waived={"credit_over_trainable": "the length counts everything after the prompt"},
    )


def _stop_properly(boundary: Boundary) -> Subject:
    def shaped(case: Case, stop_properly_penalty_coef: float) -> Any:
        one = Settings(rewards=case.sequence("reward").clone(), truncated=~case.sequence("ended"))
        boundary([one], stop_properly_penalty_coef)
        return one.rewards

    return bind(
        shaped,
        name=boundary.spec.name,
        args={"case": lambda c: c},
        options={"stop_properly_penalty_coef": 0.25},
        definition=like("reward.not_ended_scale", factor=lambda o: o["stop_properly_penalty_coef"]),
        returns={"reward": at((), "reward", level="sequence")},
        variants={"stop_properly_penalty_coef": (0.5,)},
        impossible={"stop_properly_penalty_coef": (2.0,)},
    )


BINDINGS: tuple[Binding, ...] = (
    found_in(UTILS, "compute_approx_kl", _kl),
    found_in(UTILS, "compute_reward", _reward),
    found_in(MAKER, "RemoteExperienceMaker.get_advantages_and_returns", _returns),
    found_in(MAKER, "RemoteExperienceMaker.get_cumulative_returns", _returns),
    found_in(MAKER, "RemoteExperienceMaker.compute_advantages_and_returns", _shaping),
    found_in(PENALTY, "apply_overlong_penalty", _overlong),
    found_in(PENALTY, "apply_stop_properly_penalty", _stop_properly),
)

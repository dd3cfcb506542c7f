"""SkyRL: advantage estimators, on the mask of the whole answer."""

from collections.abc import Mapping
from typing import Any

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.skyrl.source import (
    LEFT,
    OWN,
    ppo,
    single,
)
from trimtab.sentinel.targets.target import Binding


def estimator(boundary: Boundary, options: Mapping[str, Any], **facts: Any) -> Subject:
    """An advantage estimator, with the mask of the whole answer that the trainer passes."""
    own = handed.parameters(boundary)

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        reward = handed.reward_on_last(case, **LEFT).float()
        inputs: dict[str, Any] = {"token_level_rewards": reward, "response_mask": single(case, "response")}
        if "index" in own:
            inputs["index"] = handed.group_names(case)
        if "values" in own:
            inputs["values"] = single(case, "value_old")
        advantages, returns = boundary(**inputs, **chosen)
        # The loss mask removes values at tool output, so only padding has to be 0.
        facts_of = {"advantage": (advantages, "advantage"), "returns": (returns, "return")}
        return {n: Result(case.from_padded(v, **LEFT), "token", kind) for n, (v, kind) in facts_of.items()}  # type: ignore[arg-type]

    facts.setdefault("couples", "group")
    return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, **facts)


def _grpo(boundary: Boundary) -> list[Subject]:
    found: list[Subject] = []
    for by_std in (True, False):
        define = handed.normalised(
            mean="group", std="group" if by_std else "none", ddof=1, eps=1e-6, lone_over=1 + 1e-6 if by_std else 1.0
        )
        variants = {"grpo_norm_by_std": (not by_std,)}
        found.append(estimator(boundary, {"grpo_norm_by_std": by_std}, definition=define, variants=variants))
    return found


def _rloo(boundary: Boundary) -> Subject:
    return estimator(
        boundary, {}, definition=handed.simply(like("normalize.leave_one_out", tokens=True, result="advantage"))
    )


def _maxrl(boundary: Boundary) -> Subject:
    waived = {"degenerate_bounded": "divides by the group's mean reward: rewards are 0 or 1, as in the paper"}
    return estimator(boundary, {}, waived=waived)


def _reinforce(boundary: Boundary) -> Subject:
    return estimator(boundary, {"gamma": 0.9}, couples="batch", variants={"gamma": (1.0,)})


def _gae(boundary: Boundary) -> Subject:
    options, variants = {"gamma": 0.9, "lambd": 0.8}, {"gamma": (1.0,), "lambd": (1.0,)}
    return estimator(boundary, options, couples="batch", variants=variants, waived=OWN)


BINDINGS: tuple[Binding, ...] = (
    ppo("compute_grpo_outcome_advantage", _grpo),
    ppo("compute_rloo_outcome_advantage", _rloo),
    ppo("compute_maxrl_advantage", _maxrl),
    ppo("compute_reinforce_plus_plus_outcome_advantage", _reinforce),
    ppo("compute_gae_advantage_return", _gae),
)

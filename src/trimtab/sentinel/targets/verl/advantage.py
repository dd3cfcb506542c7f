"""verl: advantage estimators, on token rewards that are 0 except on the last trainable token."""

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.like import like
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.findings.alone import Settings
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.target import Binding
from trimtab.sentinel.targets.verl.source import (
    LONE,
    OPTIMAL,
    OWN,
    OWN_FORWARD,
    algo,
)


def estimator(
    boundary: Boundary, options: Mapping[str, Any], *, needs: Callable[[Case], Case] = lambda case: case, **facts: Any
) -> Subject:
    """An advantage estimator on token rewards; its settings are keywords of it, or fields of its config."""
    own, single = handed.parameters(boundary), "grpo_vectorized" in boundary.spec.name  # its statistics are float32

    def estimate(case: Case, chosen: Mapping[str, Any]) -> Any:
        mask, reward = case.padded("trainable", with_prompt=False), handed.reward_on_last(case)
        if single:
            mask, reward = mask.float(), reward.float()
        inputs: dict[str, Any] = {"token_level_rewards": reward}
        inputs[handed.named(boundary, "response_mask", "eos_mask")] = mask
        if "index" in own:
            inputs["index"] = handed.group_names(case)
        if "values" in own:
            inputs["values"] = case.padded("value_old", with_prompt=False)
        if "old_log_probs" in own:
            inputs["old_log_probs"] = case.padded("logp_old", with_prompt=False).to(reward.dtype)
        if "sum_pi_squared" in own:
            inputs["sum_pi_squared"] = case.padded("entropy", with_prompt=False).to(reward.dtype) / 4
        if "reward_baselines" in own:
            inputs["reward_baselines"] = case.sequence("outcome")
        direct = {n: v for n, v in chosen.items() if n in own}
        return boundary(**inputs, **direct, **({"config": Settings(**chosen)} if "config" in own else {}))

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        advantages, returns = estimate(needs(case), chosen)
        both = {"advantage": Result.token(case, advantages, "advantage", with_prompt=False)}
        return both | {"returns": Result.token(case, returns, "return", with_prompt=False)}

    facts.setdefault("couples", "group")
    return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, **facts)


def _grpo(boundary: Boundary) -> list[Subject]:
    found: list[Subject] = []
    for by_std in (True, False):
        define = handed.normalised(
            mean="group", std="group" if by_std else "none", ddof=1, eps=1e-6, lone_over=LONE if by_std else 1.0
        )
        variants = {"norm_adv_by_std_in_grpo": (not by_std,)}
        found.append(estimator(boundary, {"norm_adv_by_std_in_grpo": by_std}, definition=define, variants=variants))
    return found


def _leave_one_out(boundary: Boundary) -> Subject:
    loop = "vectorized" not in boundary.spec.name
    define = handed.simply(like("normalize.leave_one_out", tokens=True, result="advantage"))
    return estimator(boundary, {}, definition=handed.lone_keeps_reward(define) if loop else define)


def _passk(boundary: Boundary) -> Subject:
    options = {"norm_adv_by_std_in_grpo": True}
    return estimator(boundary, options, variants={"norm_adv_by_std_in_grpo": (False,)}, needs=handed.no_lone)


def _plain_estimator(**facts: Any) -> Any:
    options = facts.pop("options", {})
    return lambda boundary: estimator(boundary, options, **facts)


def _baseline_whitened(boundary: Boundary) -> Subject:
    centred = handed.normalised(mean="group", std="none", ddof=1, eps=0.0, lone_over=1.0)
    return estimator(boundary, {}, couples="batch", definition=handed.whitened(centred, eps=1e-8, counted=1e-8))


def _reinforce_whitened(boundary: Boundary) -> Subject:
    togo = handed.simply(like("advantage.reward_to_go", gamma=lambda o: o["gamma"]))
    define = handed.whitened(togo, eps=1e-8, counted=1e-8)
    return estimator(boundary, {"gamma": 0.9}, couples="batch", definition=define, variants={"gamma": (1.0,)})


def _gae(boundary: Boundary) -> Subject:
    gae = handed.simply(like("advantage.gae", gamma=lambda o: o["gamma"], lam=lambda o: o["lam"]))
    return estimator(
        boundary,
        {"gamma": 0.9, "lam": 0.8},
        couples="batch",
        definition=handed.whitened(gae, eps=1e-8, counted=1e-8),
        variants={"gamma": (1.0,), "lam": (1.0,)},
        waived={"nonfinite_isolation": OWN_FORWARD.replace("log-probs", "values")},
    )


BINDINGS: tuple[Binding, ...] = (
    algo("compute_gae_advantage_return", _gae),
    algo("compute_grpo_outcome_advantage", _grpo),
    algo("compute_grpo_vectorized_outcome_advantage", _grpo),
    algo("compute_grpo_passk_outcome_advantage", _passk),
    algo("compute_reinforce_plus_plus_baseline_outcome_advantage", _baseline_whitened),
    algo("compute_rloo_outcome_advantage", _leave_one_out),
    algo("compute_rloo_vectorized_outcome_advantage", _leave_one_out),
    algo("compute_opo_outcome_advantage", _plain_estimator()),
    algo("compute_reinforce_plus_plus_outcome_advantage", _reinforce_whitened),
    algo("compute_remax_outcome_advantage", _plain_estimator(couples="sequence")),
    algo("compute_gpg_outcome_advantage", _plain_estimator(couples="batch")),
    algo("compute_optimal_token_baseline_advantage", _plain_estimator(waived=OPTIMAL)),
    algo("compute_multi_turn_optimal_token_baseline_advantage", _plain_estimator(waived=OWN)),
)

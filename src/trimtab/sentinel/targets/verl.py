"""verl (verl-project/verl): estimators, KL, policy and value losses, aggregation, correction, log-probs, metrics.

What its trainer guarantees, and the bindings rely on: token rewards are 0 but on the last response token; counts of the
whole batch are handed to every micro-batch's loss (workers/utils/losses.py), and micro-batch losses are summed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from trimtab.sentinel.case import Case
from trimtab.sentinel.like import average, like, scored
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.role import at, bind
from trimtab.sentinel.subject import Call, Out, Result, Subject
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.handed import Record, Settings
from trimtab.sentinel.targets.target import Binding, CouldNotBind, Target

ALGOS = "verl/trainer/ppo/core_algos.py"
FUNCTIONAL = "verl/utils/torch_functional.py"
CORRECTION = "verl/trainer/ppo/rollout_corr_helper.py"
RAY = "verl/trainer/ppo/ray_trainer.py"

OWN_FORWARD = (
    "log-probs at untrainable cells are the trainer's own forward pass, and 0 where there is no token "
    "(verl/workers/utils/padding.py: no_padding_2_padding)"
)
MODES = {
    "token-mean": "token_mean", "token-sum": "token_sum", "seq-mean-token-sum": "sequence_mean_token_sum",
    "seq-mean-token-mean": "sequence_mean_token_mean",
}  # fmt: skip


LONE = float(torch.tensor(1.0) + 1e-6)
"""What a reward alone in its group is divided by: a spread of 1 in single precision, and the stabiliser."""
OWN = {"nonfinite_isolation": OWN_FORWARD}
OPTIMAL = {
    "nonfinite_isolation": OWN_FORWARD,
    "credit_over_trainable": "tool use is the multi-turn variant's, tir_optimal_token_baseline",
}


class _Algorithm:
    """Stands for the algorithm's config class, which losses refuse."""


def given() -> dict[str, object]:
    """Config classes that functions only test for."""
    return {"ActorConfig": Settings, "AlgoConfig": _Algorithm, "DictConfig": Settings}


# --- estimators ---------------------------------------------------------------------------------------------------


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
            inputs["old_log_probs"] = case.padded("logp_old", with_prompt=False)
        if "sum_pi_squared" in own:
            inputs["sum_pi_squared"] = case.padded("entropy", with_prompt=False) / 4
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
        boundary, {"gamma": 0.9, "lam": 0.8}, couples="batch", definition=handed.whitened(gae, eps=1e-8, counted=1e-8),
        variants={"gamma": (1.0,), "lam": (1.0,)},
        waived={"nonfinite_isolation": OWN_FORWARD.replace("log-probs", "values")},
    )  # fmt: skip


# --- losses -------------------------------------------------------------------------------------------------------


def policy_loss(
    boundary: Boundary, options: Mapping[str, Any], *, metrics: tuple[str, ...] = (), **facts: Any
) -> Subject:
    """A registered policy loss, with the config and the counts that the trainer hands over."""
    if "config" not in handed.parameters(boundary):
        raise CouldNotBind(f"{boundary.spec.name} takes no config: it is from before the registry of policy losses")
    mode = str(options.get("loss_agg_mode", "token-mean"))

    def loss(case: Case, **chosen: Any) -> Any:
        names = {"clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta"}
        tokens, rows = handed.counts(case)
        info = {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": rows, "loss_scale_factor": None}
        config = Settings(
            clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=None, global_batch_info=info, loss_scale_factor=None,
            policy_loss=Settings(**{n: chosen.get(n) for n in names}), tau_pos=1.0, tau_neg=1.05,
        )  # fmt: skip
        own = {n: v for n, v in chosen.items() if n not in names and n != "loss_agg_mode"}
        vars(config).update(own)
        fields = {"old_log_prob": "logp_old", "log_prob": "logp_current", "advantages": "advantage"}
        tensors = {n: case.padded(field, with_prompt=False) for n, field in fields.items()}
        mask = case.padded("trainable", with_prompt=False)
        mode_now = chosen.get("loss_agg_mode", mode)
        return boundary(**tensors, response_mask=mask, loss_agg_mode=mode_now, config=config)

    facts.setdefault("combine", "sum")
    facts.setdefault("waived", {"nonfinite_isolation": OWN_FORWARD})
    return bind(loss, role="policy_loss", name=boundary.spec.name, args={"case": lambda c: c}, options=options,
                returns=_loss_results(metrics), **facts)  # fmt: skip


def _loss_results(metrics: tuple[str, ...]) -> dict[str, Any]:
    facts: dict[str, dict[str, Any]] = {
        "actor/pg_clipfrac": {"range": (0.0, 1.0), "agreed": 0.0, "reduction": "mean"},
        "actor/pg_clipfrac_lower": {"range": (0.0, 1.0), "agreed": 0.0, "reduction": "mean"},
        "actor/ppo_kl": {"agreed": 0.0, "reduction": "mean"},
    }
    return {"loss": at(0, "loss")} | {n: at((1, n), "metric", **facts[n]) for n in metrics}


def _band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["clip_ratio_low"], 1 + options["clip_ratio_high"]


CLIPS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
OTHER_CLIPS = {"clip_ratio_low": (0.5,), "clip_ratio_high": (0.9,)}
EVERY = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower")


def _averaged(formula: str, mode: str, **settings: Any) -> Call:
    return handed.simply(like(formula, mean=MODES[mode], **settings))


def _vanilla(boundary: Boundary) -> list[Subject]:
    modes = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean")
    return [
        policy_loss(
            boundary, {**CLIPS, "clip_ratio_c": 3.0, "loss_agg_mode": mode}, metrics=EVERY,
            definition=_averaged("policy_loss.dual_clipped", mode, band=_band, cap=lambda o: o["clip_ratio_c"]),
            variants={**OTHER_CLIPS, "clip_ratio_c": (1.5,), "loss_agg_mode": tuple(set(modes) - {mode})},
            impossible={"loss_agg_mode": ("token-men",), "clip_ratio_c": (0.5,)},
        )
        for mode in modes
    ]  # fmt: skip


def _dppo(boundary: Boundary) -> Subject:
    options = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 20.0}
    variants = {"clip_ratio_low": (0.01,), "clip_ratio_high": (0.01,), "clip_ratio_c": (1.5,)}
    waived = {"nonfinite_isolation": OWN_FORWARD}
    return policy_loss(boundary, options, metrics=EVERY, variants=variants, stops_gradient=True, waived=waived)


def _gspo(boundary: Boundary) -> Subject:
    mode = "seq-mean-token-mean"
    define = _averaged("policy_loss.geometric_clipped_token", mode, band=_band)
    return policy_loss(
        boundary, {**CLIPS, "loss_agg_mode": mode}, metrics=EVERY[:2], definition=define, variants=OTHER_CLIPS,
        stops_gradient=True,
    )  # fmt: skip


def _sapo(boundary: Boundary) -> Subject:
    define = _averaged(
        "policy_loss.soft_gated", "seq-mean-token-mean", temperature_positive=lambda o: o["tau_pos"],
        temperature_negative=lambda o: o["tau_neg"],
    )  # fmt: skip
    options = {"tau_pos": 1.0, "tau_neg": 1.05, "loss_agg_mode": "seq-mean-token-mean"}
    variants = {"tau_pos": (2.0,), "tau_neg": (2.0,)}
    return policy_loss(boundary, options, metrics=EVERY[1:2], definition=define, variants=variants)


def _gpg_loss(boundary: Boundary) -> Subject:
    return policy_loss(
        boundary, {"loss_agg_mode": "token-mean"}, definition=_averaged("policy_loss.reinforce", "token-mean"),
        variants={"loss_agg_mode": ("seq-mean-token-sum",)},
    )  # fmt: skip


def _clip_cov(boundary: Boundary) -> Subject:
    options = {**CLIPS, "clip_cov_ratio": 0.2, "clip_cov_lb": 0.1, "clip_cov_ub": 5.0}
    random = "it draws among candidates with torch.randperm, so two calls on one batch differ by design"
    waived = dict.fromkeys(
        ("mask_content", "nonfinite_isolation", "permutation", "no_aliasing", "split", "expected_gradient",
         "denominator", "mean_is_a_mean", "clip_geometry", "credit_over_trainable", "metric_reduction"), random,
    )  # fmt: skip
    return policy_loss(boundary, options, couples="batch", waived=waived, metrics=EVERY[1:2])


def _kl_cov(boundary: Boundary) -> Subject:
    options = {"kl_cov_ratio": 0.2, "ppo_kl_coef": 1.0}
    variants = {"kl_cov_ratio": (0.6,), "ppo_kl_coef": (0.1,)}
    why = "the covariance is over the micro-batch, as the paper's own code has it"
    waived = {"nonfinite_isolation": OWN_FORWARD, "split": why, "denominator": why, "expected_gradient": why}
    waived["permutation"] = "torch.topk breaks ties between equal covariances by position"
    return policy_loss(
        boundary, options, couples="batch", variants=variants, waived=waived, metrics=EVERY[1:2],
        penalties={"ppo_kl_coef": "logp_old"},
    )  # fmt: skip


def _geo_mean(boundary: Boundary) -> Subject:
    return policy_loss(
        boundary, CLIPS, metrics=EVERY, variants=OTHER_CLIPS, adapt=handed.one_per_sequence("advantage"),
    )  # fmt: skip


def _cispo(boundary: Boundary) -> Subject:
    define = _averaged("policy_loss.clipped_importance", "token-mean", band=_band)
    return policy_loss(boundary, CLIPS, metrics=EVERY[:2], definition=define, variants=OTHER_CLIPS, stops_gradient=True)


def _dro(boundary: Boundary) -> Subject:
    impossible = {"dro_beta": (0.0, -1.0)}
    return policy_loss(boundary, {"dro_beta": 0.1}, variants={"dro_beta": (0.5,)}, impossible=impossible)


def _aggregation(boundary: Boundary) -> list[Subject]:
    own = handed.parameters(boundary)
    whole = "batch_num_tokens" in own
    told = {"batch_num_tokens": lambda c: handed.counts(c)[0], "global_batch_size": lambda c: handed.counts(c)[1]}
    found: list[Subject] = []
    for mode, name in MODES.items():
        args: dict[str, Any] = {"loss_mat": "token_loss", "loss_mask": "trainable"} | (told if whole else {})
        facts: dict[str, Any] = {"combine": "sum"} if whole else {}
        found.append(bind(
            boundary, role="aggregation", args=args, options={"loss_agg_mode": mode}, definition=average(name),
            variants={"loss_agg_mode": tuple(set(MODES) - {mode, "token-sum"})},
            impossible={"loss_agg_mode": ("token_mean", "")}, **facts,
        ))  # fmt: skip
    return found


def _value_loss(boundary: Boundary) -> list[Subject]:
    whole = "batch_num_tokens" in handed.parameters(boundary)
    told = {"batch_num_tokens": lambda c: handed.counts(c)[0], "global_batch_size": lambda c: handed.counts(c)[1]}
    args: dict[str, Any] = {
        "vpreds": "value",
        "values": "value_old",
        "returns": "returns",
        "response_mask": "trainable",
    }
    facts: dict[str, Any] = {"combine": "sum"} if whole else {}
    returns = {"loss": at(0, "loss"), "clip": at(1, "metric", range=(0.0, 1.0), reduction="mean")}
    define = handed.simply(like("value_loss.squared_clipped", mean="token_mean", reach=lambda o: o["cliprange_value"]))
    waived = {"nonfinite_isolation": OWN_FORWARD.replace("log-probs", "values")}
    return [bind(
        boundary, role="value_loss", args=args | (told if whole else {}), options={"cliprange_value": 0.5},
        definition=define, variants={"cliprange_value": (0.1,)}, returns=returns, waived=waived, **facts,
    )]  # fmt: skip


# --- KL, correction, log-probs, statistics, masks -------------------------------------------------------------------


def _kl(boundary: Boundary) -> list[Subject]:
    found: list[Subject] = []
    for name, formula in (("kl", "kl.k1"), ("mse", "kl.k2"), ("low_var_kl", "kl.k3"), ("abs", None)):
        ours = {"logp_current": "logp_current", "logp_ref": "logp_ref"}
        define = like(formula) if formula and formula != "kl.k3" else None
        found.append(bind(
            boundary, role="kl", name=f"{boundary.spec.name}", options={"kl_penalty": name}, definition=define,
            args={"logprob": ours["logp_current"], "ref_logprob": ours["logp_ref"]},
            variants={"kl_penalty": tuple({"kl", "mse", "abs"} - {name})},
            impossible={"kl_penalty": ("k4",)},
            waived={
                "mask_content": "it takes no mask: its callers mask what it returns",
                "nonfinite_isolation": "it takes no mask: its callers mask what it returns",
            },
        ))  # fmt: skip
    return found


def _kl_in_reward(boundary: Boundary) -> list[Subject]:
    def shaped(case: Case, kl_coef: float, kl_penalty: str) -> Any:
        view: dict[str, Any] = {"with_prompt": False}
        batch = Record(
            response_mask=case.padded("trainable", **view),
            token_level_scores=handed.reward_on_last(case, trained=True),
            old_log_probs=case.padded("logp_old", **view), ref_log_prob=case.padded("logp_ref", **view),
            responses=case.padded("token_id", **view), attention_mask=case.padded("attention", dtype=torch.long),
        )  # fmt: skip
        control = Settings(value=kl_coef, update=lambda current_kl, n_steps: None)
        data, metrics = boundary(Settings(batch=batch), control, kl_penalty=kl_penalty)
        return data.batch["token_level_rewards"], metrics.get("actor/reward_kl_penalty", metrics.get("critic/kl"))

    waived = {"nonfinite_isolation": OWN_FORWARD}
    returns = {"reward": at(0, "reward"), "kl": at(1, "metric", level="scalar", agreed=0.0, reduction="mean",
                                                  population="sequence")}  # fmt: skip
    return [bind(
        shaped, role="kl_in_reward", name=boundary.spec.name, args={"case": lambda c: c},
        options={"kl_coef": 0.1, "kl_penalty": kind}, returns=returns, waived=waived,
        penalties={"kl_coef": "logp_ref"}, variants={"kl_coef": (0.5,), "kl_penalty": ("mse",)},
    ) for kind in ("kl", "low_var_kl")]  # fmt: skip


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
        found.append(bind(
            boundary, role="importance", args={"log_ratio": ratio, "response_mask": "trainable"}, returns=returns,
            options={"rollout_is": level, "rollout_is_threshold": 2.0}, definition=define,
            variants={"rollout_is_threshold": (1.1,)}, waived={"nonfinite_isolation": OWN_FORWARD},
            impossible={"rollout_is": ("turn",), "rollout_is_threshold": (0.0, -1.0)},
        ))  # fmt: skip
    return found


def _rejection(boundary: Boundary) -> list[Subject]:
    def ratio(case: Case) -> Any:
        return case.padded("logp_old", with_prompt=False) - case.padded("logp_rollout", with_prompt=False)

    bands = {
        "token_k1": ("0.5_2.0", "token"), "seq_mean_k1": ("0.8_1.25", "sequence"),
        "seq_sum_k1": ("0.5_2.0", "sequence"), "seq_max_k2": ("0.1", "sequence"), "token_k3": ("0.1", "token"),
    }  # fmt: skip
    return [
        bind(
            boundary, role="keep", args={"log_ratio": ratio, "response_mask": "trainable"},
            options={"rollout_rs": kind, "rollout_rs_threshold": threshold},
            returns={"keep": at(0, "keep", scope=scope)}, waived={"nonfinite_isolation": OWN_FORWARD},
            variants={"rollout_rs_threshold": ("1.001" if "k1" in kind else "1e-6",)},
            impossible={"rollout_rs": ("token_k4",), "rollout_rs_threshold": ("-1.0",)},
        )
        for kind, (threshold, scope) in bands.items()
    ]  # fmt: skip


def _logp(boundary: Boundary) -> Subject:
    return bind(
        boundary, role="logp", definition=scored(names=("logp",)), returns={"logp": at((), "logp", level="token")},
        args={"logits": "logits", "labels": "token_id"},
    )  # fmt: skip


def _entropy(boundary: Boundary) -> Subject:
    if "chunking" in boundary.spec.name:
        return bind(boundary, role="entropy", layout="packed", args={"logits": "logits"}, options={"chunk_size": 2},
                    definition=scored(names=("entropy",)))  # fmt: skip
    return bind(boundary, role="entropy", args={"logits": "logits"}, definition=scored(names=("entropy",)))


def _masked_mean(boundary: Boundary) -> Subject:
    # Callers average what trains (losses, log-probs), so the field that reads it must be one with a gradient.
    returns = {"mean": at((), "statistic", level="scalar", of="token_loss", reduction="mean")}
    define = average("token_mean", result="mean")
    return bind(boundary, role="statistic", args={"values": "token_loss", "mask": "trainable"}, returns=returns,
                definition=define)  # fmt: skip


def _whiten(boundary: Boundary) -> Subject:
    # Estimators whiten under no_grad, so what flows back through it reaches nobody.
    return bind(
        torch.no_grad()(boundary), role="whitening", name=boundary.spec.name,
        args={"values": "advantage", "mask": "trainable"}, options={"shift_mean": True},
        variants={"shift_mean": (False,)},
    )  # fmt: skip


def _response_mask(boundary: Boundary) -> Subject:
    ids = handed.named(boundary, "response_id", "response_ids")
    return bind(boundary, role="response_mask", args={ids: handed.ending_ids, "eos_token": lambda c: list(c.eos_ids)})


def algo(name: str, make: Any, *others: str) -> Binding:
    """A function of core_algos."""
    return Binding(name, tuple(Spec(n, file=ALGOS) for n in (name, *others)), make, given)


def functional(name: str, make: Any, *others: str) -> Binding:
    """A function of torch_functional."""
    return Binding(name, tuple(Spec(n, file=FUNCTIONAL) for n in (name, *others)), make, given)


def correction(name: str, make: Any) -> Binding:
    """A function of rollout_corr_helper."""
    return Binding(name, (Spec(name, file=CORRECTION),), make)


TARGET = Target(
    "verl",
    "verl-project/verl",
    bindings=(
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
        algo("agg_loss", _aggregation),
        algo("compute_policy_loss_vanilla", _vanilla),
        algo("compute_policy_loss_dppo_tv", _dppo),
        algo("compute_policy_loss_dppo_kl", _dppo),
        algo("compute_policy_loss_gspo", _gspo),
        algo("compute_policy_loss_sapo", _sapo),
        algo("compute_policy_loss_gpg", _gpg_loss),
        algo("compute_policy_loss_clip_cov", _clip_cov),
        algo("compute_policy_loss_kl_cov", _kl_cov),
        algo("compute_policy_loss_geo_mean", _geo_mean),
        algo("compute_policy_loss_dro", _dro),
        algo("compute_policy_loss_cispo", _cispo),
        algo("compute_value_loss", _value_loss),
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
    ),
    wheel="verl",
)  # fmt: skip

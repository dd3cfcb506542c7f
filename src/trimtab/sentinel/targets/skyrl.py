"""SkyRL (NovaSky-AI/SkyRL): estimators, KL, policy and value losses, off-policy correction, batches, metrics.

What its trainer guarantees, and the bindings rely on: tensors of a batch are right-aligned (padding on the left), token
rewards are 0 but on the last token, estimators get the mask of the whole answer and losses that of what trains, and
advantages are scaled once over the mini-batch so that micro-batch losses add up.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.like import like, scored
from trimtab.sentinel.loading import Boundary, CouldNotLoad, Spec
from trimtab.sentinel.role import at, bind
from trimtab.sentinel.subject import Call, Out, Result, Subject
from trimtab.sentinel.targets import handed
from trimtab.sentinel.targets.handed import Record, Settings
from trimtab.sentinel.targets.target import Binding, CouldNotBind, Target

UTILS = ("skyrl/backends/skyrl_train/utils", "skyrl-train/skyrl_train/utils")
LEFT: dict[str, Any] = {"with_prompt": False, "side": "left"}
"""Answers are right-aligned."""
OWN_FORWARD = (
    "log-probs and values at untrainable cells are the trainer's own forward pass, and rollout log-probs are 0 there "
    "(skyrl/train/dataset/preprocess.py: convert_prompts_responses_to_batch_tensors)"
)
OWN = {"nonfinite_isolation": OWN_FORWARD}


def _places(name: str, file: str) -> tuple[Spec, ...]:
    return tuple(Spec(name, file=f"{folder}/{file}") for folder in UTILS)


def single(case: Case, field: str) -> Tensor:
    """A field as a batch holds it: right-aligned, in single precision."""
    return case.padded(field, **LEFT).float()


# --- estimators ---------------------------------------------------------------------------------------------------


def estimator(boundary: Boundary, options: Mapping[str, Any], **facts: Any) -> Subject:
    """An advantage estimator, on the mask of the whole answer as the trainer hands it over."""
    own = handed.parameters(boundary)

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        reward = handed.reward_on_last(case, **LEFT).float()
        inputs: dict[str, Any] = {"token_level_rewards": reward, "response_mask": single(case, "response")}
        if "index" in own:
            inputs["index"] = handed.group_names(case)
        if "values" in own:
            inputs["values"] = single(case, "value_old")
        advantages, returns = boundary(**inputs, **chosen)
        # What stands at tool output is taken out by the loss mask, so only padding has to be 0.
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


# --- losses -------------------------------------------------------------------------------------------------------

CORRECTION = {
    "tis_ratio_type": None, "sequence_mask_metric": None, "outlier_token_is_threshold_low": None,
    "outlier_token_is_threshold_high": None, "token_mask_is_threshold_low": None,
    "token_mask_is_threshold_high": None, "token_tis_ratio_clip_high": 2.0, "sequence_tis_ratio_clip_high": 5.0,
    "geo_mask_low": 0.99, "geo_mask_high": 1.01, "product_mask_low": 0.5, "product_mask_high": 2.0,
}  # fmt: skip
REDUCTIONS = {"token_mean": "token_mean", "sequence_mean": "sequence_mean_token_mean over all rows"}


def _config(chosen: Mapping[str, Any]) -> Settings:
    """The algorithm's settings: what is chosen, wherever it belongs, and nothing switched on beside."""
    parts: dict[str, dict[str, Any]] = {
        "sapo": {"tau_pos": 1.0, "tau_neg": 1.05}, "cispo": {"cispo_eps_clip_low": 0.2, "cispo_eps_clip_high": 0.28,
        "cispo_anchor": "old"}, "dppo": {"dppo_type": "binary_tv", "delta_low": 0.2, "delta_high": 0.2},
        "clip_cov": {"clip_ratio": 0.2, "clip_cov_lb": 0.1, "clip_cov_ub": 5.0},
        "kl_cov": {"kl_cov_frac": 0.2, "ppo_kl_coef": 1.0}, "off_policy_correction": CORRECTION,
    }  # fmt: skip
    top = {"eps_clip_low": 0.2, "eps_clip_high": 0.28, "clip_ratio_c": 3.0, "policy_loss_type": "regular",
           "loss_reduction": "token_mean", "max_seq_len": 8, "value_clip": 0.5}  # fmt: skip
    for name, value in chosen.items():
        into = next((part for part in parts.values() if name in part), top)
        if into is CORRECTION:
            into = parts["off_policy_correction"] = {**CORRECTION, **parts["off_policy_correction"]}
        into[name] = value
    return Settings(**top, **{name: Settings(**part) for name, part in parts.items()})


def _scaled(boundary: Boundary, case: Case, chosen: Mapping[str, Any]) -> Tensor:
    """The part's advantages as the trainer scales them once, over the whole mini-batch."""
    whole = case.whole
    groups = whole.sequences["group"].tolist()
    edges = [i for i in range(len(groups)) if i == 0 or groups[i] != groups[i - 1]] + [len(groups)]
    extra = {"prompt_boundaries": list(pairwise(edges))}
    scale = boundary.get("apply_loss_reduction_to_advantages_minibatch")
    config = _config(chosen)
    share = scale(  # advantages are only ever divided, so what becomes of 1 is each token's factor
        advantages=torch.ones_like(single(whole, "trainable")), loss_mask=single(whole, "trainable"),
        loss_reduction=config.loss_reduction, micro_batch_size=1, max_seq_len=config.max_seq_len,
        **(extra if config.loss_reduction == "prompt_mean" else {}),
    )  # fmt: skip
    if case.within is not None:
        rows = [whole.origin.index(i) for i in case.origin]
        share = share[rows][:, share.shape[1] - case.padded("attention", **LEFT).shape[1] :]
    return single(case, "advantage") * share


def policy_loss(boundary: Boundary, options: Mapping[str, Any], *, clip: bool = True, **facts: Any) -> Subject:
    """A registered policy loss on advantages that the trainer has scaled."""
    try:
        boundary.get("apply_loss_reduction_to_advantages_minibatch")
    except CouldNotLoad as error:
        raise CouldNotBind(f"{boundary.spec.name} is from before advantages were scaled: {error}") from error

    def loss(case: Case, **chosen: Any) -> Any:
        return boundary(
            log_probs=single(case, "logp_current"), old_log_probs=single(case, "logp_old"),
            advantages=_scaled(boundary, case, chosen), config=_config(chosen), loss_mask=single(case, "trainable"),
            rollout_logprobs=single(case, "logp_rollout"),
        )  # fmt: skip

    returns = {"loss": at(0, "loss")}
    if clip:
        returns["clip_ratio"] = at((1, "clip_ratio"), "metric", range=(0.0, 1.0), agreed=0.0, reduction="mean")
    facts = {"combine": "sum", "waived": OWN, **facts}
    return bind(loss, role="policy_loss", name=boundary.spec.name, args={"case": lambda c: c}, options=options,
                returns=returns, **facts)  # fmt: skip


def _band(options: Mapping[str, Any]) -> tuple[float, float]:
    return 1 - options["eps_clip_low"], 1 + options["eps_clip_high"]


CLIPS = {"eps_clip_low": 0.2, "eps_clip_high": 0.28}
OTHER_CLIPS = {"eps_clip_low": (0.5,), "eps_clip_high": (0.9,)}


def _averaged(formula: str, reduction: str = "token_mean", **settings: Any) -> Call:
    return handed.simply(like(formula, mean=REDUCTIONS[reduction], **settings))


def _ppo(boundary: Boundary) -> list[Subject]:
    regular = policy_loss(
        boundary, {**CLIPS, "loss_reduction": "token_mean"}, variants={**OTHER_CLIPS, "loss_reduction": ("sequence_mean",)},
        definition=_averaged("policy_loss.clipped", band=_band), impossible={"loss_reduction": ("mean",)},
    )  # fmt: skip
    dual = policy_loss(
        boundary, {**CLIPS, "policy_loss_type": "dual_clip", "clip_ratio_c": 3.0, "loss_reduction": "sequence_mean"},
        definition=_averaged("policy_loss.dual_clipped", "sequence_mean", band=_band, cap=lambda o: o["clip_ratio_c"]),
        variants={**OTHER_CLIPS, "policy_loss_type": ("regular",), "clip_ratio_c": (1.5,)},
        impossible={"policy_loss_type": ("dual",)},
    )  # fmt: skip
    corrected = policy_loss(
        boundary, {**CLIPS, "tis_ratio_type": "token", "token_tis_ratio_clip_high": 2.0},
        variants={"token_tis_ratio_clip_high": (1.1,), "tis_ratio_type": ("sequence", None)},
        impossible={"tis_ratio_type": ("turn",)},
    )  # fmt: skip
    return [regular, dual, corrected]


def _sapo(boundary: Boundary) -> Subject:
    define = _averaged("policy_loss.soft_gated", "sequence_mean", temperature_positive=lambda o: o["tau_pos"],
                       temperature_negative=lambda o: o["tau_neg"])  # fmt: skip
    options = {"tau_pos": 1.0, "tau_neg": 1.05, "loss_reduction": "sequence_mean"}
    variants = {"tau_pos": (2.0,), "tau_neg": (2.0,)}
    return policy_loss(boundary, options, clip=False, definition=define, variants=variants)


def _gspo(boundary: Boundary) -> Subject:
    define = _averaged("policy_loss.geometric_clipped_token", "sequence_mean", band=_band)
    options = {**CLIPS, "loss_reduction": "sequence_mean"}
    return policy_loss(boundary, options, definition=define, variants=OTHER_CLIPS, stops_gradient=True)


def _cispo(boundary: Boundary) -> Subject:
    options = {"cispo_eps_clip_low": 0.2, "cispo_eps_clip_high": 0.28}
    define = _averaged(
        "policy_loss.clipped_importance", band=lambda o: (1 - o["cispo_eps_clip_low"], 1 + o["cispo_eps_clip_high"])
    )
    variants = {"cispo_eps_clip_low": (0.5,), "cispo_eps_clip_high": (0.9,)}
    return policy_loss(boundary, options, definition=define, variants=variants, stops_gradient=True)


def _rollout_is(boundary: Boundary) -> Subject:
    waived = {**OWN, "clip_geometry": "tokens outside the band are dropped on both sides by design, as its source says"}
    return policy_loss(boundary, CLIPS, variants=OTHER_CLIPS, stops_gradient=True, waived=waived)


def _dppo(boundary: Boundary) -> list[Subject]:
    variants = {"delta_low": (0.01,), "delta_high": (0.01,)}
    return [
        policy_loss(boundary, {"dppo_type": kind, "delta_low": 0.2, "delta_high": 0.2}, variants=variants,
                    impossible={"dppo_type": ("tv",)})
        for kind in ("binary_tv", "binary_kl")
    ]  # fmt: skip


def _kl_cov(boundary: Boundary) -> Subject:
    why = "the covariance is over the micro-batch, as the paper's own code has it"
    waived = {**OWN, "split": why, "denominator": why, "expected_gradient": why,
              "permutation": "torch.topk breaks ties between equal covariances by position"}  # fmt: skip
    return policy_loss(
        boundary, {"kl_cov_frac": 0.2, "ppo_kl_coef": 1.0}, couples="batch", clip=False, waived=waived,
        variants={"kl_cov_frac": (0.6,), "ppo_kl_coef": (0.1,)}, penalties={"ppo_kl_coef": "logp_old"},
    )  # fmt: skip


def _cross_entropy(boundary: Boundary) -> Subject:
    def loss(log_probs: Tensor, loss_mask: Tensor) -> Any:
        return boundary(log_probs, None, None, _config({}), loss_mask=loss_mask)

    define = handed.simply(like("policy_loss.cross_entropy", mean="token_sum"))
    args: dict[str, Any] = {
        "log_probs": lambda c: single(c, "logp_current"),
        "loss_mask": lambda c: single(c, "trainable"),
    }
    return bind(loss, role="policy_loss", name=boundary.spec.name, args=args, definition=define, waived=OWN,
                combine="sum")  # fmt: skip


def _importance_sampling(boundary: Boundary) -> Subject:
    return policy_loss(boundary, {}, clip=False)


def _value_loss(boundary: Boundary) -> Subject:
    args: dict[str, Any] = {n: (lambda c, f=f: single(c, f)) for n, f in
                            (("values", "value"), ("old_values", "value_old"), ("returns", "returns"))}  # fmt: skip

    def loss(value_clip: float, **tensors: Any) -> Any:
        return boundary(**tensors, config=_config({"value_clip": value_clip}))

    define = handed.simply(like("value_loss.squared_clipped", mean=REDUCTIONS["sequence_mean"],
                                reach=lambda o: o["value_clip"]))  # fmt: skip
    return bind(
        loss, role="value_loss", name=boundary.spec.name, options={"value_clip": 0.5}, definition=define, waived=OWN,
        args=args | {"loss_mask": lambda c: single(c, "trainable")}, variants={"value_clip": (0.1, None)},
        returns={"loss": at(0, "loss")},
    )  # fmt: skip


# --- KL, correction, log-probs, batches ---------------------------------------------------------------------------


def _kl(boundary: Boundary) -> list[Subject]:
    args = {"log_probs": "logp_current", "log_probs_base": "logp_ref", "loss_mask": "trainable"}
    return [
        bind(boundary, role="kl", args=args, options={"kl_estimator_type": kind}, definition=like(f"kl.{kind}"),
             variants={"kl_estimator_type": tuple({"k1", "k2", "abs"} - {kind})},
             impossible={"kl_estimator_type": ("k4",)})
        if kind != "k3"
        else bind(boundary, role="kl", args=args, options={"kl_estimator_type": kind})
        for kind in ("k1", "k2", "k3")
    ]  # fmt: skip


def _kl_in_reward(boundary: Boundary) -> Subject:
    def shaped(case: Case, kl_loss_coef: float, kl_estimator_type: str) -> Any:
        data = Record(
            loss_mask=case.padded("trainable", **LEFT), rewards=handed.reward_on_last(case, trained=True, **LEFT),
            base_action_log_probs=case.padded("logp_ref", **LEFT), action_log_probs=case.padded("logp_old", **LEFT),
        )  # fmt: skip
        data.metadata = {}
        algorithm = Settings(kl_estimator_type=kl_estimator_type, kl_loss_coef=kl_loss_coef)
        trainer = boundary.made(
            cfg=Settings(trainer=Settings(algorithm=algorithm)), all_metrics={}, reward_kl_controller=None
        )
        done = boundary(trainer, data)
        return done["rewards"], trainer.all_metrics["loss/avg_kl"]

    return bind(
        shaped, role="kl_in_reward", name=boundary.spec.name, args={"case": lambda c: c}, view=LEFT,
        options={"kl_loss_coef": 0.1, "kl_estimator_type": "k1"}, penalties={"kl_loss_coef": "logp_ref"},
        variants={"kl_loss_coef": (0.5,), "kl_estimator_type": ("k2",)}, waived=OWN,
        returns={"reward": at(0, "reward"), "kl": at(1, "metric", level="scalar", agreed=0.0, reduction="mean",
                                                    population="sequence")},
    )  # fmt: skip


def _ratios(case: Case) -> dict[str, Tensor]:
    return {
        "old_log_probs": single(case, "logp_old"), "rollout_logprobs": single(case, "logp_rollout"),
        "loss_mask": single(case, "trainable"),
    }  # fmt: skip


def _decision(boundary: Boundary, kind: str, scope: str, options: Mapping[str, Any], **facts: Any) -> Subject:
    """A factor or a mask of the correction, one a token or one a sequence."""
    direct = [n for n in ("tis_ratio_type", "sequence_mask_metric") if n in handed.parameters(boundary)]

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        told = {n: chosen[n] for n in direct}
        values, _ = boundary(**_ratios(case), **told, off_policy_correction=_config(chosen).off_policy_correction)
        fact: dict[str, Any] = facts.get("of", {})
        if scope == "sequence":
            return {kind: Result.sequence(values[:, 0], kind, scope=scope, **fact)}  # type: ignore[arg-type]
        return {kind: Result(case.from_padded(values, **LEFT), "token", kind, scope=scope, **fact)}  # type: ignore[arg-type]

    rest = {n: v for n, v in facts.items() if n != "of"}
    return Subject(boundary.spec.name, call, options=dict(options), boundary=boundary, waived=OWN, **rest)


def _tis(boundary: Boundary) -> list[Subject]:
    pair = ("logp_old", "logp_rollout")
    token = _decision(
        boundary, "importance", "token", {"tis_ratio_type": "token", "token_tis_ratio_clip_high": 2.0},
        of={"pair": pair, "range": (0.0, 2.0)}, variants={"token_tis_ratio_clip_high": (1.1,)},
        definition=like("importance.truncated", level="token", band=lambda o: (0.0, o["token_tis_ratio_clip_high"])),
        impossible={"tis_ratio_type": ("turn",)},
    )  # fmt: skip
    sequence = _decision(
        boundary, "importance", "sequence", {"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 5.0},
        of={"pair": pair, "range": (0.0, 5.0)}, variants={"sequence_tis_ratio_clip_high": (1.1,)},
    )  # fmt: skip
    return [token, sequence]


def _sequence_mask(boundary: Boundary) -> list[Subject]:
    return [
        _decision(boundary, "keep", "sequence", {"sequence_mask_metric": kind, **band},
                  variants={name: (value * 1.2,) for name, value in band.items()},
                  impossible={"sequence_mask_metric": ("mean",)})
        for kind, band in (("geometric", {"geo_mask_low": 0.8, "geo_mask_high": 1.25}),
                           ("product", {"product_mask_low": 0.5, "product_mask_high": 2.0}))
    ]  # fmt: skip


def _outlier(boundary: Boundary) -> Subject:
    options = {"outlier_token_is_threshold_low": 0.5, "outlier_token_is_threshold_high": 2.0}
    variants = {"outlier_token_is_threshold_low": (0.9,), "outlier_token_is_threshold_high": (1.1, None)}
    return _decision(boundary, "keep", "sequence", options, variants=variants)


def _token_mask(boundary: Boundary) -> Subject:
    options = {"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0}
    variants = {"token_mask_is_threshold_low": (0.9,), "token_mask_is_threshold_high": (1.1,)}
    define = like(
        "keep.token_band", band=lambda o: (o["token_mask_is_threshold_low"], o["token_mask_is_threshold_high"])
    )
    return _decision(boundary, "keep", "token", options, variants=variants, definition=define)


def _correction(boundary: Boundary) -> Subject:
    def correct(case: Case, **chosen: Any) -> Any:
        found = boundary(**_ratios(case), off_policy_correction=_config(chosen).off_policy_correction)[1]
        return {name: torch.tensor(value, dtype=torch.float32) for name, value in found.items()}

    def ratio(case: Case) -> Tensor:
        return (case.flat("logp_old").float() - case.flat("logp_rollout").float()).clamp(-20, 20).exp()

    metrics = {
        f"is_ratio_{kind}": at((f"is_ratio_{kind}",), "metric", of=ratio, reduction=kind, agreed=1.0)
        for kind in ("mean", "max", "min")
    }
    return bind(
        correct, name=boundary.spec.name, args={"case": lambda c: c}, couples="batch", waived=OWN,
        options={"tis_ratio_type": "token"}, returns=metrics,
    )  # fmt: skip


def _logprob_difference(boundary: Boundary) -> Subject:
    prefix = "policy/minibatch_rollout_train_logprobs_abs_diff"

    def gap(case: Case) -> Tensor:
        return (case.flat("logp_current") - case.flat("logp_rollout")).abs()

    def read(case: Case) -> Any:
        found = boundary(case.padded("logp_current", **LEFT), case.padded("logp_rollout", **LEFT),
                         case.padded("trainable", **LEFT))  # fmt: skip
        return {name.rsplit("_", 1)[-1]: value for name, value in found.items() if "sq" not in name} | {"": prefix}

    metrics = {k: at((k,), "metric", of=gap, reduction=k, agreed=0.0, level="scalar") for k in ("mean", "max", "min")}
    return bind(read, role="metric", name=boundary.spec.name, args={"case": lambda c: c}, returns=metrics, waived=OWN)


def _logp(boundary: Boundary) -> Subject:
    return bind(boundary, role="logp", definition=scored(names=("logp",)), args={"logits": "logits", "labels": "token_id"},
                returns={"logp": at((), "logp", level="token")})  # fmt: skip


def _entropy(boundary: Boundary) -> Subject:
    own = handed.parameters(boundary)
    args: dict[str, Any] = {"logits": "logits"} | ({"attention_mask": "attention"} if "attention_mask" in own else {})
    options = {"requires_grad": True, "chunk_size": 2} if "chunk_size" in own else {"requires_grad": True}
    return bind(boundary, role="entropy", args=args, options=options, definition=scored(names=("entropy",)),
                returns={"entropy": at((), "entropy", level="token")})  # fmt: skip


class _Rows(Record):
    """A batch that can be cut by rows."""

    def __getitem__(self, chosen: Any) -> Any:
        if isinstance(chosen, slice):
            return _Rows({name: value[chosen] for name, value in self.items()})
        return super().__getitem__(chosen)


def _normalize(boundary: Boundary) -> Subject:
    def normalised(case: Case, advantage_batch_normalize: bool) -> Any:
        data = _Rows(
            advantages=single(case, "advantage") * single(case, "response"), response_mask=single(case, "response"),
            loss_mask=single(case, "trainable"),
        )  # fmt: skip
        algorithm = Settings(
            advantage_batch_normalize=advantage_batch_normalize, loss_reduction="token_mean", max_seq_len=8
        )
        config = Settings(trainer=Settings(algorithm=algorithm, micro_train_batch_size_per_gpu=1))
        return boundary(boundary.made(cfg=config), data, [(0, case.num_sequences)])["advantages"]

    def call(case: Case, chosen: Mapping[str, Any]) -> Out:
        return {"advantage": Result(case.from_padded(normalised(case, **chosen), **LEFT), "token", "advantage")}

    return Subject(
        boundary.spec.name, call, options={"advantage_batch_normalize": True}, couples="batch", boundary=boundary,
        variants={"advantage_batch_normalize": (False,)}, waived=OWN,
    )  # fmt: skip


def _collate(boundary: Boundary) -> Subject:
    def call(case: Case, _: Mapping[str, Any]) -> Out:
        if any("a" not in row for row in case.kinds) or not case.kinds:
            raise case.cannot("it refuses an answer without tokens")
        case = replace(case, extra_columns=0)  # it makes its own padding
        ids, masks = case.list("token_id"), case.list("trainable", with_prompt=False)
        answers, logps = case.list("token_id", with_prompt=False), case.list("logp_rollout", with_prompt=False)
        rewards = case.list("token_reward", with_prompt=False)
        prompts = [one[: len(one) - len(rest)].tolist() for one, rest in zip(ids, answers, strict=True)]
        found = boundary(
            Settings(pad_token_id=case.pad_id), prompts, [a.tolist() for a in answers],
            [r.detach().tolist() for r in rewards], [m.int().tolist() for m in masks],
            [p.detach().tolist() for p in logps],
        )  # fmt: skip
        carried = {"reward": (found[3], "token_reward"), "logp": (found[5], "logp_rollout")}
        out = {n: Result.token(case, v, "carried", of=field, **LEFT) for n, (v, field) in carried.items()}
        return out | {"mask": Result.token(case, found[4], "carried", of=lambda c: c.flat("trainable"), **LEFT)}

    return Subject(boundary.spec.name, call, boundary=boundary)


def ppo(name: str, make: Any) -> Binding:
    """A function of ppo_utils."""
    return Binding(name, _places(name, "ppo_utils.py"), make)


def correction(name: str, make: Any) -> Binding:
    """A function of off_policy_correction_utils."""
    return Binding(name, _places(name, "off_policy_correction_utils.py"), make)


TRAINER = ("skyrl/train/trainer.py", "skyrl-train/skyrl_train/trainer.py")
TARGET = Target(
    "skyrl",
    "NovaSky-AI/SkyRL",
    bindings=(
        ppo("compute_grpo_outcome_advantage", _grpo),
        ppo("compute_rloo_outcome_advantage", _rloo),
        ppo("compute_maxrl_advantage", _maxrl),
        ppo("compute_reinforce_plus_plus_outcome_advantage", _reinforce),
        ppo("compute_gae_advantage_return", _gae),
        ppo("ppo_policy_loss", _ppo),
        ppo("sapo_policy_loss", _sapo),
        ppo("gspo_policy_loss", _gspo),
        ppo("compute_policy_loss_cispo", _cispo),
        ppo("rollout_is_policy_loss", _rollout_is),
        ppo("dppo_policy_loss", _dppo),
        ppo("compute_policy_loss_kl_cov", _kl_cov),
        ppo("cross_entropy_loss", _cross_entropy),
        ppo("importance_sampling_loss", _importance_sampling),
        ppo("ppo_critic_loss", _value_loss),
        ppo("compute_approx_kl", _kl),
        correction("compute_tis_ratio", _tis),
        correction("compute_sequence_mask", _sequence_mask),
        correction("compute_outlier_token_mask", _outlier),
        correction("compute_token_mask", _token_mask),
        correction("compute_off_policy_correction", _correction),
        Binding("logprobs_from_logits_v2", _places("logprobs_from_logits_v2", "torch_utils.py"), _logp),
        Binding("chunked_entropy_from_logits", _places("chunked_entropy_from_logits", "torch_utils.py"), _entropy),
        Binding("apply_reward_kl_penalty", tuple(Spec("RayPPOTrainer.apply_reward_kl_penalty", file=f) for f in TRAINER),
                _kl_in_reward),
        Binding("_normalize_advantages", tuple(Spec("RayPPOTrainer._normalize_advantages", file=f) for f in TRAINER),
                _normalize),
        Binding("compute_minibatch_rollout_logprob_diff_metrics",
                (Spec("compute_minibatch_rollout_logprob_diff_metrics",
                      file="skyrl/backends/skyrl_train/workers/worker_utils.py"),), _logprob_difference),
        Binding("convert_prompts_responses_to_batch_tensors",
                (Spec("convert_prompts_responses_to_batch_tensors", file="skyrl/train/dataset/preprocess.py"),), _collate),
    ),
    wheel="skyrl",
)  # fmt: skip

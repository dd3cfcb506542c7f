"""TRL's GRPOConfig (1.16) in our names."""

from typing import Any

from trimtab.convert.built import Built, common, counting, engine, group, sampled
from trimtab.convert.estimators import each_key
from trimtab.convert.options import Options
from trimtab.convert.trl_loss import is_gmpo_trainer, loss_and_keep, weighting_of
from trimtab.signal import KL, Stage, Term, part


def read(options: Options) -> Built:
    """What these options train with."""
    width = options.get("max_completion_length", 256, "train.max_new_tokens")
    kind = str(options.get("loss_type", "dapo", "loss and weighting", status="changed"))
    loss, keep = loss_and_keep(options, kind)
    built = Built("TRL", options, loss, weighting_of(options, kind, width), part("normalize.raw"))
    built.correct(*keep)
    _advantage(options, built)
    _terms(options, built)
    if options.switch("mask_truncated_completions", False, "not_ended = suppress", status="changed"):
        built.fields["not_ended"] = "suppress"
    _corrections(options, built)
    built.train["max_new_tokens"] = width
    common(
        built,
        {
            "num_generations": "samples_per_prompt",
            "temperature": "temperature",
            "learning_rate": "lr",
            "max_grad_norm": "grad_clip",
            "weight_decay": "weight_decay",
            "max_steps": "steps",
            "warmup_steps": "lr_warmup_steps",
        },
    )
    sampled(built, "top_p", "top_k")
    if built.train.get("steps", 1) <= 0:
        _ = built.train.pop("steps")
    _batch(options, built)
    options.rest()
    return built


def _advantage(options: Options, built: Built) -> None:
    std = options.get("scale_rewards", "group", "normalize.mean_std, std", status="changed")
    level = ("group" if std else "none") if isinstance(std, bool) else str(std)
    key = "multi_objective_aggregation"
    if options.get(key, "sum_then_normalize", "rewards are summed first") != "normalize_then_sum":
        built.normalize = group(level, eps=1e-4)
        return
    options.inert("scale_rewards", "multi_objective_aggregation = normalize_then_sum has a scale of its own")
    weights = options.get("reward_weights", None, "normalize.each_key, weights", status="changed")
    said = "whitening adds 1e-8 to the variance, theirs 1e-4 to the spread"
    each_key(options, key, built, weights, None, eps=1e-4, said=said)


def _terms(options: Options, built: Built) -> None:
    beta = options.number("beta", 0.0, "kl.coef")
    is_weighted = options.switch("use_bias_correction_kl", True, "kl.importance_weighted_k3", status="changed")
    is_gmpo = is_gmpo_trainer(options)
    if beta and is_weighted and not is_gmpo:
        by_sequence = options.get("importance_sampling_level", "token", status="changed") == "sequence"
        name = "kl.geometric_weighted_k3" if by_sequence else "kl.importance_weighted_k3"
        options.differs("use_bias_correction_kl", name)
        built.fields["kl"] = KL(part(name), coef=float(beta), into="loss", anchor="old")
    else:
        options.inert("use_bias_correction_kl", "the GMPO trainer has the plain k3" if is_gmpo else "beta is 0")
        built.fields["kl"] = KL(part("kl.k3"), coef=float(beta), into="loss") if beta else None
    entropy = options.number("entropy_coef", 0.0, "entropy.coef")
    if is_gmpo:
        options.inert("entropy_coef", "the GMPO trainer has no entropy bonus")
    else:
        built.fields["entropy"] = Term(coef=entropy) if entropy else None
    if options.get("use_adaptive_entropy", False, status="no equivalent"):
        options.warn("use_adaptive_entropy: the coefficient changes there and stays here.")
    _uncertain(options, built, is_gmpo=is_gmpo)


def _uncertain(options: Options, built: Built, *, is_gmpo: bool) -> None:
    """The loss of the tokens alone at which the policy is least certain."""
    key = "top_entropy_quantile"
    fraction = options.number(key, 1.0, "keep.high_entropy, fraction", status="changed")
    if fraction >= 1.0:
        return
    options.differs(key, "keep.high_entropy; of the whole optimiser step, theirs of each micro-batch")
    built.correct(Stage(part("keep.high_entropy", fraction=float(fraction))))
    if is_gmpo:
        built.weighting = counting(built.weighting, "kept")
    elif built.fields.get("entropy"):
        built.fields["entropy"] = Term(coef=built.fields["entropy"].coef, on="kept")


def _corrections(options: Options, built: Built) -> None:
    uses_vllm = options.switch("use_vllm", False, "the engine is chosen by train.engine", status="changed")
    if is_gmpo_trainer(options):
        for key in [one for one in options.given if one.startswith(("vllm_importance", "off_policy_mask_threshold"))]:
            options.inert(key, "the GMPO trainer does not read it")
        return
    on = options.switch("vllm_importance_sampling_correction", True, "correction", status="changed")
    mode = str(options.get("vllm_importance_sampling_mode", "sequence_mask", "correction", status="changed"))
    high = options.number(
        "vllm_importance_sampling_clip_max",
        options.number("vllm_importance_sampling_cap", 3.0, "band", status="changed"),
        "band",
        status="changed",
    )
    low = options.number("vllm_importance_sampling_clip_min", None, "band", status="changed")
    if not (uses_vllm and on):
        why = "use_vllm is off" if not uses_vllm else "vllm_importance_sampling_correction is off"
        for word in ("mode", "clip_max", "clip_min", "cap", *(["correction"] if on else [])):
            options.inert(f"vllm_importance_sampling_{word}", why)
    elif built.loss.part.formula.name == "policy_loss.gamma_weighted":
        built.loss = Stage(built.loss.part, anchor="rollout")
        key = "vllm_importance_sampling_mode" if options.has("vllm_importance_sampling_mode") else "use_vllm"
        options.differs(key, "loss.anchor = rollout; theirs bounds the ratio of each token to the sampler before")
        for word in ("clip_max", "clip_min", "cap"):
            options.tell(f"vllm_importance_sampling_{word}", "no equivalent", "gamma_weighted bounds no token's ratio")
    else:
        band = (0.0 if low is None else float(low), float("inf") if high is None else float(high))
        level = mode.partition("_")[0]
        if mode.endswith("truncate"):
            built.correct(engine("importance.truncated", level=level, band=band))
        else:
            formula = "keep.token_band" if level == "token" else "keep.product_band"
            built.correct(
                engine(formula, band=band), engine("importance.truncated", level=level, band=(0.0, float("inf")))
            )
    threshold = options.number("off_policy_mask_threshold", None, "keep.negative_drift, delta", status="changed")
    if threshold is not None:
        anchor: Any = "rollout" if uses_vllm else "old"
        built.correct(Stage(part("keep.negative_drift", delta=float(threshold)), anchor=anchor))


def _batch(options: Options, built: Built) -> None:
    """How many prompts a batch has, and how many optimiser steps it is cut into, with one device."""
    told = "train.prompts_per_step, with one device"
    rows = options.get("per_device_train_batch_size", 8, told, status="changed")
    steps = options.get("gradient_accumulation_steps", 1, told, status="changed")
    whole = options.get("generation_batch_size", None, "train.prompts_per_step", status="changed")
    held = options.get("steps_per_generation", None, "train.prompts_per_step and updates_per_batch", status="changed")
    passes = options.get("num_iterations", 1, "train.updates_per_batch", status="changed")
    answers = built.train.get("samples_per_prompt", 8)
    if not all(isinstance(one, int) for one in (rows, steps, answers, passes)):
        return
    drawn = whole if isinstance(whole, int) else rows * (held if isinstance(held, int) else steps)
    built.train["prompts_per_step"] = max(1, drawn // answers)
    built.train["updates_per_batch"] = max(1, round(drawn / (rows * steps)) * passes)

"""TRL's GRPOConfig (1.16) in our names."""

from typing import Any

from trimtab.convert.built import Built, common, engine, group, loss_of
from trimtab.convert.options import Options
from trimtab.signal import KL, Part, Stage, Term, part

MEANS = {
    "grpo": "weighting.sequence_mean_token_mean",
    "sapo": "weighting.sequence_mean_token_mean",
    "bnpo": "weighting.token_mean",
    "dapo": "weighting.token_mean",
    "cispo": "weighting.token_mean",
    "vespo": "weighting.token_mean",
    "dr_grpo": "weighting.constant_divisor",
    "luspo": "weighting.sequence_mean_token_sum",
}


def read(options: Options) -> Built:
    """What these options train with."""
    width = options.get("max_completion_length", 256, "train.max_new_tokens")
    kind = str(options.get("loss_type", "dapo", "loss and weighting", status="changed"))
    std = options.get("scale_rewards", "group", "normalize.mean_std, std", status="changed")
    level = ("group" if std else "none") if isinstance(std, bool) else str(std)
    built = Built("TRL", options, _loss(options, kind), _weighting(options, kind, width), group(level, eps=1e-4))
    if (
        options.get("multi_objective_aggregation", "sum_then_normalize", "rewards are summed first")
        != "sum_then_normalize"
    ):
        options.tell("multi_objective_aggregation", "no equivalent", "rewards are summed first")
        options.warn("multi_objective_aggregation = normalize_then_sum: rewards are summed first here. Check it.")
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
    if built.train.get("steps", 1) <= 0:
        _ = built.train.pop("steps")
    _batch(options, built)
    options.rest()
    return built


def _loss(options: Options, kind: str) -> Stage:
    low = options.number("epsilon", 0.2, "band", status="changed")
    high = options.number("epsilon_high", None, "band", status="changed")
    delta = options.number("delta", None, "cap of policy_loss.dual_clipped", status="changed")
    level = options.get("importance_sampling_level", "token", "loss", status="changed")
    band = (1 - low, 1 + (low if high is None else high))
    if kind == "cispo":
        options.inert("epsilon", "loss_type = cispo reads epsilon_high alone, as an absolute bound")
        return loss_of("clipped_importance", band=(0.0, float(low if high is None else high)))
    if kind == "sapo":
        for key in ("epsilon", "epsilon_high", "delta"):
            options.inert(key, "loss_type = sapo does not clip")
        return loss_of(
            "soft_gated", temperature_positive=options.number("sapo_temperature_pos", 1.0),
            temperature_negative=options.number("sapo_temperature_neg", 1.05),
        )  # fmt: skip
    if kind == "vespo":
        names = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
        for key, usual in names.items():
            if options.number(key, usual) != usual:
                options.tell(key, "no equivalent", "the published constants are written")
                options.warn(f"{key}: the published constants are written. Check it.")
        return loss_of("gamma_weighted")
    if level == "sequence":
        return loss_of("geometric_clipped", band=band)
    return loss_of("clipped", band=band) if delta is None else loss_of("dual_clipped", band=band, cap=delta)


def _weighting(options: Options, kind: str, width: int) -> Part:
    if kind not in MEANS:
        options.tell("loss_type", "no equivalent", "weighting.token_mean is written")
        options.warn(f"loss_type = {kind} is not known here: dapo's is written. Check it.")
        return part("weighting.token_mean")
    if kind == "bnpo":
        options.warn(
            "loss_type = bnpo divides by the tokens of each micro-batch, so it depends on how a step is cut. "
            "token_mean over the step is written."
        )
    return part(MEANS[kind], divisor=float(width)) if kind == "dr_grpo" else part(MEANS[kind])


def _terms(options: Options, built: Built) -> None:
    beta = options.number("beta", 0.0, "kl.coef")
    is_weighted = options.switch("use_bias_correction_kl", True, "kl.importance_weighted_k3", status="changed")
    if beta:
        formula = part("kl.importance_weighted_k3" if is_weighted else "kl.k3")
        built.fields["kl"] = KL(formula, coef=float(beta), into="loss", anchor="old" if is_weighted else None)
    else:
        options.inert("use_bias_correction_kl", "beta is 0")
    entropy = options.number("entropy_coef", 0.0, "entropy.coef")
    built.fields["entropy"] = Term(coef=entropy) if entropy else None
    if options.get("use_adaptive_entropy", False, status="no equivalent"):
        options.warn("use_adaptive_entropy: the coefficient changes there and stays here.")
    if options.number("top_entropy_quantile", 1.0, status="no equivalent") < 1.0:
        options.warn("top_entropy_quantile has no equivalent in this converter.")


def _corrections(options: Options, built: Built) -> None:
    uses_vllm = options.switch("use_vllm", False, "the engine is chosen by train.engine", status="changed")
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
    rows = options.get("per_device_train_batch_size", 8, "train.prompts_per_step, with one device", status="changed")
    steps = options.get("gradient_accumulation_steps", 1, "train.prompts_per_step, with one device", status="changed")
    whole = options.get("generation_batch_size", None, "train.prompts_per_step", status="changed")
    passes = options.get("num_iterations", 1, "train.updates_per_batch", status="changed")
    answers = built.train.get("samples_per_prompt", 8)
    if all(isinstance(one, int) for one in (rows, steps, answers)):
        built.train["prompts_per_step"] = max(1, (whole if isinstance(whole, int) else rows * steps) // answers)
    if isinstance(passes, int):
        built.train["updates_per_batch"] = passes

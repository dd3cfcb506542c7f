"""NeMo-RL's YAML in our names."""

from trimtab.convert.built import Built, common, engine, group, kl_of, loss_of
from trimtab.convert.options import Options
from trimtab.signal import part


def read(options: Options) -> Built:
    """What this file trains with."""
    low = options.number("loss_fn.ratio_clip_min", 0.2, "band", status="changed")
    high = options.number("loss_fn.ratio_clip_max", 0.2, "band", status="changed")
    cap = options.number("loss_fn.ratio_clip_c", None, "cap of policy_loss.dual_clipped", status="changed")
    by_sequence = options.switch(
        "loss_fn.sequence_level_importance_ratios", False, "policy_loss.geometric_clipped", status="changed"
    )
    is_token = options.switch("loss_fn.token_level_loss", True, "weighting", status="changed")
    band = (1 - low, 1 + high)
    if options.switch("loss_fn.disable_ppo_ratio", False, "policy_loss.reinforce", status="changed"):
        loss = loss_of("reinforce", anchor=None)
    elif options.switch("loss_fn.use_cispo", False, "policy_loss.clipped_importance", status="changed"):
        loss = loss_of("clipped_importance", band=band)
    elif by_sequence:
        loss = loss_of("geometric_clipped", band=band)
    else:
        loss = loss_of("clipped", band=band) if cap is None else loss_of("dual_clipped", band=band, cap=cap)
    weighting = part("weighting.token_mean" if is_token else "weighting.sequence_mean_token_mean")
    built = Built("NeMo-RL", options, loss, weighting, part("normalize.raw"))
    _advantage(options, built)
    _terms(options, built)
    _corrections(options, built)
    if options.switch("loss_fn.force_on_policy_ratio", False, 'old = "current"', status="changed"):
        built.fields["old"] = "current"
    if options.switch("grpo.overlong_filtering", False, "not_ended = suppress", status="changed"):
        built.fields["not_ended"] = "suppress"
    if options.switch("grpo.use_dynamic_sampling", False, "filter_constant_groups", status="changed"):
        built.fields["filter_constant_groups"] = True
        built.train["dynamic_sampling"] = options.get(
            "grpo.dynamic_sampling_max_gen_batches", 10, "train.dynamic_sampling"
        )
    else:
        options.inert("grpo.dynamic_sampling_max_gen_batches", "use_dynamic_sampling is off")
    _shaping(options, built)
    common(
        built,
        {
            "grpo.num_prompts_per_step": "prompts_per_step",
            "grpo.num_generations_per_prompt": "samples_per_prompt",
            "grpo.max_num_steps": "steps",
            "policy.generation.max_new_tokens": "max_new_tokens",
            "policy.generation.temperature": "temperature",
            "policy.optimizer.kwargs.lr": "lr",
            "policy.max_grad_norm": "grad_clip",
            "policy.optimizer.kwargs.weight_decay": "weight_decay",
            "grpo.async_grpo.max_trajectory_age_steps": "staleness",
        },
    )
    if not options.switch("grpo.async_grpo.enabled", False, "train.staleness", status="changed"):
        options.inert("grpo.async_grpo.max_trajectory_age_steps", "async_grpo is off")
        _ = built.train.pop("staleness", None)
    options.rest()
    return built


def _advantage(options: Options, built: Built) -> None:
    std = options.switch("grpo.normalize_rewards", True, "normalize.mean_std, std", status="changed")
    is_apart = options.switch("grpo.use_leave_one_out_baseline", True, "normalize", status="changed")
    name = str(options.get("grpo.adv_estimator.name", "grpo", "normalize and advantage", status="changed"))
    std = options.switch("grpo.adv_estimator.normalize_rewards", std, "normalize.mean_std, std", status="changed")
    is_apart = options.switch("grpo.adv_estimator.use_leave_one_out_baseline", is_apart, "normalize", status="changed")
    minus = options.switch("grpo.adv_estimator.minus_baseline", True, "normalize", status="changed")
    if name == "reinforce_plus_plus":
        built.normalize = group("none") if minus else part("normalize.raw")
        built.fields["whiten"] = True
    elif name == "grpo" and is_apart:
        built.normalize = part("normalize.leave_one_out")
        if std:
            options.warn(
                "normalize_rewards with use_leave_one_out_baseline divides by the spread of the other answers: "
                "leave_one_out without a scale is written. Check it."
            )
    elif name == "grpo":
        built.normalize = group("group" if std else "none")
    else:
        options.tell("grpo.adv_estimator.name", "no equivalent", "no baseline is written here; choose one of normalize")
        options.warn(
            f"adv_estimator.name = {name} has no equivalent in this converter, so no baseline is written. Choose one."
        )
    if name != "reinforce_plus_plus":
        options.inert("grpo.adv_estimator.minus_baseline", "it is read by reinforce_plus_plus alone")
    low, high = (
        options.number("grpo.advantage_clip_low", None, "clip_advantage", status="changed"),
        options.number("grpo.advantage_clip_high", None, "clip_advantage", status="changed"),
    )
    if high is not None:
        built.fields["clip_advantage"] = float(high)
        if low is not None and low != -high:
            options.warn(
                "advantage_clip_low and advantage_clip_high differ in size: the upper bound is written for both "
                "sides. Check it."
            )


def _terms(options: Options, built: Built) -> None:
    coef = options.number("loss_fn.reference_policy_kl_penalty", 0.01, "kl.coef")
    kind = str(options.get("loss_fn.reference_policy_kl_type", "k3", "kl", status="changed"))
    for key in ("loss_fn.kl_input_clamp_value", "loss_fn.kl_output_clamp_value"):
        _ = options.get(key, None, "the exponent is bounded to ±20 here", status="changed")
    if not coef:
        options.inert("loss_fn.reference_policy_kl_type", "reference_policy_kl_penalty is 0")
    into = "token_reward" if options.switch("loss_fn.use_kl_in_reward", False, "kl, into", status="changed") else "loss"
    if into != "loss" and built.advantage.formula.name == "advantage.broadcast":
        into = "sequence_reward"
    if (
        options.switch(
            "loss_fn.use_on_policy_kl_approximation",
            False,
            "kl.importance_weighted_k3, anchor = rollout",
            status="changed",
        )
        and coef
    ):
        from trimtab.signal import KL

        built.fields["kl"] = KL(part("kl.importance_weighted_k3"), coef=float(coef), into="loss", anchor="rollout")
    else:
        built.fields["kl"] = kl_of(options, "loss_fn.reference_policy_kl_type", kind, coef, into)
    if options.number("loss_fn.positive_example_nll_weight", 0.0, status="no equivalent"):
        options.warn("positive_example_nll_weight has no equivalent in this converter.")


def _corrections(options: Options, built: Built) -> None:
    on = options.switch("loss_fn.use_importance_sampling_correction", False, "correction on engine", status="changed")
    high = options.number("loss_fn.truncated_importance_sampling_ratio", None, "band", status="changed")
    low = options.number("loss_fn.truncated_importance_sampling_ratio_min", None, "band", status="changed")
    kind = options.get("loss_fn.truncated_importance_sampling_type", None, "correction", status="changed")
    if options.number("grpo.seq_logprob_error_threshold", None, "keep.divergence", status="changed") is not None:
        options.tell("grpo.seq_logprob_error_threshold", "no equivalent", "see keep.divergence")
        options.warn("seq_logprob_error_threshold is not written. See keep.divergence.")
    if not on:
        for key in (
            "truncated_importance_sampling_ratio",
            "truncated_importance_sampling_ratio_min",
            "truncated_importance_sampling_type",
        ):
            if options.given.get(f"loss_fn.{key}") is not None and options.given[f"loss_fn.{key}"].value is not None:
                options.inert(f"loss_fn.{key}", "use_importance_sampling_correction is off")
        return
    band = (float(low or 0.0), float("inf") if high is None else float(high))
    free = engine("importance.truncated", level="token", band=(0.0, float("inf")))
    if kind == "icepop":
        built.correct(engine("keep.token_band", band=band), free)
    elif kind == "seq-mask-tis":
        built.correct(engine("keep.geometric_band", band=band), free)
    else:
        built.correct(engine("importance.truncated", level="token", band=band))


def _shaping(options: Options, built: Built) -> None:
    start = "grpo.reward_shaping."
    is_on = options.switch(f"{start}enabled", False, "reward.soft_overlong", status="changed")
    length = options.number(f"{start}overlong_buffer_length", None, "buffer", status="changed")
    factor = options.number(f"{start}overlong_buffer_penalty", 1.0, "factor", status="changed")
    width = options.get(f"{start}max_response_length", None, "max_length", status="changed")
    if is_on and length and isinstance(width, int):
        built.fields["reward"] = (
            part("reward.soft_overlong", max_length=width, buffer=int(length), factor=float(factor)),
        )
    if not is_on:
        for key in (
            "overlong_buffer_length",
            "overlong_buffer_penalty",
            "max_response_length",
            "stop_properly_penalty_coef",
        ):
            options.inert(start + key, "reward_shaping is off")
    start = "grpo.reward_scaling."
    scaled = options.switch(f"{start}enabled", False, "reward.affine", status="changed")
    ends = [options.number(f"{start}{one}", usual, "reward.affine", status="changed") for one, usual in
            (("source_min", 0.0), ("source_max", 1.0), ("target_min", 0.0), ("target_max", 1.0))]  # fmt: skip
    if scaled:
        scale = (ends[3] - ends[2]) / (ends[1] - ends[0])
        more = (
            part("reward.clip", low=float(ends[0]), high=float(ends[1])),
            part("reward.affine", bias=float(ends[2] / scale - ends[0]), scale=float(scale)),
        )
        built.fields["reward"] = (*more, *built.fields.get("reward", ()))
    else:
        for one in ("source_min", "source_max", "target_min", "target_max"):
            options.inert(start + one, "reward_scaling is off")

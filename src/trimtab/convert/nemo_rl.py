"""NeMo-RL's YAML in our names."""

from trimtab.convert.built import KLS, Built, common, engine, kl_of, loss_of, sampled
from trimtab.convert.nemo_credit import advantage
from trimtab.convert.options import Options
from trimtab.signal import KL, Term, part


def read(options: Options) -> Built:
    """What this file trains with."""
    low = options.number("loss_fn.ratio_clip_min", 0.2, "band", status="changed")
    high = options.number("loss_fn.ratio_clip_max", 0.2, "band", status="changed")
    cap = options.number("loss_fn.ratio_clip_c", None, "cap of policy_loss.dual_clipped", status="changed")
    by_sequence = options.switch(
        "loss_fn.sequence_level_importance_ratios", False, "policy_loss.geometric_clipped", status="changed"
    )
    is_token = options.switch("loss_fn.token_level_loss", True, "weighting", status="changed")
    band = (max(0.0, 1 - low), 1 + high)
    if options.switch("loss_fn.disable_ppo_ratio", False, "policy_loss.reinforce", status="changed"):
        loss = loss_of("reinforce", anchor=None)
    elif options.switch("loss_fn.use_cispo", False, "policy_loss.clipped_importance", status="changed"):
        loss = loss_of("clipped_importance", band=band)
    elif by_sequence:
        loss = loss_of("geometric_clipped", band=band)
        if cap is not None:
            options.lost("loss_fn.ratio_clip_c", "there is no dual clip of a sequence's ratio",
                         "ratio_clip_c with sequence_level_importance_ratios: not written. Check it.")  # fmt: skip
    else:
        loss = loss_of("clipped", band=band) if cap is None else loss_of("dual_clipped", band=band, cap=cap)
    weighting = part("weighting.token_mean" if is_token else "weighting.sequence_mean_token_mean")
    built = Built("NeMo-RL", options, loss, weighting, part("normalize.raw"))
    start = "ppo." if any(key.startswith("ppo.") for key in options.given) else "grpo."
    asynchronous = f"{start}async_{start}"
    advantage(options, built, start)
    if options.switch("loss_fn.force_on_policy_ratio", False, 'old = "current"', status="changed"):
        built.fields["old"] = "current"
    _terms(options, built)
    _corrections(options, built, start, by_sequence=by_sequence)
    if options.switch(f"{start}overlong_filtering", False, "not_ended = suppress", status="changed"):
        built.fields["not_ended"] = "suppress"
    if options.switch(f"{start}use_dynamic_sampling", False, "filter_constant_groups", status="changed"):
        built.fields["filter_constant_groups"] = True
        built.train["dynamic_sampling"] = options.get(
            f"{start}dynamic_sampling_max_gen_batches", 10, "train.dynamic_sampling"
        )
    else:
        options.inert(f"{start}dynamic_sampling_max_gen_batches", "use_dynamic_sampling is off")
    _shaping(options, built, start)
    common(
        built,
        {
            f"{start}num_prompts_per_step": "prompts_per_step",
            f"{start}num_generations_per_prompt": "samples_per_prompt",
            f"{start}max_num_steps": "steps",
            "policy.generation.max_new_tokens": "max_new_tokens",
            "policy.generation.temperature": "temperature",
            "policy.optimizer.kwargs.lr": "lr",
            "policy.max_grad_norm": "grad_clip",
            "policy.optimizer.kwargs.weight_decay": "weight_decay",
            f"{asynchronous}max_trajectory_age_steps": "staleness",
        },
    )
    sampled(built, "policy.generation.top_p", "policy.generation.top_k")
    if not options.switch(f"{asynchronous}enabled", False, "train.staleness", status="changed"):
        options.inert(f"{asynchronous}max_trajectory_age_steps", "it is not asynchronous")
        _ = built.train.pop("staleness", None)
    options.rest()
    return built


def _terms(options: Options, built: Built) -> None:
    coef = options.number("loss_fn.reference_policy_kl_penalty", 0.01, "kl.coef")
    kind = str(options.get("loss_fn.reference_policy_kl_type", "k3", "kl", status="changed"))
    for key in ("loss_fn.kl_input_clamp_value", "loss_fn.kl_output_clamp_value"):
        _ = options.get(key, None, "the exponent is bounded to ±20 here", status="changed")
    if not coef:
        options.inert("loss_fn.reference_policy_kl_type", "reference_policy_kl_penalty is 0")
    in_reward = options.switch("loss_fn.use_kl_in_reward", False, "kl, into", status="changed")
    is_weighed = options.switch(
        "loss_fn.use_on_policy_kl_approximation", False, "kl.importance_weighted_…, anchor = rollout", status="changed"
    )
    if in_reward or not coef:
        options.inert("loss_fn.use_on_policy_kl_approximation", "there is no KL in the loss")
    if in_reward:
        is_to_go = built.advantage.formula.name != "advantage.broadcast"
        into = "token_reward" if is_to_go else "sequence_reward"
        built.fields["kl"] = kl_of(options, "loss_fn.reference_policy_kl_type", kind, coef, into)
        if not is_to_go and coef:
            options.differs("loss_fn.use_kl_in_reward", "kl, into = sequence_reward; theirs is each token's own")
    elif coef:
        built.fields["kl"] = _in_loss(options, built, kind, float(coef), is_weighed=is_weighed)
    key = "loss_fn.positive_example_nll_weight"
    if weight := options.number(key, 0.0, "nll, on = rewarded", status="changed"):
        built.fields["nll"] = Term(coef=float(weight), on="rewarded")
        more = "" if built.weighting.formula.name == "weighting.token_mean" else "; theirs is a mean over tokens always"
        options.differs(key, f"nll, on = rewarded; its tokens are the optimiser step's, theirs a micro-batch's{more}")


def _in_loss(options: Options, built: Built, kind: str, coef: float, *, is_weighed: bool) -> KL | None:
    """A KL with the gradient of the samples it is averaged over, as NeMo-RL always has it (arXiv:2506.09477)."""
    key = "loss_fn.reference_policy_kl_type"
    written = kl_of(options, key, kind, coef, "loss")
    name = KLS.get(kind, "kl.k3").removeprefix("kl.")
    if is_weighed:
        return KL(part(f"kl.importance_weighted_{name}"), coef=coef, into="loss", anchor="rollout")
    if name == "k2" or written is None:
        options.differs(key, "kl.importance_weighted_k2, anchor = old; the same on the first step of a batch")
        return KL(part("kl.importance_weighted_k2"), coef=coef, into="loss", anchor="old")
    # exp(x - sg(x)) * k3 has the slope k3 + 1 - exp(-d) = d, which is that of k2; k1 has d + 1, and the 1 has mean 0.
    more = "" if name == "k3" else "; theirs adds a slope of 1 to it, whose mean is 0"
    options.differs(key, f"kl.k2_gradient: their score-function term makes it that{more}")
    return KL(part("kl.k2_gradient", value=name), coef=coef, into="loss")


def _corrections(options: Options, built: Built, start: str, *, by_sequence: bool) -> None:
    on = options.switch("loss_fn.use_importance_sampling_correction", False, "correction on engine", status="changed")
    high = options.number("loss_fn.truncated_importance_sampling_ratio", None, "band", status="changed")
    low = options.number("loss_fn.truncated_importance_sampling_ratio_min", None, "band", status="changed")
    kind = options.get("loss_fn.truncated_importance_sampling_type", None, "correction", status="changed")
    limit = options.number(f"{start}seq_logprob_error_threshold", None, "keep.divergence", status="changed")
    if limit is not None:
        options.differs(f"{start}seq_logprob_error_threshold", "keep.divergence, measure = exp_distance")
        built.correct(engine("keep.divergence", limit=float(limit), measure="exp_distance", total="mean"))
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
    level = "sequence" if by_sequence else "token"
    free = engine("importance.truncated", level=level, band=(0.0, float("inf")))
    if kind == "icepop":
        built.correct(engine("keep.product_band" if by_sequence else "keep.token_band", band=band), free)
    elif kind == "seq-mask-tis":
        built.correct(engine("keep.geometric_band", band=band), free)
    else:
        built.correct(engine("importance.truncated", level=level, band=band))


def _shaping(options: Options, built: Built, at: str) -> None:
    start = f"{at}reward_shaping."
    is_on = options.switch(f"{start}enabled", False, "reward.soft_overlong", status="changed")
    length = options.number(f"{start}overlong_buffer_length", None, "buffer", status="changed")
    factor = options.number(f"{start}overlong_buffer_penalty", 1.0, "factor", status="changed")
    width = options.get(f"{start}max_response_length", None, "max_length", status="changed")
    coef = options.number(f"{start}stop_properly_penalty_coef", None, "reward.not_ended_scale", status="changed")
    if is_on and coef is not None:
        built.fields["reward"] = (part("reward.not_ended_scale", factor=float(coef)),)
        for key in ("overlong_buffer_length", "overlong_buffer_penalty", "max_response_length"):
            options.inert(start + key, "stop_properly_penalty_coef is set")
    elif is_on and length and isinstance(width, int):
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
    start = f"{at}reward_scaling."
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

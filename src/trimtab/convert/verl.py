"""verl's options (0.9.1) in our names."""

from trimtab.convert.built import Built, common, divided, engine, estimator, group, kl_of, loss_of
from trimtab.convert.options import Options
from trimtab.errors import AdapterError
from trimtab.signal import Term, part

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
CORRECTION = "algorithm.rollout_correction."
MEANS = {
    "token-mean": "weighting.token_mean",
    "seq-mean-token-mean": "weighting.sequence_mean_token_mean",
    "seq-mean-token-sum": "weighting.sequence_mean_token_sum",
    "token-sum": "weighting.token_sum",
    "seq-mean-token-sum-norm": "weighting.constant_divisor",
}


def read(options: Options) -> Built:
    """What these options train with."""
    width = options.get("data.max_response_length", 512, "train.max_new_tokens")
    built = Built("verl", options, _loss(options), _weighting(options, width), part("normalize.raw"))
    gamma = options.number("algorithm.gamma", 1.0)
    lam = options.number("algorithm.lam", 1.0)
    name = str(options.get("algorithm.adv_estimator", "gae", "normalize and advantage", status="changed"))
    std = "group" if options.switch("algorithm.norm_adv_by_std_in_grpo", True, "normalize.mean_std, std") else "none"
    estimator(options, "algorithm.adv_estimator", built, name, std=group(std), gamma=gamma, lam=lam)
    if name not in ("gae", "reinforce_plus_plus"):
        options.inert("algorithm.gamma", f"adv_estimator = {name} does not discount")
    if name != "gae":
        options.inert("algorithm.lam", f"adv_estimator = {name} has no lambda")
    if not name.startswith("grpo"):
        options.inert("algorithm.norm_adv_by_std_in_grpo", f"adv_estimator = {name} does not read it")
    if built.fields.get("value"):
        band = options.number("critic.cliprange_value", 0.5, "value_loss.squared_clipped, reach")
        built.fields["value"] = Term(coef=1.0, part=part("value_loss.squared_clipped", reach=band))
    _kl(options, built, name)
    entropy = options.number(f"{ACTOR}entropy_coeff", 0.0)
    built.fields["entropy"] = Term(coef=entropy) if entropy else None
    built.fields["filter_constant_groups"] = options.switch(
        "algorithm.filter_groups.enable", False, "filter_constant_groups"
    )
    if built.fields["filter_constant_groups"]:
        built.train["dynamic_sampling"] = (
            options.get("algorithm.filter_groups.max_num_gen_batches", 0, "train.dynamic_sampling") or 10
        )
        _ = options.get("algorithm.filter_groups.metric", None, "groups are compared by their reward", status="changed")
    _corrected(options, built)
    _overlong(options, built)
    built.train["max_new_tokens"] = width
    common(
        built,
        {
            "data.train_batch_size": "prompts_per_step",
            f"{ROLLOUT}n": "samples_per_prompt",
            f"{ROLLOUT}temperature": "temperature",
            f"{ACTOR}optim.lr": "lr",
            f"{ACTOR}grad_clip": "grad_clip",
            f"{ACTOR}optim.weight_decay": "weight_decay",
            f"{ACTOR}optim.lr_warmup_steps": "lr_warmup_steps",
            "trainer.total_training_steps": "steps",
        },
    )
    epochs = options.number(f"{ACTOR}ppo_epochs", 1, "in train.updates_per_batch", status="changed")
    steps = divided(options, "data.train_batch_size", f"{ACTOR}ppo_mini_batch_size", epochs=epochs)
    options.tell(
        f"{ACTOR}ppo_mini_batch_size", "changed", "train.updates_per_batch = train_batch_size / it x ppo_epochs"
    )
    if steps:
        built.train["updates_per_batch"] = steps
    options.rest(dotted=True)
    return built


def _loss(options: Options):
    mode = str(options.get(f"{ACTOR}policy_loss.loss_mode", "vanilla", "loss", status="changed"))
    both = options.number(f"{ACTOR}clip_ratio", 0.2, "band", status="changed")
    low = options.number(f"{ACTOR}clip_ratio_low", None, "band", status="changed")
    high = options.number(f"{ACTOR}clip_ratio_high", None, "band", status="changed")
    if low is not None and high is not None:
        options.inert(f"{ACTOR}clip_ratio", "clip_ratio_low and clip_ratio_high are both set")
    low, high = both if low is None else low, both if high is None else high
    cap = options.number(f"{ACTOR}clip_ratio_c", 3.0, "cap of policy_loss.dual_clipped", status="changed")
    if mode != "vanilla":
        options.inert(f"{ACTOR}clip_ratio_c", f"loss_mode = {mode} has no dual clip")
    match mode:
        case "vanilla":
            return loss_of("dual_clipped", band=(1 - low, 1 + high), cap=cap)
        case "gspo":
            return loss_of("geometric_clipped_token", band=(1 - low, 1 + high))
        case "cispo":
            return loss_of("clipped_importance", band=(max(0.0, 1 - low), 1 + high))
        case "gpg":
            return loss_of("reinforce", anchor=None)
        case "sapo":
            return loss_of(
                "soft_gated",
                temperature_positive=options.number(f"{ACTOR}tau_pos", 1.0, "temperature_positive"),
                temperature_negative=options.number(f"{ACTOR}tau_neg", 1.05, "temperature_negative"),
            )
        case "clip_cov":
            inner = f"{ACTOR}policy_loss."
            return loss_of(
                "covariance_clipped", band=(1 - low, 1 + high), fraction=options.number(f"{inner}clip_cov_ratio", 2e-4),
                covariance_low=float(options.number(f"{inner}clip_cov_lb", 1.0)),
                covariance_high=float(options.number(f"{inner}clip_cov_ub", 5.0)),
            )  # fmt: skip
        case "kl_cov":
            inner = f"{ACTOR}policy_loss."
            return loss_of(
                "covariance_penalised", fraction=options.number(f"{inner}kl_cov_ratio", 2e-4),
                coef=options.number(f"{inner}ppo_kl_coef", 0.1),
            )  # fmt: skip
        case _:
            options.tell(
                f"{ACTOR}policy_loss.loss_mode", "no equivalent", "policy_loss.dual_clipped is written instead"
            )
            options.warn(
                f"loss_mode = {mode} has no equivalent in this converter: verl's default loss is written. Check it."
            )
            return loss_of("dual_clipped", band=(1 - low, 1 + high), cap=cap)


def _weighting(options: Options, width: int):
    mode = str(options.get(f"{ACTOR}loss_agg_mode", "token-mean", "weighting", status="changed"))
    if mode not in MEANS:
        options.tell(f"{ACTOR}loss_agg_mode", "no equivalent", "weighting.token_mean is written instead")
        options.warn(f"loss_agg_mode = {mode} is not known here: token_mean is written. Check it.")
        return part("weighting.token_mean")
    scale = options.number(f"{ACTOR}loss_scale_factor", None, "divisor of weighting.constant_divisor", status="changed")
    if mode == "seq-mean-token-sum-norm":
        return part(MEANS[mode], divisor=float(scale or width))
    return part(MEANS[mode])


def _kl(options: Options, built: Built, name: str) -> None:
    in_loss = options.switch(f"{ACTOR}use_kl_loss", False, "kl, into = loss", status="changed")
    in_reward = options.switch(
        "algorithm.use_kl_in_reward", False, "kl, into = token_reward or sequence_reward", status="changed"
    )
    coef = options.number(f"{ACTOR}kl_loss_coef", 0.001, "kl.coef")
    kind = str(options.get(f"{ACTOR}kl_loss_type", "low_var_kl", "kl", status="changed"))
    reward_coef = options.number("algorithm.kl_ctrl.kl_coef", 0.001, "kl.coef")
    reward_kind = str(options.get("algorithm.kl_penalty", "kl", "kl", status="changed"))
    if not in_loss:
        options.inert(f"{ACTOR}kl_loss_coef", "use_kl_loss is off")
        options.inert(f"{ACTOR}kl_loss_type", "use_kl_loss is off")
    if not in_reward:
        options.inert("algorithm.kl_ctrl.kl_coef", "use_kl_in_reward is off")
        options.inert("algorithm.kl_penalty", "use_kl_in_reward is off")
    if str(options.get("algorithm.kl_ctrl.type", "fixed", "a fixed coefficient")) == "adaptive" and in_reward:
        options.tell("algorithm.kl_ctrl.type", "no equivalent", "the coefficient stays as it starts")
        options.warn("algorithm.kl_ctrl.type = adaptive: the coefficient changes there and stays here.")
    if in_loss and in_reward:
        options.warn(
            "use_kl_loss and use_kl_in_reward are both on: the same distance is paid twice. Only the one in the "
            "loss is written."
        )
    if in_loss:
        built.fields["kl"] = kl_of(options, f"{ACTOR}kl_loss_type", kind, coef, "loss")
    elif in_reward:
        into = "token_reward" if name in ("gae", "reinforce_plus_plus") else "sequence_reward"
        built.fields["kl"] = kl_of(options, "algorithm.kl_penalty", reward_kind, reward_coef, into)


def _corrected(options: Options, built: Built) -> None:
    from trimtab.integrations.verl import own_correction

    keys = {key.removeprefix(CORRECTION): one for key, one in options.given.items() if key.startswith(CORRECTION)}
    if not keys:
        return
    for key in keys:
        options.tell(CORRECTION + key, "changed", "correction")
    asked = {name: one.value for name, one in keys.items()}
    if asked.get("rollout_is") is None:
        options.inert(f"{CORRECTION}rollout_is_threshold", "rollout_is is not set")
    if asked.get("rollout_rs") is None:
        options.inert(f"{CORRECTION}rollout_rs_threshold", "rollout_rs is not set")
    if asked.get("bypass_mode"):
        built.loss = (
            loss_of(
                built.loss.part.formula.name.removeprefix("policy_loss."), anchor="rollout", **built.loss.part.settings
            )
            if built.loss.anchor
            else built.loss
        )
        built.fields["old"] = "absent"
        options.tell(f"{CORRECTION}bypass_mode", "changed", 'loss.anchor = "rollout", old = "absent"')
        return
    bound = str(asked.get("rollout_is_threshold", ""))
    if asked.get("rollout_is") and "_" in bound:
        low, high = (float(one) for one in bound.split("_"))
        built.correct(
            engine("keep.token_band", band=(low, high)),
            engine("importance.truncated", level="token", band=(0.0, float("inf"))),
        )
        return
    if asked.get("rollout_is") or asked.get("rollout_rs"):
        try:
            built.correct(*own_correction(asked).correction)
        except AdapterError as error:
            for key in keys:
                options.told.pop(CORRECTION + key, None)
                options.tell(CORRECTION + key, "no equivalent", str(error))
            options.warn(f"rollout_correction: {error} No correction is written.")


def _overlong(options: Options, built: Built) -> None:
    for start in (
        "reward_model.overlong_buffer.",
        "reward_model.reward_kwargs.overlong_buffer_cfg.",
        "reward.reward_kwargs.overlong_buffer_cfg.",
    ):
        if not any(key.startswith(start) for key in options.given):
            continue
        on = options.switch(f"{start}enable", False, "reward.soft_overlong", status="changed")
        length = options.number(f"{start}len", 0, "reward.soft_overlong, buffer", status="changed")
        factor = options.number(f"{start}penalty_factor", 1.0, "reward.soft_overlong, factor", status="changed")
        _ = options.get(f"{start}log", None, "every metric is logged here", status="changed")
        width = options.get("data.max_response_length", 512)
        if on and length:
            built.fields["reward"] = (
                part("reward.soft_overlong", max_length=int(width), buffer=int(length), factor=float(factor)),
            )

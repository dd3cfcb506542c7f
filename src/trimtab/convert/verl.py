"""verl's options (0.9.1) in our names."""

from typing import Any

from trimtab.convert.built import Built, common, divided, engine, estimator, group, kl_of, loss_of
from trimtab.convert.given import Given
from trimtab.convert.options import Options
from trimtab.convert.verl_loss import ACTOR, OWN_MEAN, policy_loss, reach, weighting
from trimtab.errors import AdapterError
from trimtab.signal import Stage, Term, part

ROLLOUT = "actor_rollout_ref.rollout."
CORRECTION = "algorithm.rollout_correction."


def read(options: Options) -> Built:
    """What these options train with."""
    width = options.get("data.max_response_length", 512, "train.max_new_tokens")
    built = Built("verl", options, policy_loss(options), weighting(options, width), part("normalize.raw"))
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
    mode = str(options.get(f"{ACTOR}policy_loss.loss_mode", "vanilla"))
    agg = str(options.get(f"{ACTOR}loss_agg_mode", "token-mean"))
    if mode in OWN_MEAN and (built.fields.get("kl") or built.fields["entropy"]) and agg != "seq-mean-token-mean":
        options.warn(f"loss_mode = {mode} takes its mean over sequences, and verl weighs the KL and the entropy by "
                     f"loss_agg_mode = {agg}. Here all are weighed by sequences. Check the coefficients.")  # fmt: skip
    _corrected(options, built)
    _overlong(options, built)
    _distilled(options)
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
    if built.train.get("prompts_per_step", 1) <= 0:  # the fully asynchronous trainer takes answers as they come
        _ = built.train.pop("prompts_per_step"), built.train.pop("updates_per_batch", None)
        options.tell("data.train_batch_size", "outside", "0: the asynchronous trainer takes answers as they come")
    options.rest(dotted=True)
    return built


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
    if _is_apart(options) and "bypass_mode" not in keys:
        keys["bypass_mode"] = Given("bypass_mode", True)  # the default of those trainers' own files
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
        _bypassed(options, built, asked)
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
            _refused(options, asked, error)


def _is_apart(options: Options) -> bool:
    """Whether one of the trainers runs that sample on machines of their own."""
    return str(options.get("config_name", "")).startswith(("fully_async", "one_step_off"))


def _bypassed(options: Options, built: Built, asked: dict[str, Any]) -> None:
    """Without a logp_old of the trainer: the ratio is current/rollout. How the rest is read depends on the trainer."""
    built.fields["old"] = "absent"
    options.tell(f"{CORRECTION}bypass_mode", "changed", 'loss.anchor = "rollout", old = "absent"')
    if _is_apart(options) or not options.switch("trainer.use_v1", True, "how bypass_mode is read", status="changed"):
        _bypassed_with_correction(options, built, asked)
        return
    if built.loss.anchor:
        built.loss = Stage(built.loss.part, anchor="rollout")
    for key in asked:
        if key != "bypass_mode":
            options.inert(f"{CORRECTION}{key}", "with bypass_mode, verl's default trainer (use_v1) does not read it")


def _bypassed_with_correction(options: Options, built: Built, asked: dict[str, Any]) -> None:
    """The other trainers put a loss of its own in the place of loss_mode: loss_type, with correction by its ratio."""
    from trimtab.integrations.verl import own_correction

    options.inert(f"{ACTOR}policy_loss.loss_mode", "bypass_mode has a loss of its own: loss_type")
    if asked.get("loss_type") == "reinforce":
        built.loss = loss_of("reinforce", anchor=None)
        for key in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"):
            options.inert(f"{ACTOR}{key}", "loss_type = reinforce does not clip")
    else:
        low, high = reach(options)
        cap = options.number(f"{ACTOR}clip_ratio_c", 3.0)
        built.loss = loss_of("dual_clipped", anchor="rollout", band=(1 - low, 1 + high), cap=cap)
        asked = {**asked, "rollout_is": None}
        for key in ("rollout_is", "rollout_is_threshold"):
            options.inert(f"{CORRECTION}{key}", "in bypass_mode the ratio of the loss corrects already")
    if asked.get("rollout_is") or asked.get("rollout_rs"):
        try:
            built.correct(*(Stage(one.part, ratio="total") for one in own_correction(asked).correction))
        except AdapterError as error:
            _refused(options, asked, error)


def _refused(options: Options, asked: dict[str, Any], error: AdapterError) -> None:
    for key in asked:
        _ = options.told.pop(CORRECTION + key, None)
        options.tell(CORRECTION + key, "no equivalent", str(error))
    options.warn(f"rollout_correction: {error} No correction is written.")


def _distilled(options: Options) -> None:
    """A teacher in the loss has no equivalent in this converter."""
    start = "distillation."
    keys = [key for key in options.given if key.startswith(start)]
    is_on = options.switch(f"{start}enabled", False, status="no equivalent")
    for key in keys:
        if not is_on:
            options.inert(key, "distillation.enabled is off")
        else:
            options.tell(key, "no equivalent", "distillation is not written")
    if is_on:
        options.warn("distillation.enabled: the loss towards the teacher is not written. See advantage.plus_teacher.")


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

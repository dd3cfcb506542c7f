"""verl's options (0.9.1) in our names."""

from trimtab.convert.built import Built, common, divided, group, kl_of, sampled
from trimtab.convert.estimators import TO_GO, each_key, estimator
from trimtab.convert.options import Options
from trimtab.convert.verl_correction import correct
from trimtab.convert.verl_loss import ACTOR, BY_SEQUENCE, MODE, loss_and_keep
from trimtab.convert.verl_trainer import has_own_loss
from trimtab.signal import Term, part

ROLLOUT = "actor_rollout_ref.rollout."
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
    loss, keep = loss_and_keep(options)
    built = Built("verl", options, loss, _weighting(options, width), part("normalize.raw"))
    built.correct(*keep)
    name = _advantage(options, built)
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
    correct(options, built)
    _tell_means(options, built)
    _overlong(options, built)
    _distilled(options)
    _ = options.get(f"{ROLLOUT}calculate_log_probs", None, "a run records what the sampler said", status="changed")
    _ = options.get(f"{ACTOR}calculate_sum_pi_squared", None, "the extra field pi_squared", status="changed")
    built.train["max_new_tokens"] = width
    common(
        built,
        {
            "data.train_batch_size": "prompts_per_step",
            f"{ROLLOUT}n": "samples_per_prompt",
            f"{ROLLOUT}temperature": "temperature",
            f"{ACTOR}optim.lr": "lr",
            f"{ACTOR}optim.clip_grad": "grad_clip",
            f"{ACTOR}optim.weight_decay": "weight_decay",
            f"{ACTOR}optim.lr_warmup_steps": "lr_warmup_steps",
            "trainer.total_training_steps": "steps",
        },
    )
    sampled(built, f"{ROLLOUT}top_p", f"{ROLLOUT}top_k")
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


def _advantage(options: Options, built: Built) -> str:
    gamma = options.number("algorithm.gamma", 1.0)
    lam = options.number("algorithm.lam", 1.0)
    key = "algorithm.adv_estimator"
    name = str(options.get(key, "gae", "normalize and advantage", status="changed"))
    by_std = options.switch("algorithm.norm_adv_by_std_in_grpo", True, "normalize, std")
    if name == "gdpo":
        weights, keys = (options.get(f"algorithm.gdpo_reward_{one}", None, "weights of normalize.each_key",
                                     status="changed") for one in ("weights", "keys"))  # fmt: skip
        said = "theirs whitens over tokens, so that long answers count for more; this one over episodes"
        each_key(options, key, built, weights, keys, eps=1e-6, said=said)
        if not by_std:
            options.lost(
                "algorithm.norm_adv_by_std_in_grpo", "normalize.each_key divides by each spread",
                "norm_adv_by_std_in_grpo is off with gdpo: normalize.each_key divides by each reward's spread. "
                "Check it.",
            )  # fmt: skip
    else:
        std = group("group" if by_std else "none")
        estimator(options, key, built, name, std=std, gamma=gamma, lam=lam)
    if name not in ("gae", "reinforce_plus_plus"):
        options.inert("algorithm.gamma", f"adv_estimator = {name} does not discount")
    if name != "gae":
        options.inert("algorithm.lam", f"adv_estimator = {name} has no lambda")
    if not name.startswith(("grpo", "gdpo")):
        options.inert("algorithm.norm_adv_by_std_in_grpo", f"adv_estimator = {name} does not read it")
    return name


def _weighting(options: Options, width: int):
    key = f"{ACTOR}loss_agg_mode"
    mode = str(options.get(key, "token-mean", "weighting", status="changed"))
    kind = "vanilla" if has_own_loss(options) else str(options.get(MODE, "vanilla", status="changed"))
    if kind in BY_SEQUENCE:
        options.differs(MODE, f"policy_loss and weighting; it {BY_SEQUENCE[kind]}")
        if mode != "seq-mean-token-mean":
            options.inert(key, f"loss_mode = {kind} does not read it")
        return part("weighting.sequence_mean_token_mean")
    if mode not in MEANS:
        options.lost(key, "weighting.token_mean is written instead",
                     f"loss_agg_mode = {mode} is not known here: token_mean is written. Check it.")  # fmt: skip
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
    if in_reward and name == "gdpo":
        options.inert("algorithm.use_kl_in_reward", "adv_estimator = gdpo reads its reward keys alone")
        in_reward = False
    if not in_reward:
        options.inert("algorithm.kl_ctrl.kl_coef", "use_kl_in_reward is off")
        options.inert("algorithm.kl_penalty", "use_kl_in_reward is off")
    steering = _steering(options, in_reward=in_reward, is_written=in_reward and not in_loss)
    if in_loss and in_reward:
        options.warn(
            "use_kl_loss and use_kl_in_reward are both on: the same distance is paid twice. Only the one in the "
            "loss is written."
        )
    if in_loss:
        built.fields["kl"] = kl_of(options, f"{ACTOR}kl_loss_type", kind, coef, "loss")
    elif in_reward:
        into = "token_reward" if name in TO_GO else "sequence_reward"
        built.fields["kl"] = kl_of(options, "algorithm.kl_penalty", reward_kind, reward_coef, into, **steering)


def _steering(options: Options, *, in_reward: bool, is_written: bool) -> dict[str, float]:
    """The target and the horizon of an adaptive coefficient."""
    at = "algorithm.kl_ctrl."
    is_adaptive = str(options.get(f"{at}type", "fixed", "a fixed coefficient")) == "adaptive"
    target = options.number(f"{at}target_kl", 0.1, "kl.target")
    horizon = options.number(f"{at}horizon", 10_000, "kl.horizon")
    if not (is_adaptive and in_reward):
        for key in ("target_kl", "horizon", *(["type"] if is_adaptive else [])):
            options.inert(at + key, "use_kl_in_reward is off" if is_adaptive else "kl_ctrl.type is fixed")
        return {}
    if not is_written:
        return {}
    options.differs(f"{at}type", "kl.target and kl.horizon; the KL is a mean over tokens, theirs over sequences' means")
    return {"target": float(target), "horizon": float(horizon)}


def _tell_means(options: Options, built: Built) -> None:
    """One recipe has one weighting for all its terms."""
    mode = "vanilla" if has_own_loss(options) else str(options.get(MODE, "vanilla"))
    agg = str(options.get(f"{ACTOR}loss_agg_mode", "token-mean"))
    kl = built.fields.get("kl")
    has_terms = built.fields["entropy"] or (kl and kl.into == "loss")
    if mode in BY_SEQUENCE and has_terms and agg != "seq-mean-token-mean":
        options.warn(f"loss_mode = {mode} takes its mean over sequences, and verl weighs the KL and the entropy by "
                     f"loss_agg_mode = {agg}. Here all are weighed by sequences. Check the coefficients.")  # fmt: skip


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
        for place in ("reward_model.reward_kwargs.", "reward.reward_kwargs."):
            width = options.get(f"{place}max_resp_len", width, "reward.soft_overlong, max_length", status="changed")
        if on and length:
            built.fields["reward"] = (
                part("reward.soft_overlong", max_length=int(width), buffer=int(length), factor=float(factor)),
            )

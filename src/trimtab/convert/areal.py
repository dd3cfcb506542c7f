"""AReaL's YAML (1.0.4) in our names."""

from typing import Any

from trimtab.convert.built import Built, common, engine, group, kl_of, loss_of
from trimtab.convert.options import Options
from trimtab.signal import Part, Stage, Term, part


def read(options: Options) -> Built:
    """What this file trains with."""
    low = options.number("actor.eps_clip", 0.2, "band", status="changed")
    high = options.number("actor.eps_clip_higher", None, "band", status="changed")
    cap = options.number("actor.c_clip", None, "cap of policy_loss.dual_clipped", status="changed")
    level = str(options.get("actor.importance_sampling_level", "token", "loss", status="changed"))
    is_decoupled = options.switch("actor.use_decoupled_loss", False, "loss.anchor and correction", status="changed")
    is_recomputed = options.switch("actor.recompute_logprob", False, "loss.anchor and old", status="changed")
    anchor = "old" if is_decoupled or is_recomputed else "rollout"
    band = (1 - low, 1 + (low if high is None else high))
    if options.switch("actor.use_sapo_loss", False, "policy_loss.soft_gated", status="changed"):
        loss = loss_of("soft_gated", anchor=anchor, temperature_positive=options.number("actor.sapo_tau_pos", 1.0),
                       temperature_negative=options.number("actor.sapo_tau_neg", 1.05))  # fmt: skip
    elif level == "sequence":
        loss = loss_of("geometric_clipped", anchor=anchor, band=band)
    else:
        loss = (
            loss_of("clipped", anchor=anchor, band=band)
            if cap is None
            else loss_of("dual_clipped", anchor=anchor, band=band, cap=cap)
        )
    built = Built("AReaL", options, loss, part("weighting.token_mean"), _norm(options, "actor.reward_norm."))
    gamma, lam = options.number("actor.discount", 1.0), options.number("actor.gae_lambda", 1.0)
    coef = options.number("actor.kl_ctl", 0.1, "kl.coef, into = token_reward", status="changed")
    has_critic = any(key.startswith("critic.") for key in options.given)
    if has_critic:
        built.advantage = part("advantage.gae", gamma=gamma, lam=lam)
        built.fields["value"] = Term(
            coef=1.0, part=part("value_loss.squared_clipped", reach=options.number("critic.value_eps_clip", 0.2))
        )
    elif gamma * lam != 1.0 or coef:
        # AReaL's GAE with values of 0: rewards and penalties of tokens add up from here on, discounted by both.
        built.advantage = part("advantage.reward_to_go", gamma=gamma * lam)
        if lam != 1.0:
            options.tell("actor.gae_lambda", "changed", "advantage.reward_to_go, gamma = discount x gae_lambda")
    if anchor == "rollout":
        built.fields["old"] = "absent"
    _advantage_norm(options, built)
    _rewards(options, built)
    kind = str(options.get("actor.kl_estimator", "k1", "kl", status="changed"))
    if not coef:
        options.inert("actor.kl_estimator", "kl_ctl is 0")
    built.fields["kl"] = kl_of(options, "actor.kl_estimator", kind, coef, "token_reward")
    if coef and is_decoupled:
        options.warn("actor.kl_ctl: AReaL takes the sampler's log-probs for this KL, here it is logp_old. Check it.")
    _corrections(options, built, is_decoupled=is_decoupled)
    taught = [key for key in options.given if key.startswith("teacher.")]
    for key in taught:
        options.tell(key, "no equivalent", "the loss towards a teacher is not written")
    if taught:
        options.warn("teacher: the loss towards the teacher is not written. See advantage.plus_teacher.")
    common(
        built,
        {
            "train_dataset.batch_size": "prompts_per_step",
            "gconfig.n_samples": "samples_per_prompt",
            "gconfig.max_new_tokens": "max_new_tokens",
            "gconfig.temperature": "temperature",
            "actor.optimizer.lr": "lr",
            "actor.optimizer.gradient_clipping": "grad_clip",
            "actor.optimizer.weight_decay": "weight_decay",
            "actor.ppo_n_minibatches": "updates_per_batch",
            "rollout.max_head_offpolicyness": "staleness",
            "total_train_steps": "steps",
        },
    )
    options.rest()
    return built


def _level(options: Options, key: str, note: str) -> str:
    """batch is the default, and null is a level of its own: none."""
    one = options.given.get(key)
    found = options.get(key, "batch", note, status="changed")
    return "none" if one is not None and one.value is None else str(found)


def _norm(options: Options, start: str) -> Part:
    """AReaL's NormConfig of rewards."""
    if not any(key.startswith(start) for key in options.given):
        return part("normalize.raw")
    mean, std = (_level(options, f"{start}{one}_level", "normalize") for one in ("mean", "std"))
    eps = options.number(f"{start}eps", 1e-5, "normalize.mean_std, eps", status="changed")
    ddof = 1 if options.switch(f"{start}std_unbiased", True, "ddof", status="changed") else 0
    _ = options.get(f"{start}group_size", None, "a group is a prompt", status="changed")
    if options.switch(f"{start}mean_leave1out", False, "normalize.leave_one_out", status="changed"):
        if std != "none":
            options.warn(
                f"{start}mean_leave1out with a spread has no equivalent: leave_one_out without a scale is written. "
                f"Check it."
            )
        return part("normalize.leave_one_out")
    return group(std, eps=eps, mean=mean, ddof=ddof)


def _advantage_norm(options: Options, built: Built) -> None:
    start = "actor.adv_norm."
    if not any(key.startswith(start) for key in options.given):
        return
    mean, std = (_level(options, f"{start}{one}_level", "whiten") for one in ("mean", "std"))
    for one in ("eps", "std_unbiased", "group_size", "mean_leave1out"):
        _ = options.get(start + one, None, "whiten", status="changed")
    built.fields["whiten"] = mean == std == "batch"
    if mean == "batch" and std == "none":
        options.warn("adv_norm with a mean and no spread has no equivalent: not written. Check it.")
    elif not built.fields["whiten"]:
        options.warn(f"adv_norm at levels {mean}, {std} has no equivalent: not written. Check it.")


def _rewards(options: Options, built: Built) -> None:
    shaping: list[Any] = []
    if options.switch("actor.overlong_reward_penalty", False, "reward.soft_overlong", status="changed"):
        shaping.append(part(
            "reward.soft_overlong", max_length=int(options.get("gconfig.max_new_tokens", 1024)),
            buffer=int(options.get("actor.overlong_tokens", 1, "buffer", status="changed")),
            factor=float(options.number("actor.overlong_penalty_factor", 1.0, "factor", status="changed")),
        ))  # fmt: skip
    bias, scale = (
        options.number("actor.reward_bias", 0.0, "reward.affine"),
        options.number("actor.reward_scaling", 1.0, "reward.affine"),
    )
    if bias or scale != 1.0:
        shaping.append(part("reward.affine", bias=float(bias), scale=float(scale)))
    clip = float(options.number("actor.reward_clip", 20.0, "reward.clip"))
    shaping.append(part("reward.clip", low=-clip, high=clip))
    built.fields["reward"] = tuple(shaping)
    if options.switch("actor.mask_no_eos_with_zero", False, "not_ended = zero", status="changed"):
        built.fields["not_ended"] = "zero"


def _corrections(options: Options, built: Built, *, is_decoupled: bool) -> None:
    start = "actor.rejection_sampling."
    if options.get("actor.prox_logp_method", "recompute", 'old = "recompute"', status="changed") not in (
        "recompute",
        None,
    ):
        options.tell("actor.prox_logp_method", "no equivalent", "logp_old is recomputed")
        options.warn("actor.prox_logp_method other than recompute: logp_old is recomputed here.")
    if options.number("actor.m2_threshold", None, "keep.second_moment, limit", status="changed") is not None:
        limit = float(options.number("actor.m2_threshold", None))
        built.correct(Stage(part("keep.second_moment", limit=limit), ratio="engine"))
    if not is_decoupled:
        for key in [key for key in options.given if key.startswith(start)]:
            options.inert(key, "use_decoupled_loss is off")
        return
    if not any(key.startswith(start) for key in options.given):
        return  # without the block AReaL does not weigh by old/rollout either
    metric, level = (
        str(options.get(f"{start}metric", "ratio", "correction", status="changed")),
        str(options.get(f"{start}level", "token", "correction", status="changed")),
    )
    action = str(options.get(f"{start}action", "mask", "correction", status="changed"))
    _ = options.get(f"{start}agg", "mean", "correction", status="changed")
    low, high = (
        options.number(f"{start}lower", 0.0, "band", status="changed"),
        options.number(f"{start}upper", 5.0, "band", status="changed"),
    )
    band = (float(low or 0.0), float(high))
    free = engine("importance.truncated", level="token", band=(0.0, float("inf")))
    if metric == "ratio" and action == "clamp":
        built.correct(engine("importance.truncated", level="token" if level == "token" else "geometric", band=band))
    elif metric == "ratio":
        built.correct(engine("keep.token_band" if level == "token" else "keep.geometric_band", band=band), free)
    else:
        options.tell(f"{start}metric", "no equivalent", "the ratio itself is truncated instead")
        options.warn(
            f"rejection_sampling.metric = {metric} has no equivalent in this converter: no rejection is written. "
            f"Check it."
        )
        built.correct(free)

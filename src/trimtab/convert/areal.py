"""AReaL's YAML (1.0.4) in our names."""

from typing import Any

from trimtab.convert.areal_correction import correct, credit
from trimtab.convert.built import Built, common, group, kl_of, loss_of, sampled
from trimtab.convert.options import Options
from trimtab.signal import Part, part

NARROW = 1e-9
"""Less than single precision can tell from 1."""


def read(options: Options) -> Built:
    """What this file trains with."""
    low = options.number("actor.eps_clip", 0.2, "band", status="changed")
    high = options.number("actor.eps_clip_higher", None, "band", status="changed")
    cap = options.number("actor.c_clip", None, "cap of policy_loss.dual_clipped", status="changed")
    level = str(options.get("actor.importance_sampling_level", "token", "loss", status="changed"))
    is_decoupled = options.switch("actor.use_decoupled_loss", False, "loss.anchor and correction", status="changed")
    is_recomputed = options.switch("actor.recompute_logprob", False, "loss.anchor = old", status="changed")
    anchor = "old" if is_decoupled or is_recomputed else "rollout"
    band = (max(0.0, 1 - low), 1 + (low if high is None else high))
    if band == (1.0, 1.0):
        band = (1 - NARROW, 1 + NARROW)
        options.differs("actor.eps_clip", f"band; {NARROW:g} to each side of 1, because one point is no band")
    if options.switch("actor.use_sapo_loss", False, "policy_loss.soft_gated", status="changed"):
        name = "geometric_soft_gated" if level == "sequence" else "soft_gated"
        loss = loss_of(name, anchor=anchor, temperature_positive=options.number("actor.sapo_tau_pos", 1.0),
                       temperature_negative=options.number("actor.sapo_tau_neg", 1.05))  # fmt: skip
    elif options.switch("actor.use_cispo_loss", False, "policy_loss.clipped_importance", status="changed"):
        loss = loss_of("clipped_importance", anchor=anchor, band=band)
    elif level == "sequence":
        loss = loss_of("geometric_clipped", anchor=anchor, band=band)
    else:
        loss = (
            loss_of("clipped", anchor=anchor, band=band)
            if cap is None
            else loss_of("dual_clipped", anchor=anchor, band=band, cap=cap)
        )
    built = Built("AReaL", options, loss, part("weighting.token_mean"), _norm(options, "actor.reward_norm."))
    coef = options.number("actor.kl_ctl", 0.1, "kl.coef, into = token_reward", status="changed")
    credit(options, built, has_kl=bool(coef))
    if anchor == "rollout":
        built.fields["old"] = "absent"
    _advantage_norm(options, built)
    _rewards(options, built)
    kind = str(options.get("actor.kl_estimator", "k1", "kl", status="changed"))
    if not coef:
        options.inert("actor.kl_estimator", "kl_ctl is 0")
    built.fields["kl"] = kl_of(options, "actor.kl_estimator", kind, coef, "token_reward")
    if coef and (is_decoupled or not is_recomputed):
        options.warn("actor.kl_ctl: AReaL takes the sampler's log-probs for this KL, here it is logp_old. Check it.")
    correct(options, built, is_decoupled=is_decoupled)
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
    _ = options.get("actor.temperature", None, "train.temperature", status="changed")
    sampled(built, "gconfig.top_p", "gconfig.top_k")
    options.rest()
    return built


def _norm(options: Options, start: str) -> Part:
    """AReaL's NormConfig of rewards."""
    _ = options.get(start.removesuffix("."), None, "normalize.raw", status="changed")
    if not any(key.startswith(start) for key in options.given):
        return part("normalize.raw")
    mean, std = (_level(options, f"{start}{one}_level", "normalize") for one in ("mean", "std"))
    eps = options.number(f"{start}eps", 1e-5, "normalize.mean_std, eps", status="changed")
    ddof = 1 if options.switch(f"{start}std_unbiased", True, "ddof", status="changed") else 0
    _ = options.get(f"{start}group_size", None, "a group is a prompt", status="changed")
    if options.switch(f"{start}mean_leave1out", False, "normalize.leave_one_out", status="changed"):
        if std == "none" and mean == "group":
            return part("normalize.leave_one_out")
        if std != "none":
            # Its spread is around the means of the others too: both grow by n / (n - 1), and the quotient is the same.
            options.differs(f"{start}mean_leave1out", "nothing: divided by a spread around the same means it cancels")
        else:
            options.lost(f"{start}mean_leave1out", "the mean is of all",
                         f"{start}mean_leave1out over a {mean} has no equivalent: not written. Check it.")  # fmt: skip
    if std != "none" and std != mean:
        options.warn(f"{start}std_level = {std} with mean_level = {mean}: AReaL's spread is around the means of "
                     f"mean_level, here it is around its own. Check it.")  # fmt: skip
    return group(std, eps=eps, mean=mean, ddof=ddof)


def _level(options: Options, key: str, note: str) -> str:
    """A level of a NormConfig: by default it is the batch, and null says that there is none."""
    found = options.get(key, "batch", note, status="changed")
    return "none" if options.has(key) and options.given[key].value is None else str(found)


def _advantage_norm(options: Options, built: Built) -> None:
    start = "actor.adv_norm."
    _ = options.get("actor.adv_norm", None, "whiten = false", status="changed")
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

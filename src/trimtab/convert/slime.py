"""slime's and miles' flags in our names."""

from dataclasses import replace

from trimtab.convert.built import Built, common, counting, divided, engine, group, kl_of, loss_of, sampled
from trimtab.convert.estimators import estimator
from trimtab.convert.options import Options
from trimtab.signal import Stage, Term, part


def read(options: Options) -> Built:
    """What these flags train with."""
    low = options.number("eps_clip", 0.2, "band", status="changed")
    high = options.number("eps_clip_high", None, "band", status="changed")
    cap = options.number("eps_clip_c", None, "cap of policy_loss.dual_clipped", status="changed")
    band = (1 - low, 1 + (low if high is None else high))
    name = str(options.get("advantage_estimator", "grpo", "normalize, advantage and loss", status="changed"))
    is_token = options.switch("calculate_per_token_loss", False, "weighting.token_mean", status="changed")
    weighting = part("weighting.token_mean" if is_token else "weighting.episode_mean")
    loss = loss_of("clipped", band=band) if cap is None else loss_of("dual_clipped", band=band, cap=cap)
    if name == "gspo":
        loss = loss_of("geometric_clipped", band=band)
    elif name == "cispo":
        loss = loss_of("clipped_importance", band=band)
    built = Built("slime", options, loss, weighting, part("normalize.raw"))
    std = (
        "none"
        if options.switch("disable_grpo_std_normalization", False, "normalize.mean_std, std", status="changed")
        else "group"
    )
    gamma, lam = options.number("gamma", 1.0), options.number("lambd", 1.0)
    estimator(options, "advantage_estimator", built, name, std=group(std), gamma=gamma, lam=lam)
    if options.switch("disable_rewards_normalization", False, "normalize.raw", status="changed"):
        built.normalize = part("normalize.raw")
    if options.switch("normalize_advantages", False, "whiten", status="changed"):
        built.fields["whiten"] = True
    if name != "ppo":
        options.inert("lambd", f"advantage_estimator = {name} has no lambda")
    _teacher(options, built)
    _terms(options, built, name)
    _corrections(options, built)
    if "check_reward_nonzero_std" in str(
        options.get("dynamic_sampling_filter_path", "", "filter_constant_groups", status="changed")
    ):
        built.fields["filter_constant_groups"], built.train["dynamic_sampling"] = True, 10
    common(
        built,
        {
            "rollout_batch_size": "prompts_per_step",
            "n_samples_per_prompt": "samples_per_prompt",
            "lr": "lr",
            "clip_grad": "grad_clip",
            "rollout_max_response_len": "max_new_tokens",
            "rollout_temperature": "temperature",
            "num_rollout": "steps",
            "weight_decay": "weight_decay",
        },
    )
    sampled(built, "rollout_top_p", "rollout_top_k")
    steps = divided(
        options, "rollout_batch_size", "global_batch_size", per=float(built.train.get("samples_per_prompt", 1))
    )
    options.tell(
        "global_batch_size", "changed", "train.updates_per_batch = rollout_batch_size x n_samples_per_prompt / it"
    )
    asked = options.get("num_steps_per_rollout", None, "train.updates_per_batch", status="changed")
    if asked or steps:
        built.train["updates_per_batch"] = asked or steps
    options.rest()
    return built


def _terms(options: Options, built: Built, name: str) -> None:
    kind = str(options.get("kl_loss_type", "k1", "kl", status="changed"))
    in_loss = options.switch("use_kl_loss", False, "kl, into = loss", status="changed")
    loss_coef = options.number("kl_loss_coef", 0.0, "kl.coef")
    coef = options.number("kl_coef", 0.0, "kl.coef, into the reward", status="changed")
    if in_loss and not loss_coef:
        options.inert("use_kl_loss", "kl_loss_coef is 0")
        options.inert("kl_loss_type", "kl_loss_coef is 0")
    if not in_loss:
        options.inert("kl_loss_coef", "use_kl_loss is not set")
    if in_loss and loss_coef and coef:
        options.warn(
            "kl_coef and use_kl_loss are both on: the same distance is paid twice. Only the one in the loss is written."
        )
    if in_loss and loss_coef:
        written = kl_of(options, "kl_loss_type", kind, loss_coef, "loss")
        is_weighted = options.switch("use_unbiased_kl", False, "kl.importance_weighted_k…", status="changed")
        if written and is_weighted:
            weighted = part(f"kl.importance_weighted_{written.part.formula.name.removeprefix('kl.')}")
            written = replace(written, part=weighted, anchor="old")
        built.fields["kl"] = written
    elif coef and name in ("grpo", "gspo", "cispo"):
        options.inert("kl_coef", f"advantage_estimator = {name} does not read it")
    elif coef:
        is_to_go = name in ("ppo", "reinforce_plus_plus")
        into = "token_reward" if is_to_go else "sequence_reward"
        built.fields["kl"] = kl_of(options, "kl_loss_type", kind, coef, into)
        if not is_to_go:
            options.differs("kl_coef", "kl.coef; their penalty is each token's own, ours the sequence's sum before the "
                            "group's mean is taken")  # fmt: skip
    if not in_loss or not loss_coef:
        options.inert("use_unbiased_kl", "there is no KL in the loss")
    entropy = options.number("entropy_coef", 0.0, "entropy.coef")
    built.fields["entropy"] = Term(coef=entropy) if entropy else None
    if built.fields.get("value"):
        reach = options.number("value_clip", 0.2, "value_loss.squared_clipped, reach", status="changed")
        built.fields["value"] = Term(coef=1.0, part=part("value_loss.squared_clipped", reach=reach))


def _teacher(options: Options, built: Built) -> None:
    """On-policy distillation: the teacher's log-prob over the student's, added to the advantage."""
    coef = options.number("opd_kl_coef", 1.0, "advantage.plus_teacher, coef", status="changed")
    for key in ("opd_type", "opd_teacher_load", "opd_teacher_ckpt_step"):
        _ = options.get(key, None, "extra = {logp_teacher: …} of your batches", status="changed")
    if not options.switch("use_opd", False, "advantage.plus_teacher", status="changed"):
        for key in ("opd_kl_coef", "opd_type"):
            options.inert(key, "use_opd is not set")
    elif built.advantage.formula.name == "advantage.broadcast":
        built.advantage = part("advantage.plus_teacher", coef=float(coef), outcome_coef=1.0)
    else:
        options.lost(
            "use_opd", f"advantage.plus_teacher has no place beside {built.advantage.formula.name}",
            f"use_opd with {built.advantage.formula.name}: the teacher is not written. Check it.",
        )  # fmt: skip


def _resumed(options: Options, built: Built) -> None:
    """What was sampled before a rollout was resumed trains nobody and is not counted."""
    key = "mask_offpolicy_in_partial_rollout"
    if not options.switch(key, False, "keep.recent_version", status="changed"):
        return
    if not options.switch("partial_rollout", False, "a rollout that is resumed", status="changed"):
        options.inert(key, "partial_rollout is not set")
        return
    built.correct(Stage(part("keep.recent_version", lag=0, newest="sequence")))
    built.weighting = counting(built.weighting, "kept")
    for name in ("kl", "entropy", "value"):
        held = built.fields.get(name)
        if held is not None and getattr(held, "into", "loss") == "loss":
            built.fields[name] = replace(held, on="kept")
    options.differs(key, "keep.recent_version, newest = sequence; other rejections then leave the denominators too")


def _corrections(options: Options, built: Built) -> None:
    custom = options.get("custom_tis_function_path", None, "correction", status="changed")
    low, high = (
        options.number("tis_clip_low", 0.0, "band", status="changed"),
        options.number("tis_clip", 2.0, "band", status="changed"),
    )
    if options.switch("use_tis", False, "importance.truncated on engine", status="changed"):
        if custom and "icepop" in str(custom):
            built.correct(
                engine("keep.token_band", band=(low, high)),
                engine("importance.truncated", level="token", band=(0.0, float("inf"))),
            )
        elif custom:
            options.tell(
                "custom_tis_function_path", "no equivalent", "a function of yours: see docs/off_policy_correction.md"
            )
            options.warn(
                f"custom_tis_function_path = {custom}: a function of yours, so no correction is written. Choose one."
            )
        else:
            built.correct(engine("importance.truncated", level="token", band=(float(low), float(high))))
    else:
        for key in ("tis_clip", "tis_clip_low", "custom_tis_function_path"):
            options.inert(key, "use_tis is not set")
    if options.switch("use_opsm", False, "keep.negative_drift, anchor = old", status="changed"):
        delta = options.number("opsm_delta", 1e-4, "delta")
        built.correct(Stage(part("keep.negative_drift", delta=float(delta)), anchor="old"))
    else:
        options.inert("opsm_delta", "use_opsm is not set")
    if options.switch("use_rollout_logprobs", False, 'loss.anchor = "rollout"', status="changed") and built.loss.anchor:
        built.loss = Stage(built.loss.part, anchor="rollout")
        built.fields["old"] = "absent"
    _resumed(options, built)
    _ = options.get("get_mismatch_metrics", None, "every metric is there", status="changed")

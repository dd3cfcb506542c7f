"""SkyRL's options (0.3) in our names."""

from trimtab.config.correction import OffPolicyCorrection
from trimtab.convert.built import Built, common, divided, group, kl_of, loss_of, sampled
from trimtab.convert.estimators import estimator
from trimtab.convert.options import Options
from trimtab.signal import Stage, Term, part

ALGORITHM = "trainer.algorithm."
CORRECTION = f"{ALGORITHM}off_policy_correction."
MEANS = {
    "token_mean": "weighting.token_mean",
    "sequence_mean": "weighting.sequence_mean_token_mean",
    "seq_mean_token_sum_norm": "weighting.constant_divisor",
    "token_sum": "weighting.token_sum",
    "prompt_mean": "weighting.prompt_mean",
}


def read(options: Options) -> Built:
    """What these options train with."""
    low = options.number(f"{ALGORITHM}eps_clip_low", 0.2, "band", status="changed")
    high = options.number(f"{ALGORITHM}eps_clip_high", 0.2, "band", status="changed")
    width = options.get("generator.sampling_params.max_generate_length", 1024, "train.max_new_tokens")
    loss, keep = _loss(options, (1 - low, 1 + high))
    built = Built("SkyRL", options, loss, _weighting(options, width), part("normalize.raw"))
    built.correct(*keep)
    if keep:
        built.fields["old"] = "absent"  # rollout_is and dppo read the sampler alone
    name = str(options.get(f"{ALGORITHM}advantage_estimator", "grpo", "normalize and advantage", status="changed"))
    std = "group" if options.switch(f"{ALGORITHM}grpo_norm_by_std", True, "normalize.mean_std, std") else "none"
    gamma, lam = options.number(f"{ALGORITHM}gamma", 1.0), options.number(f"{ALGORITHM}lambd", 1.0)
    estimator(options, f"{ALGORITHM}advantage_estimator", built, name, std=group(std), gamma=gamma, lam=lam)
    if name not in ("gae", "reinforce++"):
        for key in ("gamma", "lambd"):
            options.inert(ALGORITHM + key, f"advantage_estimator = {name} does not read it")
    if built.fields.get("value"):
        reach = options.number(f"{ALGORITHM}value_clip", 0.2, "value_loss.squared_clipped, reach", status="changed")
        built.fields["value"] = Term(coef=1.0, part=part("value_loss.squared_clipped", reach=reach))
    if options.switch(f"{ALGORITHM}advantage_batch_normalize", False, "whiten", status="changed"):
        built.fields["whiten"] = True
    built.fields["filter_constant_groups"] = options.switch(
        f"{ALGORITHM}zero_variance_filter", False, "filter_constant_groups"
    )
    if built.fields["filter_constant_groups"]:
        options.tell(f"{ALGORITHM}zero_variance_filter_tol", "changed", "constant groups have equal rewards")
    else:
        options.inert(f"{ALGORITHM}zero_variance_filter_tol", "zero_variance_filter is off")
    _ = options.get(f"{ALGORITHM}temperature", None, "train.temperature", status="changed")
    replaced = options.get(f"{ALGORITHM}dynamic_sampling.type", None, "train.dynamic_sampling", status="changed")
    if replaced == "replace":
        options.lost(f"{ALGORITHM}dynamic_sampling.type", "no group takes another's place",
                     "dynamic_sampling.type = replace puts copies of good groups in the place of bad ones: not "
                     "written. train.dynamic_sampling samples new ones instead.")  # fmt: skip
    if replaced == "filter":
        batches = options.get(f"{ALGORITHM}dynamic_sampling.max_sample_batches", 10, "train.dynamic_sampling")
        built.fields["filter_constant_groups"], built.train["dynamic_sampling"] = True, max(1, int(batches))
    _overlong(options, built, width)
    _terms(options, built, name)
    _corrected(options, built)
    if options.switch("generator.apply_overlong_filtering", False, "not_ended = suppress", status="changed"):
        built.fields["not_ended"] = "suppress"
    built.train["max_new_tokens"] = width
    common(
        built,
        {
            "trainer.train_batch_size": "prompts_per_step",
            "generator.n_samples_per_prompt": "samples_per_prompt",
            "generator.sampling_params.temperature": "temperature",
            "trainer.policy.optimizer_config.lr": "lr",
            "trainer.policy.optimizer_config.max_grad_norm": "grad_clip",
            "trainer.policy.optimizer_config.weight_decay": "weight_decay",
            "trainer.fully_async.max_staleness_steps": "staleness",
        },
    )
    sampled(built, "generator.sampling_params.top_p", "generator.sampling_params.top_k")
    epochs = options.number("trainer.update_epochs_per_batch", 1, "in train.updates_per_batch", status="changed")
    steps = divided(options, "trainer.train_batch_size", "trainer.policy_mini_batch_size", epochs=epochs)
    options.tell(
        "trainer.policy_mini_batch_size",
        "changed",
        "train.updates_per_batch = train_batch_size / it x update_epochs_per_batch",
    )
    if steps:
        built.train["updates_per_batch"] = steps
    options.rest(dotted=True)
    return built


def _overlong(options: Options, built: Built, width: int) -> None:
    """The two options of SkyRL's DAPO example, whose own trainer reads them."""
    buffer = options.number(f"{ALGORITHM}overlong_buffer_len", None, "reward.soft_overlong, buffer", status="changed")
    factor = options.number(f"{ALGORITHM}overlong_buffer_penalty_factor", 1.0, "factor", status="changed")
    if buffer:
        built.fields["reward"] = (
            part("reward.soft_overlong", max_length=int(width), buffer=int(buffer), factor=float(factor)),
        )


def _loss(options: Options, band: tuple[float, float]) -> tuple[Stage, tuple[Stage, ...]]:
    """The loss by its type, and what it drops by itself."""
    key = f"{ALGORITHM}policy_loss_type"
    kind = str(options.get(key, "regular", "loss", status="changed"))
    cap = options.number(f"{ALGORITHM}clip_ratio_c", 3.0, "cap of policy_loss.dual_clipped", status="changed")
    if kind != "dual_clip":
        options.inert(f"{ALGORITHM}clip_ratio_c", f"policy_loss_type = {kind} has no dual clip")
    match kind:
        case "regular":
            return loss_of("clipped", band=band), ()
        case "dual_clip":
            return loss_of("dual_clipped", band=band, cap=cap), ()
        case "gspo":
            return loss_of("geometric_clipped_token", band=band), ()
        case "cispo":
            low = options.number(f"{ALGORITHM}cispo.cispo_eps_clip_low", 0.0, "band", status="changed")
            high = options.number(f"{ALGORITHM}cispo.cispo_eps_clip_high", 5.0, "band", status="changed")
            anchor = str(options.get(f"{ALGORITHM}cispo.cispo_anchor", "old", "loss.anchor"))
            return loss_of("clipped_importance", anchor=anchor, band=(max(0.0, 1 - low), 1 + high)), ()
        case "sapo":
            return loss_of(
                "soft_gated", temperature_positive=options.number(f"{ALGORITHM}sapo.tau_pos", 1.0),
                temperature_negative=options.number(f"{ALGORITHM}sapo.tau_neg", 1.05),
            ), ()  # fmt: skip
        case "clip_cov" | "kl_cov":
            return _covariance(options, kind, band), ()
        case "rollout_is":
            options.differs(key, "policy_loss.clipped_importance, keep.token_band; the ends of the band are in it")
            keep = Stage(part("keep.token_band", band=(max(0.0, band[0]), band[1])), ratio="total")
            return loss_of("clipped_importance", anchor="rollout", band=(0.0, float("inf"))), (keep,)
        case "dppo":
            return loss_of("clipped", anchor="rollout", band=(0.0, float("inf"))), (_near(options),)
        case "importance_sampling":
            return loss_of("clipped", band=(0.0, float("inf"))), ()
        case "cross_entropy":
            return loss_of("cross_entropy", anchor=None), ()
        case _:
            options.lost(
                key, "policy_loss.clipped is written instead",
                f"policy_loss_type = {kind} has no equivalent in this converter: the PPO clip is written. Check it.",
            )  # fmt: skip
            return loss_of("clipped", band=band), ()


def _covariance(options: Options, kind: str, band: tuple[float, float]) -> Stage:
    if kind == "kl_cov":
        options.warn(
            "policy_loss_type = kl_cov: SkyRL divides the advantages by the tokens and not the penalty, so there "
            "the penalty is summed. Here both are divided. Check ppo_kl_coef."
        )
        return loss_of(
            "covariance_penalised", fraction=options.number(f"{ALGORITHM}kl_cov.kl_cov_frac", 0.2),
            coef=options.number(f"{ALGORITHM}kl_cov.ppo_kl_coef", 1.0),
        )  # fmt: skip
    at = f"{ALGORITHM}clip_cov."
    return loss_of(
        "covariance_clipped", band=band, fraction=options.number(f"{at}clip_ratio", 2e-4),
        covariance_low=float(options.number(f"{at}clip_cov_lb", 1.0)),
        covariance_high=float(options.number(f"{at}clip_cov_ub", 5.0)),
    )  # fmt: skip


def _near(options: Options) -> Stage:
    """DPPO's trust region around the sampler."""
    at = f"{ALGORITHM}dppo."
    kind = str(options.get(f"{at}dppo_type", "binary_tv", "keep.probability_band or keep.binary_kl", status="changed"))
    low, high = (float(options.number(f"{at}delta_{side}", 0.2, "keep", status="changed")) for side in ("low", "high"))
    if kind == "binary_tv":
        return Stage(part("keep.probability_band", low=low, high=high, by_sign=True), ratio="total")
    if low != high:
        options.warn(
            f"dppo_type = binary_kl with delta_low = {low:g} and delta_high = {high:g}: keep.binary_kl has one limit "
            f"for both signs, and {max(low, high):g} is written. Check it."
        )
    limit = max(low, high)
    return Stage(part("keep.binary_kl", limit=limit, level="token", by_sign=True, eps=1e-8), ratio="total")


def _weighting(options: Options, width: int):
    mode = str(options.get(f"{ALGORITHM}loss_reduction", "token_mean", "weighting", status="changed"))
    longest = options.get(f"{ALGORITHM}max_seq_len", None, "divisor", status="changed")
    if mode not in MEANS:
        why = ", because it depends on how a step is cut" if mode == "token_mean_legacy" else ""
        options.lost(
            f"{ALGORITHM}loss_reduction", f"weighting.token_mean is written instead{why}",
            f"loss_reduction = {mode} has no equivalent{why}: token_mean over the step is written. Check it.",
        )  # fmt: skip
        return part("weighting.token_mean")
    return part(MEANS[mode], divisor=float(longest or width)) if mode.endswith("norm") else part(MEANS[mode])


def _terms(options: Options, built: Built, name: str) -> None:
    kind = str(options.get(f"{ALGORITHM}kl_estimator_type", "k3", "kl", status="changed"))
    in_loss = options.switch(f"{ALGORITHM}use_kl_loss", True, "kl, into = loss", status="changed")
    in_reward = options.switch(f"{ALGORITHM}use_kl_in_reward", False, "kl, into the reward", status="changed")
    coef = options.number(f"{ALGORITHM}kl_loss_coef", 0.001, "kl.coef")
    if not in_loss and not in_reward:
        options.inert(f"{ALGORITHM}kl_loss_coef", "use_kl_loss is off")
        options.inert(f"{ALGORITHM}kl_estimator_type", "no KL is on")
    if in_loss and in_reward:
        options.warn(
            "use_kl_loss and use_kl_in_reward are both on: the same distance is paid twice. Only the one in the "
            "loss is written."
        )
    if in_loss:
        built.fields["kl"] = kl_of(options, f"{ALGORITHM}kl_estimator_type", kind, coef, "loss")
        if built.weighting.formula.name != "weighting.sequence_mean_token_mean":
            options.warn(
                "use_kl_loss: SkyRL takes the mean of the KL over each sequence first, whatever loss_reduction says. "
                "Here the KL is weighed as the loss is."
            )
    elif in_reward:
        into = "token_reward" if name in ("gae", "reinforce++") else "sequence_reward"
        built.fields["kl"] = kl_of(
            options, f"{ALGORITHM}kl_estimator_type", kind, coef, into, **_steering(options, is_on=bool(coef))
        )
    if not (in_reward and not in_loss):
        _ = _steering(options, is_on=False)
    on = options.switch(f"{ALGORITHM}use_entropy_loss", False, "entropy", status="changed")
    entropy = options.number(f"{ALGORITHM}entropy_loss_coef", 0.01, "entropy.coef")
    if on:
        built.fields["entropy"] = Term(coef=entropy)
    else:
        options.inert(f"{ALGORITHM}entropy_loss_coef", "use_entropy_loss is off")


def _steering(options: Options, *, is_on: bool) -> dict[str, float]:
    """The target and the horizon of an adaptive coefficient."""
    at = f"{ALGORITHM}kl_ctrl."
    is_adaptive = str(options.get(f"{at}type", "fixed", "a fixed coefficient")) == "adaptive"
    target = options.number(f"{at}kl_target", 0.1, "kl.target")
    horizon = options.number(f"{at}horizon", 10_000, "kl.horizon")
    if is_adaptive and is_on:
        options.differs(f"{at}type", "kl.target and kl.horizon; the KL is a mean over tokens")
        return {"target": float(target), "horizon": float(horizon)}
    for word in ("kl_target", "horizon", *(["type"] if is_adaptive else [])):
        options.inert(at + word, "no KL in the reward is written" if is_adaptive else "kl_ctrl.type is fixed")
    return {}


def _corrected(options: Options, built: Built) -> None:
    """SkyRL's block is ours: the same names, so it is read by the same reader."""
    block = {
        key.removeprefix(CORRECTION): one.value for key, one in options.given.items() if key.startswith(CORRECTION)
    }
    for key in block:
        options.tell(CORRECTION + key, "changed", "correction")
    if options.switch(f"{ALGORITHM}use_tis", False, "correction", status="changed"):
        block.setdefault("tis_ratio_type", "token")
        cap = options.number(f"{ALGORITHM}tis_imp_ratio_cap", 2.0, "band", status="changed")
        block.setdefault("token_tis_ratio_clip_high", cap)
    ends = [block.pop(f"token_mask_is_threshold_{side}", None) for side in ("low", "high")]
    if block:
        built.correct(*OffPolicyCorrection(**block).stages())
    if None not in ends:
        low, high = ends
        built.correct(Stage(part("keep.token_band", band=(float(low), float(high))), ratio="engine"))
    else:
        for side in ("low", "high"):
            options.inert(f"{CORRECTION}token_mask_is_threshold_{side}", "tokens are masked where both bounds are set")
    if built.loss.spends & {factor for stage in built.fields.get("correction", ()) for factor in stage.spends}:
        built.fields["allow_double_count"] = True
        options.warn(
            "The loss compares with the sampler, and the correction carries old/rollout once more: that factor counts "
            "twice, there too. allow_double_count is written. Drop one of them."
        )

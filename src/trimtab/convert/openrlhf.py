"""OpenRLHF's flags (0.11.2) in our names."""

from typing import cast

from trimtab.convert.built import Built, common, divided, engine, group, kl_of, loss_of, sampled
from trimtab.convert.estimators import estimator
from trimtab.convert.options import Options
from trimtab.errors import ConfigError
from trimtab.signal import KL, Part, Stage, Term, part

FREE = (0.0, float("inf"))


def read(options: Options) -> Built:
    """What these flags train with."""
    both = options.number("actor.eps_clip", 0.2, "band", status="changed")
    pair = options.get("actor.eps_clip_low_high", None, "band", status="changed")
    low, high = cast("list[float]", pair) if isinstance(pair, list) else (both, both)
    if pair is not None:
        options.inert("actor.eps_clip", "eps_clip_low_high is set")
    cap = options.number("actor.dual_clip", None, "cap of policy_loss.dual_clipped", status="changed")
    kind = str(options.get("actor.policy_loss_type", "ppo", "loss", status="changed"))
    band = (1 - low, 1 + high)
    if kind == "gspo":
        loss = loss_of("geometric_clipped", band=band)
        options.inert("actor.dual_clip", "policy_loss_type = gspo has no dual clip")
    else:
        loss = loss_of("clipped", band=band) if cap is None else loss_of("dual_clipped", band=band, cap=cap)
    built = Built("OpenRLHF", options, loss, _weighting(options, kind), part("normalize.raw"))
    name = str(options.get("algo.advantage.estimator", "gae", "normalize and advantage", status="changed"))
    gamma, lam = options.number("algo.advantage.gamma", 1.0), options.number("algo.advantage.lambd", 1.0)
    estimator(options, "algo.advantage.estimator", built, name, std=group("group", eps=1e-9), gamma=gamma, lam=lam)
    if name != "gae":
        options.inert("algo.advantage.lambd", f"estimator = {name} has no lambda")
    if options.switch("algo.advantage.no_std_norm", False, "whiten, or std = none", status="changed"):
        if built.fields.get("whiten"):
            options.warn(
                "algo.advantage.no_std_norm: OpenRLHF still takes the batch's mean off. Not written. Check it."
            )
        built.fields["whiten"] = False
    elif built.fields.get("whiten"):
        options.warn(
            f"estimator = {name}: advantages are whitened, by the spread over n tokens in OpenRLHF and over n - 1 here."
        )
    if built.fields.get("value"):
        reach = options.number("critic.value_clip", 0.5, "value_loss.squared_clipped, reach", status="changed")
        built.fields["value"] = Term(coef=1.0, part=part("value_loss.squared_clipped", reach=reach))
    _terms(options, built, name)
    _corrections(options, built)
    _rewards(options, built)
    common(
        built,
        {
            "rollout.batch_size": "prompts_per_step",
            "rollout.n_samples_per_prompt": "samples_per_prompt",
            "rollout.temperature": "temperature",
            "rollout.max_new_tokens": "max_new_tokens",
            "actor.adam.lr": "lr",
            "actor.max_norm": "grad_clip",
            "actor.adam.weight_decay": "weight_decay",
        },
    )
    sampled(built, "rollout.top_p", "rollout.top_k")
    if options.switch("train.force_on_policy", False, "old = current, one step per batch", status="changed"):
        built.fields["old"] = "current"
    epochs = options.number("train.max_epochs", 1, "in train.updates_per_batch", status="changed")
    steps = divided(
        options,
        "rollout.batch_size",
        "train.batch_size",
        per=float(built.train.get("samples_per_prompt", 1)),
        epochs=epochs,
    )
    options.tell(
        "train.batch_size",
        "changed",
        "train.updates_per_batch = rollout.batch_size x n_samples_per_prompt / it x max_epochs",
    )
    if steps:
        built.train["updates_per_batch"] = steps
    options.rest(dotted=True)
    return built


def _weighting(options: Options, kind: str) -> Part:
    mode = str(options.get("actor.loss_agg_mode", "token-mean", "weighting", status="changed"))
    if kind == "gspo" and mode == "token-mean":
        options.inert("actor.loss_agg_mode", "policy_loss_type = gspo averages sequences")
    by_sequence = kind == "gspo" or mode == "seq-mean-token-mean"
    return part("weighting.sequence_mean_token_mean" if by_sequence else "weighting.token_mean")


def _terms(options: Options, built: Built, name: str) -> None:
    coef = options.number("algo.kl.init_coef", 0.01, "kl.coef")
    kind = str(options.get("algo.kl.estimator", "k1", "kl", status="changed"))
    in_loss = options.switch("algo.kl.use_loss", False, "kl, into = loss", status="changed")
    steering = _steering(options, coef, in_loss=in_loss)
    is_unbiased = options.switch(
        "algo.kl.unbiased_gradient", False, "kl.importance_weighted_k2_gradient", status="changed"
    )
    if coef == 0:
        options.inert("algo.kl.use_loss", "algo.kl.init_coef is 0")
        options.inert("algo.kl.estimator", "algo.kl.init_coef is 0")
    if is_unbiased and (coef == 0 or not in_loss):
        options.inert("algo.kl.unbiased_gradient", "there is no KL in the loss")
    written = kl_of(options, "algo.kl.estimator", kind, coef, "loss" if in_loss else "token_reward", **steering)
    if written and in_loss and is_unbiased:
        value = written.part.formula.name.removeprefix("kl.")
        weighted = part("kl.importance_weighted_k2_gradient", value=value, cap=10.0)
        written = KL(weighted, coef=written.coef, into="loss", anchor="old")
    if written and not in_loss and built.advantage.formula.name == "advantage.broadcast":
        # Their KL is taken from each token after the answers were compared, and added up to the end.
        built.advantage = part("advantage.reward_to_go", gamma=1.0)
    if written and in_loss and built.weighting.formula.name != "weighting.token_mean":
        options.warn(
            "algo.kl.use_loss: OpenRLHF weighs its KL by tokens always. Here the KL is weighed as the loss is."
        )
    built.fields["kl"] = written
    entropy = options.number("actor.entropy_coef", 0.0, "entropy.coef")
    built.fields["entropy"] = Term(coef=entropy) if entropy else None


def _steering(options: Options, coef: float, *, in_loss: bool) -> dict[str, float]:
    """The target and the horizon of an adaptive coefficient."""
    target = options.number("algo.kl.target", None, "kl.target")
    horizon = options.number("algo.kl.horizon", 10_000, "kl.horizon")
    if target is None or not coef:
        options.inert("algo.kl.horizon", "algo.kl.target is not set" if target is None else "algo.kl.init_coef is 0")
        options.inert("algo.kl.target", "algo.kl.init_coef is 0")
        return {}
    if in_loss:
        options.tell("algo.kl.horizon", "no equivalent", "as algo.kl.target")
        options.lost(
            "algo.kl.target", "only a KL in the reward is steered; the coefficient stays as it starts",
            "algo.kl.target with algo.kl.use_loss: the coefficient changes there and stays here.",
        )  # fmt: skip
        return {}
    options.differs("algo.kl.target", "kl.target; the KL of a batch is a mean over its tokens")
    return {"target": float(target), "horizon": float(horizon)}


def _corrections(options: Options, built: Built) -> None:
    start = "algo.advantage.is_correction_"
    level = str(options.get(f"{start}level", "off", "correction", status="changed"))
    mode = str(options.get(f"{start}mode", "mask", "correction", status="changed"))
    gating = str(options.get(f"{start}gating", "ratio", "correction", status="changed"))
    bounds = options.get(f"{start}threshold", [0.5, 5.0], "band", status="changed")
    old = str(options.get(f"{start}type", "tis", "correction", status="changed"))  # the names before 0.11.2
    if options.switch(f"{start}enable", False, "correction", status="changed"):
        level, mode = ("seq" if old == "seq-mask-tis" else "token"), ("clip" if old == "tis" else "mask")
    if level == "off":
        for key in ("mode", "gating", "threshold"):
            options.inert(start + key, "is_correction_level is off")
        return
    low, high = (
        (0.0, bounds)
        if isinstance(bounds, int | float)
        else (bounds[0], bounds[-1])
        if len(bounds) > 1
        else (0.0, bounds[0])
    )
    if built.loss.part.formula.name == "policy_loss.geometric_clipped":
        # GSPO reads none of it: its ratio is that to the sampler as soon as a level is set.
        built.loss = Stage(built.loss.part, anchor="rollout")
        options.differs(f"{start}level", "loss.anchor = rollout")
        for key in ("mode", "gating", "threshold"):
            options.inert(start + key, "policy_loss_type = gspo has the sampler in its ratio instead")
        return
    band = (float(low), float(high))
    if gating == "ratio" and mode == "clip":
        built.correct(engine("importance.truncated", level="token", band=band))
        return
    built.correct(_gate(options, level, gating, band), engine("importance.truncated", level="token", band=FREE))


def _gate(options: Options, level: str, gating: str, band: tuple[float, float]) -> Stage:
    """What is dropped: by its ratio, or by a divergence, which is bounded from above alone."""
    key, limit, is_token = "algo.advantage.is_correction_gating", band[1], level == "token"
    if gating == "ratio":
        return engine("keep.token_band" if is_token else "keep.geometric_band", band=band)
    if gating == "binary_kl":
        options.differs(key, "keep.binary_kl; probabilities are bounded inside the logarithm of the rest alone")
        return engine(
            "keep.binary_kl", limit=limit, level="token" if is_token else "sequence", by_sign=False,
            direction="earlier_to_later", eps=1e-6,
        )  # fmt: skip
    if gating != "tv":
        raise ConfigError(f"convert: {key} = {gating!r} is not known; OpenRLHF 0.11.2 has ratio, binary_kl and tv.")
    if is_token:
        options.differs(key, "keep.probability_band, by_sign = false")
        return engine("keep.probability_band", low=limit, high=limit, by_sign=False)
    options.differs(key, "keep.total_variation")
    return engine("keep.total_variation", limit=limit)


def _clip(options: Options, built: Built) -> None:
    """Bounds on an answer's credit, which they take after it was compared and before the KL."""
    key = "reward.clip_range"
    low, high = cast("list[float]", options.get(key, [-10.0, 10.0], "clip_advantage", status="changed"))
    if not options.has(key):
        return
    if low != -high:
        options.lost(key, "clip_advantage has one bound for both sides",
                     f"{key} = {low:g} {high:g} is not symmetric: not written. Check it.")  # fmt: skip
        return
    built.fields["clip_advantage"] = float(high)
    kl = built.fields.get("kl")
    if built.fields.get("whiten") or (kl and kl.into != "loss") or built.fields.get("value"):
        options.differs(key, "clip_advantage; theirs is taken before the KL, returns and whitening")


def _rewards(options: Options, built: Built) -> None:
    shaping: list[object] = []
    length = options.get("reward.overlong_buffer_len", None, "reward.soft_overlong, buffer", status="changed")
    factor = options.number("reward.overlong_penalty_factor", 1.0, "reward.soft_overlong, factor", status="changed")
    width = options.get("rollout.max_new_tokens", None)
    if length and width:
        shaping.append(part("reward.soft_overlong", max_length=int(width), buffer=int(length), factor=float(factor)))
    elif not length:
        options.inert("reward.overlong_penalty_factor", "reward.overlong_buffer_len is not set")
    coef = options.number("reward.stop_properly_penalty_coef", None, "reward.not_ended_scale", status="changed")
    if coef is not None and coef >= 0:
        shaping.append(part("reward.not_ended_scale", factor=float(coef)))
    elif coef is not None:
        options.differs("reward.stop_properly_penalty_coef", "reward.not_ended_constant")
        shaping.append(part("reward.not_ended_constant", value=float(coef)))
    built.fields["reward"] = tuple(shaping)
    _clip(options, built)
    band = options.get("algo.dynamic_filtering_range", [0.0, 1.0], "group_mean_band", status="changed")
    if not options.switch("algo.dynamic_filtering_enable", False, "group_mean_band", status="changed"):
        options.inert("algo.dynamic_filtering_range", "algo.dynamic_filtering_enable is off")
        return
    low, high = cast("list[float]", band)
    built.fields["group_mean_band"], built.train["dynamic_sampling"] = (float(low), float(high)), 10
    options.differs(
        "algo.dynamic_filtering_enable",
        "group_mean_band; train.dynamic_sampling replaces groups that are all alike, and not others outside the band",
    )

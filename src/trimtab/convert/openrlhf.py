"""OpenRLHF's flags (0.11.2) in our names."""

from typing import cast

from trimtab.convert.built import Built, common, divided, engine, estimator, group, kl_of, loss_of
from trimtab.convert.options import Options
from trimtab.signal import Term, part


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
    agg = str(options.get("actor.loss_agg_mode", "token-mean", "weighting", status="changed"))
    by_sequence = kind == "gspo" or agg == "seq-mean-token-mean"
    weighting = part("weighting.sequence_mean_token_mean" if by_sequence else "weighting.token_mean")
    built = Built("OpenRLHF", options, loss, weighting, part("normalize.raw"))
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


def _terms(options: Options, built: Built, name: str) -> None:
    coef = options.number("algo.kl.init_coef", 0.01, "kl.coef")
    kind = str(options.get("algo.kl.estimator", "k1", "kl", status="changed"))
    in_loss = options.switch("algo.kl.use_loss", False, "kl, into = loss", status="changed")
    if options.get("algo.kl.target", None, "a fixed coefficient") is not None:
        options.tell("algo.kl.target", "no equivalent", "the coefficient stays as it starts")
        options.warn("algo.kl.target: the coefficient changes there and stays here.")
    else:
        options.inert("algo.kl.horizon", "algo.kl.target is not set")
    if options.switch("algo.kl.unbiased_gradient", False, status="no equivalent"):
        options.warn("algo.kl.unbiased_gradient has no equivalent in this converter.")
    if coef == 0:
        options.inert("algo.kl.use_loss", "algo.kl.init_coef is 0")
        options.inert("algo.kl.estimator", "algo.kl.init_coef is 0")
    into = "loss" if in_loss else "token_reward"
    if coef and not in_loss and built.advantage.formula.name == "advantage.broadcast":
        built.advantage = part("advantage.reward_to_go", gamma=1.0)  # the penalties from each token on
    if in_loss and built.weighting.formula.name != "weighting.token_mean":
        options.warn(
            "algo.kl.use_loss: OpenRLHF weighs its KL by tokens always. Here the KL is weighed as the loss is."
        )
    built.fields["kl"] = kl_of(options, "algo.kl.estimator", kind, coef, into)
    entropy = options.number("actor.entropy_coef", 0.0, "entropy.coef")
    built.fields["entropy"] = Term(coef=entropy) if entropy else None


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
    free = engine("importance.truncated", level="token", band=(0.0, float("inf")))
    if gating == "ratio" and mode == "clip":
        built.correct(engine("importance.truncated", level="token", band=(float(low), float(high))))
    elif gating == "ratio":
        built.correct(
            engine("keep.token_band" if level == "token" else "keep.geometric_band", band=(float(low), float(high))),
            free,
        )
    else:
        formula = {"binary_kl": "keep.binary_kl", "tv": "keep.total_variation"}[gating]
        built.correct(engine(formula, level="token" if level == "token" else "sequence", limit=float(high)), free)


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
        options.tell("reward.stop_properly_penalty_coef", "no equivalent", "a negative number sets the reward to it")
        options.warn(
            "reward.stop_properly_penalty_coef below 0 sets the reward of unfinished answers: not written. Check it."
        )
    built.fields["reward"] = tuple(shaping)
    if options.switch("algo.dynamic_filtering_enable", False, "filter_constant_groups", status="changed"):
        built.fields["filter_constant_groups"], built.train["dynamic_sampling"] = True, 10
        options.tell(
            "algo.dynamic_filtering_range",
            "changed",
            "groups that are all alike are dropped; theirs is a range of means",
        )
    else:
        options.inert("algo.dynamic_filtering_range", "algo.dynamic_filtering_enable is off")

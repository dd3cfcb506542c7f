"""AReaL's credit and its rejection sampling (1.0.4) in our names."""

from math import exp
from typing import Any

from trimtab.convert.band import Band, inverse, ratio_band
from trimtab.convert.built import Built, counting, engine
from trimtab.convert.options import Options
from trimtab.signal import Part, Stage, Term, part

AT = "actor.rejection_sampling."
FREE = (0.0, float("inf"))
LAMBDAS = {
    "vapo_length_adaptive_gae": ("advantage.gae_by_length", "alpha", "alpha"),
    "relative_position_gae_lambda": ("advantage.gae_by_share", "q", "share"),
}
"""Functions that make a lambda of a length (main, after 1.0.4): our formula, their setting and ours."""


def credit(options: Options, built: Built, *, has_kl: bool) -> None:
    """GAE, also where there is no critic: then values are 0, and it is a sum discounted by gamma and lambda."""
    gamma = options.number("actor.discount", 1.0)
    lam = options.get("actor.gae_lambda", 1.0, "advantage", status="changed")
    if not any(key.startswith("critic.") for key in options.given):
        _without_critic(options, built, gamma, lam, has_kl=has_kl)
        return
    reach = options.number("critic.eps_clip", 0.5, "value_loss.squared_clipped, reach", status="changed")
    built.fields["value"] = Term(coef=1.0, part=part("value_loss.squared_clipped", reach=reach))
    by_turn = str(options.get("actor.gae_timestep_unit", "token", "advantage", status="changed")) == "turn"
    if not isinstance(lam, str):
        built.advantage = part("advantage.turn_gae" if by_turn else "advantage.gae", gamma=gamma, lam=lam)
        return
    name, theirs, ours = LAMBDAS.get(lam.rpartition(".")[2], ("", "", ""))
    value = options.number(f"actor.gae_lambda_kwargs.{theirs}", None, f"{name}, {ours}", status="changed")
    if name and value is not None and not by_turn:
        more: dict[str, Any] = {"lam_value": 1.0} if ours == "alpha" else {}
        built.advantage = part(name, gamma=gamma, **{ours: float(value)}, **more)
        if more:
            options.differs("actor.gae_lambda", f"{name}; returns have lambda 1, theirs the advantage's")
        return
    built.advantage = part("advantage.turn_gae" if by_turn else "advantage.gae", gamma=gamma, lam=1.0)
    why = "of turns" if by_turn else "without its setting" if name else "of yours"
    options.lost(
        "actor.gae_lambda",
        "lambda 1 is written",
        f"gae_lambda = {lam}: a function {why} has no equivalent: lambda 1 is written. Check it.",
    )


def _without_critic(options: Options, built: Built, gamma: float, lam: Any, *, has_kl: bool) -> None:
    if isinstance(lam, str):
        options.lost(
            "actor.gae_lambda",
            "lambda 1 is written",
            f"gae_lambda = {lam} without a critic has no equivalent: lambda 1 is written. Check it.",
        )
        lam = 1.0
    if has_kl or gamma * lam != 1.0:
        built.advantage = part("advantage.reward_to_go", gamma=gamma * lam)
        options.differs("actor.gae_lambda", "advantage.reward_to_go, gamma = discount x it: there is no critic")


def correct(options: Options, built: Built, *, is_decoupled: bool) -> None:
    """Add the stages that these options switch on."""
    _proximal(options, built, is_decoupled=is_decoupled)
    limit = options.number("actor.m2_threshold", None, "keep.second_moment, limit", status="changed")
    if limit is not None and is_decoupled:
        built.correct(engine("keep.second_moment", limit=float(limit)))
        built.weighting = counting(built.weighting, "kept")
        options.differs(
            "actor.m2_threshold",
            "keep.second_moment, weighting over kept tokens; of the whole batch, theirs of each micro-batch",
        )
        if any(key.startswith(AT) for key in options.given):
            options.warn("m2_threshold leaves the denominator in AReaL and rejection_sampling does not. Here both do.")
    if not is_decoupled:
        for key in [key for key in options.given if key.startswith(AT) or key == "actor.m2_threshold"]:
            options.inert(key, "use_decoupled_loss is off")
        return
    _ = options.get(AT.removesuffix("."), None, "no correction", status="changed")
    if any(key.startswith(AT) for key in options.given):  # without the block AReaL does not weigh by old/rollout either
        built.correct(*_rejection(options))


def _proximal(options: Options, built: Built, *, is_decoupled: bool) -> None:
    """Where the old policy of decoupled PPO comes from."""
    key = "actor.prox_logp_method"
    method = str(options.get(key, "recompute", 'old = "recompute"', status="changed"))
    if not is_decoupled:
        options.inert(key, "use_decoupled_loss is off")
    elif method == "loglinear":
        built.fields["old"] = "interpolated"
        options.differs(key, 'old = "interpolated" (A-3PO)')
    elif method == "metrics":
        options.differs(key, 'old = "recompute"; it trains with that, and measures the others')
    elif method != "recompute":
        options.lost(key, "logp_old is recomputed", f"{key} = {method}: logp_old is recomputed here.")


def _rejection(options: Options) -> tuple[Stage, ...]:
    """What is dropped, and the weight of what stays."""
    metric, level, action, agg = (
        str(options.get(AT + word, usual, "correction", status="changed"))
        for word, usual in (("metric", "ratio"), ("level", "token"), ("action", "mask"), ("agg", "mean"))
    )
    low = options.number(f"{AT}lower", None, "band", status="changed")
    high = float(options.number(f"{AT}upper", 5.0, "band", status="changed"))
    where = "token" if level == "token" else agg
    if level == "token" and agg != "mean":
        options.inert(f"{AT}agg", "level = token")
    weight = "geometric" if metric == "ratio" and level != "token" else "token"
    free = engine("importance.truncated", level=weight, band=FREE)
    if action == "clamp":
        if where in ("sum", "max"):
            options.lost(
                f"{AT}agg",
                "the geometric mean itself is bounded",
                f"rejection_sampling.agg = {agg} with action = clamp: the geometric mean itself is bounded. Check it.",
            )
        return (engine("importance.truncated", level=weight, band=(float(low or 0.0), high)),)
    if metric in ("ratio", "kl_k1"):
        ends = (0.0 if low is None else float(low), high)
        if metric == "kl_k1":
            ends = (0.0 if low is None else exp(low), exp(high))
        return engine_of(_banded(options, where, ends, has_low=low is not None)), free
    if metric == "binary_kl":
        return _coins(options, where, high), free
    if metric not in ("kl_k2", "kl_k3"):
        options.lost(
            f"{AT}metric",
            "no rejection is written",
            f"rejection_sampling.metric = {metric} is not known here: no rejection is written. Check it.",
        )
        return (free,)
    return engine_of(_limited(options, where, metric.removeprefix("kl_"), high)), free


def _coins(options: Options, where: str, limit: float) -> Stage:
    """KPop: the larger binary KL of both directions below a limit, of a token or on a sequence's average."""
    if where not in ("token", "mean"):
        options.lost(f"{AT}agg", "the mean is bounded", f"rejection_sampling.agg = {where} with binary_kl has no "
                     "equivalent: the sequence's mean is bounded. Check it.")  # fmt: skip
    level = "token" if where == "token" else "sequence"
    return engine("keep.binary_kl", limit=limit, level=level, direction="larger", by_sign=False)


def engine_of(one: Part) -> Stage:
    return Stage(one, ratio="engine")


def _banded(options: Options, where: str, band: Band, *, has_low: bool) -> Part:
    """Ratios inside a band: of a token, a product, a geometric mean, or the largest of a sequence."""
    if where == "max":
        if has_low:
            options.lost(
                f"{AT}lower",
                "only the upper bound is written",
                "rejection_sampling.lower with agg = max holds the largest ratio from below: not written.",
            )
        return part("keep.veto", high=max(band[1], 1.0))
    names = {"token": "keep.token_band", "sum": "keep.product_band", "mean": "keep.geometric_band"}
    return part(names[where], band=band)


def _limited(options: Options, where: str, measure: str, limit: float) -> Part:
    """k2 or k3 below a limit. Their k3 is of rollout/old: exact where one token decides."""
    band = ratio_band(measure, limit)
    band = inverse(band) if measure == "k3" else band
    if where == "token":
        return part("keep.token_band", band=band)
    if where == "max":
        return part("keep.veto", low=band[0], high=band[1])
    if measure == "k3":
        options.differs(f"{AT}metric", "keep.divergence, k3 of old/rollout; theirs is of rollout/old")
    return part("keep.divergence", limit=limit, measure=measure, total=where)

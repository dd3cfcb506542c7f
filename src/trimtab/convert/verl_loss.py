"""verl's policy loss and the mean it takes (0.9.1) in our names."""

from math import exp

from trimtab.convert.built import loss_of
from trimtab.convert.options import Options
from trimtab.signal import part

ACTOR = "actor_rollout_ref.actor."
MEANS = {
    "token-mean": "weighting.token_mean",
    "seq-mean-token-mean": "weighting.sequence_mean_token_mean",
    "seq-mean-token-sum": "weighting.sequence_mean_token_sum",
    "token-sum": "weighting.token_sum",
    "seq-mean-token-sum-norm": "weighting.constant_divisor",
}
OWN_MEAN = ("sapo", "geo_mean")
"""Losses that do not read loss_agg_mode."""


def policy_loss(options: Options):
    mode = str(options.get(f"{ACTOR}policy_loss.loss_mode", "vanilla", "loss", status="changed"))
    low, high = reach(options)
    cap = options.number(f"{ACTOR}clip_ratio_c", 3.0, "cap of policy_loss.dual_clipped", status="changed")
    if mode != "vanilla":
        options.inert(f"{ACTOR}clip_ratio_c", f"loss_mode = {mode} has no dual clip")
    for key in ("tau_pos", "tau_neg"):
        options.inert(f"{ACTOR}policy_loss.{key}", f"verl reads actor.{key}")
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
        case "geo_mean":  # its bounds are of the log-ratio
            return loss_of("geometric_of_clipped", band=(exp(-low), exp(high)))
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


def reach(options: Options) -> tuple[float, float]:
    """How far the ratio may go each way. Both sides have a default of 0.2, so `clip_ratio` counts where one is null."""
    both = options.number(f"{ACTOR}clip_ratio", 0.2, "band", status="changed")
    asked = [options.given.get(f"{ACTOR}clip_ratio_{side}") for side in ("low", "high")]
    is_null = [one is not None and one.value is None for one in asked]
    low = options.number(f"{ACTOR}clip_ratio_low", both if is_null[0] else 0.2, "band", status="changed")
    high = options.number(f"{ACTOR}clip_ratio_high", both if is_null[1] else 0.2, "band", status="changed")
    if not any(is_null):
        options.inert(f"{ACTOR}clip_ratio", "clip_ratio_low and clip_ratio_high count, and are 0.2 by themselves")
    return low, high


def weighting(options: Options, width: int):
    if (loss := str(options.get(f"{ACTOR}policy_loss.loss_mode", "vanilla"))) in OWN_MEAN:
        options.inert(f"{ACTOR}loss_agg_mode", f"loss_mode = {loss} takes the mean over sequences, whatever is said")
        return part("weighting.sequence_mean_token_mean")
    mode = str(options.get(f"{ACTOR}loss_agg_mode", "token-mean", "weighting", status="changed"))
    if mode not in MEANS:
        options.tell(f"{ACTOR}loss_agg_mode", "no equivalent", "weighting.token_mean is written instead")
        options.warn(f"loss_agg_mode = {mode} is not known here: token_mean is written. Check it.")
        return part("weighting.token_mean")
    scale = options.number(f"{ACTOR}loss_scale_factor", None, "divisor of weighting.constant_divisor", status="changed")
    if mode == "seq-mean-token-sum-norm":
        return part(MEANS[mode], divisor=float(scale or width))
    return part(MEANS[mode])

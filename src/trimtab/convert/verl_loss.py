"""verl's policy losses (0.9.1) in our names, with the tokens that a loss of verl drops by itself."""

from math import exp

from trimtab.convert.built import loss_of
from trimtab.convert.options import Options
from trimtab.signal import Stage, part

ACTOR = "actor_rollout_ref.actor."
MODE = f"{ACTOR}policy_loss.loss_mode"
BY_SEQUENCE = {
    "sapo": "always averages the tokens of a sequence, then sequences",
    "geo_mean": "is one number per sequence; theirs is a plain mean over the rows of a micro-batch",
}
"""Losses that do not read loss_agg_mode, and what they do instead."""


def loss_and_keep(options: Options) -> tuple[Stage, tuple[Stage, ...]]:
    """The loss by its mode, and what it drops."""
    mode = str(options.get(MODE, "vanilla", "loss", status="changed"))
    low, high = _sides(options)
    band = (max(0.0, 1 - low), 1 + high)
    cap = options.number(f"{ACTOR}clip_ratio_c", 3.0, "cap of policy_loss.dual_clipped", status="changed")
    if mode not in ("vanilla", "dppo_tv", "dppo_kl"):
        options.inert(f"{ACTOR}clip_ratio_c", f"loss_mode = {mode} has no dual clip")
    for key in ("tau_pos", "tau_neg"):
        options.inert(f"{ACTOR}policy_loss.{key}", f"verl reads actor.{key}")
    match mode:
        case "vanilla":
            return vanilla(options), ()
        case "dppo_tv" | "dppo_kl":
            options.differs(f"{ACTOR}clip_ratio_c", "band of policy_loss.clipped_importance")
            return loss_of("clipped_importance", band=(0.0, float(cap))), (_near(options, mode, low, high),)
        case "gspo":
            return loss_of("geometric_clipped_token", band=band), ()
        case "geo_mean":
            options.differs(f"{ACTOR}clip_ratio_low", "band; of log-ratios, so its exponential")
            options.differs(f"{ACTOR}clip_ratio_high", "band; of log-ratios, so its exponential")
            return loss_of("geometric_of_clipped", band=(exp(-low), exp(high))), ()
        case "cispo":
            return loss_of("clipped_importance", band=band), ()
        case "gpg":
            return loss_of("reinforce", anchor=None), ()
        case "dro":
            beta = options.number(f"{ACTOR}policy_loss.dro_beta", 0.1, "policy_loss.quadratic, coef")
            return loss_of("quadratic", coef=float(beta)), ()
        case "sapo":
            temperatures = [options.number(f"{ACTOR}tau_{side}", usual, "temperature") for side, usual in
                            (("pos", 1.0), ("neg", 1.05))]  # fmt: skip
            return loss_of(
                "soft_gated", temperature_positive=temperatures[0], temperature_negative=temperatures[1]
            ), ()  # fmt: skip
        case "clip_cov" | "kl_cov":
            return _covariance(options, mode, band), ()
        case _:
            options.lost(
                MODE, "policy_loss.dual_clipped is written instead",
                f"loss_mode = {mode} has no equivalent in this converter: verl's default loss is written. Check it.",
            )  # fmt: skip
            return vanilla(options), ()


def vanilla(options: Options, anchor: str = "old") -> Stage:
    """verl's default loss."""
    low, high = _sides(options)
    cap = options.number(f"{ACTOR}clip_ratio_c", 3.0, "cap of policy_loss.dual_clipped", status="changed")
    return loss_of("dual_clipped", anchor=anchor, band=(max(0.0, 1 - low), 1 + high), cap=cap)


def _sides(options: Options) -> tuple[float, float]:
    """How far the clip reaches down and up. clip_ratio is read where a side is null, and by default none is."""
    both = options.number(f"{ACTOR}clip_ratio", 0.2, "band", status="changed")
    sides: list[float] = []
    own = 0
    for side in ("low", "high"):
        key = f"{ACTOR}clip_ratio_{side}"
        is_null = options.has(key) and options.given[key].value is None
        sides.append(options.number(key, both if is_null else 0.2, "band", status="changed"))
        own += not is_null
    if own == 2 and both not in sides:
        why = "are both set" if options.has(f"{ACTOR}clip_ratio_low") else "are 0.2 unless they are null"
        options.inert(f"{ACTOR}clip_ratio", f"clip_ratio_low and clip_ratio_high {why}")
    return sides[0], sides[1]


def _near(options: Options, mode: str, low: float, high: float) -> Stage:
    """DPPO's trust region: of probabilities, or of the KL of two coins."""
    if mode == "dppo_tv":
        options.differs(MODE, "keep.probability_band; a token of advantage 0 is kept")
        return Stage(part("keep.probability_band", low=float(low), high=float(high), by_sign=True), ratio="update")
    options.differs(MODE, "keep.binary_kl; a token of advantage 0 is kept")
    if low != high:
        options.warn(
            f"loss_mode = dppo_kl with clip_ratio_low = {low:g} and clip_ratio_high = {high:g}: keep.binary_kl has one "
            f"limit for both signs, and {max(low, high):g} is written. Check it."
        )
    limit = float(max(low, high))
    return Stage(part("keep.binary_kl", limit=limit, level="token", by_sign=True, eps=1e-8), ratio="update")


def _covariance(options: Options, mode: str, band: tuple[float, float]) -> Stage:
    inner = f"{ACTOR}policy_loss."
    if mode == "kl_cov":
        return loss_of(
            "covariance_penalised", fraction=options.number(f"{inner}kl_cov_ratio", 2e-4),
            coef=options.number(f"{inner}ppo_kl_coef", 0.1),
        )  # fmt: skip
    options.differs(MODE, "policy_loss.covariance_clipped; means are of the optimiser step, theirs of a micro-batch")
    return loss_of(
        "covariance_clipped", band=band, fraction=options.number(f"{inner}clip_cov_ratio", 2e-4),
        covariance_low=float(options.number(f"{inner}clip_cov_lb", 1.0)),
        covariance_high=float(options.number(f"{inner}clip_cov_ub", 5.0)),
    )  # fmt: skip

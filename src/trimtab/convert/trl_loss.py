"""TRL's losses (1.16) in our names: loss_type, the level of the ratio, and the trainer of GMPO."""

from math import exp
from typing import Any

from trimtab.convert.built import loss_of
from trimtab.convert.options import Options
from trimtab.signal import Part, Stage, part

MEANS = {
    "grpo": "weighting.sequence_mean_token_mean",
    "sapo": "weighting.sequence_mean_token_mean",
    "bnpo": "weighting.token_mean",
    "dapo": "weighting.token_mean",
    "cispo": "weighting.token_mean",
    "vespo": "weighting.token_mean",
    "dr_grpo": "weighting.constant_divisor",
    "luspo": "weighting.sequence_mean_token_sum",
}

VESPO = {"power_positive": ("vespo_k_pos", 2.0), "rate_positive": ("vespo_lambda_pos", 3.0),
         "power_negative": ("vespo_k_neg", 3.0), "rate_negative": ("vespo_lambda_neg", 2.0)}  # fmt: skip


def is_gmpo_trainer(options: Options) -> bool:
    """Whether the file configures TRL's experimental GMPO trainer: known of a GMPOConfig in Python alone."""
    return options.get("trainer", None, "policy_loss.geometric_of_clipped", status="changed") == "GMPOConfig"


def loss_and_keep(options: Options, kind: str) -> tuple[Stage, tuple[Stage, ...]]:
    """The loss by its type and level, and the stages that belong to it."""
    is_gmpo = is_gmpo_trainer(options)
    low = options.number("epsilon", 0.4 if is_gmpo else 0.2, "band", status="changed")
    high = options.number("epsilon_high", None, "band", status="changed")
    delta = options.number("delta", None, "cap of policy_loss.dual_clipped", status="changed")
    by_sequence = options.get("importance_sampling_level", "token", "loss", status="changed") == "sequence"
    high = low if high is None else high
    band = (max(0.0, 1 - low), 1 + high)
    if is_gmpo:
        for key in ("delta", "loss_type", "importance_sampling_level"):
            options.inert(key, "the GMPO trainer does not read it")
        for key in ("epsilon", "epsilon_high"):
            options.differs(key, "band; of log-ratios, so its exponential")
        return loss_of("geometric_of_clipped", band=(exp(-low), exp(high))), ()
    match kind:
        case "cispo":
            options.inert("epsilon", "loss_type = cispo reads epsilon_high alone, as an absolute bound")
            bounded = (0.0, float(high))
            if not by_sequence:
                return loss_of("clipped_importance", band=bounded), ()
            shared = Stage(part("importance.truncated", level="geometric", band=bounded), ratio="update")
            options.differs("importance_sampling_level", "policy_loss.reinforce under importance.truncated on update")
            return loss_of("reinforce", anchor=None), (shared,)
        case "sapo":
            for key in ("epsilon", "epsilon_high", "delta"):
                options.inert(key, "loss_type = sapo does not clip")
            return loss_of(
                "geometric_soft_gated" if by_sequence else "soft_gated",
                temperature_positive=options.number("sapo_temperature_pos", 1.0),
                temperature_negative=options.number("sapo_temperature_neg", 1.05),
            ), ()  # fmt: skip
        case "vespo":
            for key in ("epsilon", "epsilon_high", "delta"):
                options.inert(key, "loss_type = vespo does not clip")
            powers: dict[str, Any] = {ours: float(options.number(key, usual, f"policy_loss.gamma_weighted, {ours}"))
                      for ours, (key, usual) in VESPO.items()}  # fmt: skip
            return loss_of("gamma_weighted", **powers), ()
        case _:
            pass
    if by_sequence:
        if delta is not None:
            options.lost("delta", "there is no dual clip of a sequence's ratio",
                         "delta with importance_sampling_level = sequence: not written. Check it.")  # fmt: skip
        return loss_of("geometric_clipped", band=band), ()
    return loss_of("clipped", band=band) if delta is None else loss_of("dual_clipped", band=band, cap=delta), ()


def weighting_of(options: Options, kind: str, width: int) -> Part:
    """The denominator that comes with the loss."""
    if is_gmpo_trainer(options):
        return part("weighting.sequence_mean_token_mean")
    if kind not in MEANS:
        options.lost("loss_type", "weighting.token_mean is written",
                     f"loss_type = {kind} is not known here: dapo's is written. Check it.")  # fmt: skip
        return part("weighting.token_mean")
    if kind == "bnpo":
        options.warn(
            "loss_type = bnpo divides by the tokens of each micro-batch, so it depends on how a step is cut. "
            "token_mean over the step is written."
        )
    return part(MEANS[kind], divisor=float(width)) if kind == "dr_grpo" else part(MEANS[kind])

"""Options that do nothing, options that mean nothing, conventions that are other ones (I21)."""

from dataclasses import replace

from mutants.edit import plant
from mutants.ours.formulas import by_part, formula, undefined
from mutants.ours.loss import aggregation, surrogate

losses = "signal.policy_loss:"
dual = replace(
    by_part("policy_loss.dual_clipped", band=(0.8, 1.2), cap=3.0),
    variants={"cap": (1.3,), "band": ((0.5, 2.0),)},
    impossible={"band": ((1.2, 0.8), (0.2, 0.28)), "cap": (-1.0, float("nan"))},
)
gae = replace(
    by_part("advantage.gae", gamma=0.9, lam=0.5),
    variants={"gamma": (1.0,), "lam": (1.0,)},
    impossible={"gamma": (1.5,), "lam": (-0.1,)},
)
divided = replace(
    aggregation("constant_divisor", divisor=8.0), variants={"divisor": (4.0,)}, impossible={"divisor": (0.0,)}
)
clip = replace(
    undefined(formula("reward.clip", low=-0.5, high=1.0)),
    variants={"low": (0.5,), "high": (0.5,)},
    impossible={"low": (1.0,)},
)

plant(
    "options_live", "cap_never_reaches_the_loss", dual, losses + "dual_clipped", "ceiling = -cap *", "ceiling = -3.0 *"
)
plant(
    "options_live",
    "lambda_is_not_read",
    gae,
    "signal.advantage:gae",
    "segments, gamma * lam)",
    "segments, gamma * 0.5)",
)
plant(
    "options_live",
    "divisor_is_the_default",
    divided,
    "signal.weighting:constant_divisor",
    "over=over) / divisor",
    "over=over) / 8.0",
)
plant(
    "options_live",
    "lower_bound_is_forgotten",
    clip,
    "signal.reward:clip",
    "reward.clamp(low, high)",
    "reward.clamp(-0.5, high)",
)

plant(
    "impossible_options_refused",
    "offsets_taken_for_a_band",
    dual,
    "signal.parts:_value",
    "for rule in _rules(annotation):",
    "for rule in _rules(annotation)[:1]:",
)
plant(
    "impossible_options_refused",
    "bounds_that_are_swapped",
    clip,
    "signal.reward:clip",
    "if low >= high:",
    "if low > high:",
)
plant(
    "impossible_options_refused",
    "unknown_average_falls_back",
    replace(aggregation("token_mean"), impossible={"weighting": ("weighting.token_men",)}),
    "signal.catalogue:find",
    "raise SignalError(unknown_name(",
    'return known["weighting.token_mean"]\n    raise SignalError(unknown_name(',
)
plant(
    "impossible_options_refused",
    "discount_above_one",
    gae,
    "signal.parts:_value",
    "if read is not None and not rule.holds(read):",
    "if False:",
)

standard = undefined(
    formula("normalize.mean_std", mean="group", std="group", ddof=1, eps=1e-6),
    conventions={"normalisation": "group mean / (group std, ddof 1, + 1e-06)"},
)
plant(
    "declared_conventions",
    "another_ddof_than_declared",
    standard,
    "signal.normalize:mean_std",
    "spread(around, ddof)",
    "spread(around, 0)",
)
plant(
    "declared_conventions",
    "another_epsilon_than_declared",
    standard,
    "signal.normalize:mean_std",
    "(spread + eps)",
    "(spread + 1e-4)",
)
banded = surrogate(kl_coef=0.0, entropy_coef=0.0, band=(0.8, 1.28))
plant(
    "declared_conventions",
    "band_that_is_symmetric",
    replace(banded, conventions={"band": "0.80 to 1.28"}),
    losses + "_clip",
    "ratio.clamp(*band)",
    "ratio.clamp(band[0], 2 - band[0])",
)
plant(
    "declared_conventions",
    "another_estimator_than_declared",
    undefined(formula("kl.k3"), conventions={"kl": "k3 of logp_current against logp_ref"}),
    "signal.kl:k3",
    "return bounded_exp(difference) - difference - 1",
    "return 0.5 * difference.square()",
)

# --- sides -----------------------------------------------------------------------------------------------------------

gated = replace(
    undefined(formula("policy_loss.soft_gated", temperature_positive=1.0, temperature_negative=1.05)),
    variants={"temperature_positive": (2.0,), "temperature_negative": (3.0,)},
)
plant(
    "options_take_sides",
    "temperatures_by_the_other_sign",
    gated,
    losses + "soft_gated",
    "tau = torch.where(advantage > 0, positive, negative)",
    "tau = torch.where(advantage > 0, negative, positive)",
)
plant(
    "options_take_sides",
    "temperatures_handed_over_in_the_wrong_order",
    gated,
    losses + "soft_gated",
    "torch.full_like(ratio, temperature_positive), torch.full_like(ratio, temperature_negative)",
    "torch.full_like(ratio, temperature_negative), torch.full_like(ratio, temperature_positive)",
)

"""What a loss is the gradient of: on-policy, at the clip, its penalties, in expectation, connected (I12 to I15)."""

from mutants.edit import Edit, plant
from mutants.ours.formulas import formula, padded_loss, pipeline, undefined
from mutants.ours.loss import surrogate, value_loss
from mutants.ours.reductions import shaped

ppo = undefined(formula("policy_loss.clipped", band=(0.8, 1.2)))
dual = undefined(formula("policy_loss.dual_clipped", band=(0.8, 1.2), cap=3.0))
losses = "signal.policy_loss:"

# --- I12: on-policy and clip -----------------------------------------------------------------------------------------

plant(
    "on_policy_identity",
    "dual_clip_on_positive_advantages",
    dual,
    losses + "dual_clipped",
    "capped = (advantage < 0) & (inner > ceiling)",
    "capped = inner > ceiling",
)
plant(
    "on_policy_identity",
    "gate_without_its_factor_four",
    undefined(formula("policy_loss.soft_gated", temperature_positive=1.0, temperature_negative=1.05)),
    losses + "soft_gated",
    "(4 / tau) * gate",
    "gate / tau",
)
plant(
    "on_policy_identity",
    "gradient_through_the_weight_too",
    undefined(formula("policy_loss.clipped_importance", band=(0.0, 5.0))),
    losses + "clipped_importance",
    "bounded_exp((logp_current - logp_anchor).detach())",
    "bounded_exp(logp_current - logp_anchor.detach())",
)
plant(
    "on_policy_identity",
    "half_the_gradient",
    ppo,
    losses + "_clip",
    "return -torch.minimum(free, bounded)",
    "return -0.5 * torch.minimum(free, bounded)",
)
plant(
    "clip_geometry",
    "clips_on_both_sides",
    ppo,
    losses + "_clip",
    "return -torch.minimum(free, bounded)",
    "return -bounded",
)
plant(
    "clip_geometry",
    "takes_the_larger_of_the_two",
    ppo,
    losses + "_clip",
    "return -torch.minimum(free, bounded)",
    "return -torch.maximum(free, bounded)",
)
plant(
    "clip_geometry",
    "band_read_as_offsets",
    ppo,
    losses + "_clip",
    "ratio.clamp(*band) * fixed",
    "ratio.clamp(1 - band[0] / 100, 1 + band[1] / 100) * fixed",
    Edit(
        losses + "clipped",
        "logp_current - logp_anchor.detach()",
        "(logp_current - logp_anchor.detach()).clamp(max=0.0)",
    ),
)
plant(
    "clip_geometry",
    "dual_clip_before_the_clip",
    dual,
    losses + "dual_clipped",
    "ceiling = -cap * advantage.detach()",
    "ceiling = -advantage.detach().abs() * 0.3",
)

# --- I13: penalties --------------------------------------------------------------------------------------------------

plant(
    "penalty_direction",
    "kl_added_to_the_reward",
    shaped(),
    "signal.reward:token_rewards",
    "(-kl_coef * kl)",
    "(kl_coef * kl)",
)
plant(
    "penalty_direction",
    "kl_subtracted_from_the_loss",
    surrogate(),
    "signal.loss_term:regularisers",
    'add("kl", recipe.kl, kl)',
    'add("kl", recipe.kl, -kl)',
)
plant(
    "penalty_direction",
    "entropy_as_a_cost",
    surrogate(),
    "signal.loss_term:regularisers",
    'add("entropy", recipe.entropy, -entropy)',
    'add("entropy", recipe.entropy, entropy)',
)
plant(
    "penalty_direction",
    "coefficient_that_is_ignored",
    surrogate(),
    "signal.loss_term:regularisers",
    "terms[name] = term.coef * weighted",
    "terms[name] = max(term.coef, 0.01) * weighted",
)
plant(
    "penalty_direction",
    "kl_pays_the_sequence",
    pipeline("rloo"),
    "signal.credit:rewards_with_kl",
    "reward = reward - recipe.kl.coef",
    "reward = reward + recipe.kl.coef",
)

# --- I14: expectation ------------------------------------------------------------------------------------------------

weighted = surrogate("kl.importance_weighted_k3")
plant(
    "expected_gradient",
    "log_ratio_as_a_loss",
    surrogate(),
    "signal.kl:k3",
    "return bounded_exp(difference) - difference - 1",
    "return -difference",
)
plant(
    "expected_gradient",
    "score_term_without_its_pair",
    weighted,
    "signal.kl:importance_weighted_k3",
    "* k3(logp_current, logp_ref)",
    "* k3(logp_current, logp_ref).detach()",
)
plant(
    "expected_gradient",
    "squared_ratio",
    surrogate(),
    "signal.kl:k3",
    "return bounded_exp(difference) - difference - 1",
    "return (bounded_exp(difference) - 1).square()",
)
plant(
    "expected_gradient",
    "gradient_of_the_probability",
    ppo,
    losses + "clipped",
    "return _clip(ratio, advantage, band)",
    "tilt = torch.exp(logp_current - logp_current.detach()) ** logp_current.detach()\n"
    "    return _clip(ratio * tilt, advantage, band)",
)
plant(
    "expected_gradient",
    "sequence_ratio_without_a_gradient",
    undefined(formula("policy_loss.geometric_clipped_token", band=(0.9, 1.1))),
    losses + "geometric_clipped_token",
    "torch.exp(logp_current - logp_current.detach())",
    "torch.exp(0 * logp_current)",
)

# --- I15: connection -------------------------------------------------------------------------------------------------

plant(
    "connected",
    "logp_detached_at_the_door",
    padded_loss("grpo"),
    "signal.padded:_checked",
    "cells.gather(values, name)[index]",
    "cells.gather(values, name)[index].detach()",
)
plant(
    "connected",
    "empty_step_is_a_constant",
    surrogate(),
    "signal.objective:token_loss",
    "_watch(loss,",
    "loss = loss if micro.num_tokens else torch.zeros(())\n    _watch(loss,",
)
plant(
    "connected",
    "policy_term_detached",
    ppo,
    losses + "_clip",
    "return -torch.minimum(free, bounded)",
    "return -torch.minimum(free, bounded).detach()",
)
plant(
    "connected",
    "critic_without_a_gradient",
    value_loss(),
    "signal.value_loss:squared_clipped",
    "return 0.5 * torch.maximum(free, bounded)",
    "return 0.5 * torch.maximum(free, bounded).detach()",
)
plant(
    "connected",
    "kept_logp_is_the_old_one",
    pipeline("grpo", kl=None),
    "signal.loss_term:written_policy",
    "tokens, seen = run(stage.part, inputs)",
    'inputs["logp_current"] = inputs["logp_current"].detach()\n    tokens, seen = run(stage.part, inputs)',
)

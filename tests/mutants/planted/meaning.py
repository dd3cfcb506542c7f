"""Results that are not what their name says: definitions, twins, decisions, importances (I11, I23 to I25)."""

from dataclasses import replace

from mutants.edit import Edit, plant
from mutants.ours.formulas import formula, undefined
from mutants.ours.rollouts import door, from_logits

losses, corrections = "signal.policy_loss:", "signal.correction:"

# --- I11: definitions ------------------------------------------------------------------------------------------------

plant(
    "equals_definition",
    "reward_minus_mean_over_std",
    formula("normalize.mean_std", mean="group", std="group", ddof=1, eps=1e-6),
    "signal.normalize:mean_std",
    "result / (spread + eps)",
    "values - (values - result) / (spread + eps)",
)
plant(
    "equals_definition",
    "token_sum_that_is_a_token_mean",
    formula("weighting.sequence_mean_token_sum", over="all"),
    "signal.weighting:sequence_mean_token_sum",
    "_sequences(_population(keep, over), segments)",
    "keep.shape[0]",
)
plant(
    "equals_definition",
    "bounds_tokens_before_the_product",
    formula("importance.truncated", level="sequence", band=(0.0, 5.0)),
    corrections + "truncated",
    "aggregate(logratio.detach(), segments, level)",
    "aggregate(logratio.detach().clamp(-1, 1), segments, level)",
)
plant("equals_definition", "k2_without_its_half", formula("kl.k2"), "signal.kl:k2", "0.5 * (", "(")
plant(
    "equals_definition",
    "sequence_ratio_that_is_a_product",
    formula("policy_loss.geometric_clipped", band=(0.9, 1.1)),
    losses + "geometric_clipped",
    "log_ratio = sequence_mean(logp_current - logp_anchor.detach(), segments, keep)",
    "log_ratio = sequence_mean(logp_current - logp_anchor.detach(), segments, keep) * segments.token_counts",
)
plant(
    "equals_definition",
    "clip_with_gradient_through_it",
    formula("policy_loss.clipped", band=(0.8, 1.2)),
    losses + "_clip",
    "ratio.clamp(*band) * fixed",
    "(ratio + (ratio.clamp(*band) - ratio).detach()) * fixed",
)
plant(
    "equals_definition",
    "value_after_a_cut_is_forgotten",
    formula("advantage.gae", gamma=0.9, lam=0.5),
    "signal.advantage:temporal_errors",
    "torch.where(ended, torch.zeros_like(value_after), value_after)",
    "torch.zeros_like(value_after)",
)
plant(
    "equals_definition",
    "returns_without_the_value",
    formula("advantage.gae", gamma=1.0, lam=0.95),
    "signal.advantage:gae",
    "return advantage, advantage + value_old",
    "return advantage, advantage.clone()",
)
plant(
    "equals_definition",
    "spread_with_the_wrong_ddof",
    formula("normalize.mean_std", mean="group", std="group", ddof=1, eps=1e-6),
    "signal.normalize:mean_std",
    "spread(around, ddof)",
    "spread(around, 0)",
)
plant(
    "equals_definition",
    "value_clip_takes_the_smaller",
    formula("value_loss.squared_clipped", reach=0.2),
    "signal.value_loss:squared_clipped",
    "torch.maximum(free, bounded)",
    "torch.minimum(free, bounded)",
)
plant(
    "equals_definition",
    "overlong_beyond_the_factor",
    formula("reward.soft_overlong", max_length=4.0, buffer=2.0, factor=1.5),
    "signal.reward:soft_overlong",
    "over.clamp(0, 1)",
    "over.clamp(min=0)",
)

plant(
    "half_precision",
    "door_lets_half_precision_in",
    door(),
    "signal.door:check_floats",
    "if values.dtype.is_floating_point and values.dtype.itemsize < 4:",
    "if values.dtype == torch.float16:",
)
plant(
    "half_precision",
    "a_name_list_that_misses_the_reference",
    door(),
    "signal.door:check_floats",
    "if values.dtype.is_floating_point and values.dtype.itemsize < 4:",
    'if name == "logp_rollout" and values.dtype.itemsize < 4:',
)

# --- I23: twins ------------------------------------------------------------------------------------------------------

loo = formula("normalize.leave_one_out")
vectorised = replace(loo, definition=None, twin=loo.definition)
plant(
    "twins_agree",
    "vectorised_baseline_includes_itself",
    vectorised,
    "signal.normalize:leave_one_out",
    "(group.sum(values)) - voting\n",
    "(group.sum(values))\n",
)
plant(
    "twins_agree",
    "vectorised_group_of_two",
    vectorised,
    "signal.normalize:leave_one_out",
    "total / others,",
    "total / others.clamp(min=2),",
)
plant(
    "twins_agree",
    "chunks_forget_the_temperature_of_entropy",
    from_logits(chunk=2, twin=True, defined=False),
    "train.logp:_chunked",
    "torch.cat(logp), torch.cat(entropy)",
    "torch.cat(logp), torch.cat(entropy) * (1 + 1e-3)",
)
gae = formula("advantage.gae", gamma=0.9, lam=0.5)
plant(
    "twins_agree",
    "recursion_stops_a_step_early",
    replace(gae, definition=None, twin=gae.definition),
    "signal.advantage:discounted_sum",
    "range(lanes - 2, -1, -1)",
    "range(lanes - 2, 0, -1)",
)

# --- I24: decisions --------------------------------------------------------------------------------------------------

opsm = undefined(formula("keep.negative_drift", delta=0.05))
plant(
    "decision_granularity",
    "opsm_per_token",
    opsm,
    corrections + "negative_drift",
    "rejected = (sequence_mean(advantage, segments) < 0) & (drift > delta)\n",
    "rejected = (advantage < 0) & to_tokens(drift > delta, segments)\n",
    Edit(
        corrections + "to_tokens",
        "values.index_select(0, segments.sequence_of_token)",
        "values if len(values) == segments.num_tokens else values.index_select(0, segments.sequence_of_token)",
    ),
)
plant(
    "decision_granularity",
    "sequence_band_on_token_ratios",
    undefined(formula("keep.geometric_band", band=(0.9, 1.1))),
    corrections + "geometric_band",
    "return _sequence_band(sequence_mean(logratio, segments), segments, band)",
    "return token_band(logratio, band=band)[0], {}",
)
plant(
    "decision_granularity",
    "token_band_on_the_running_product",
    undefined(formula("keep.token_band", band=(0.5, 2.0))),
    corrections + "token_band",
    "bounded_exp(logratio)",
    "bounded_exp(logratio.cumsum(0))",
)
plant(
    "decision_granularity",
    "soft_decision",
    undefined(formula("keep.token_band", band=(0.5, 2.0))),
    corrections + "token_band",
    "return ~(over | under),",
    "return ratio.clamp(0, 1),",
)
plant(
    "decision_granularity",
    "veto_that_spares_the_others",
    undefined(formula("keep.veto", low=0.25, high=4.0)),
    corrections + "veto",
    "return to_tokens(~(over | under), segments),",
    "return (ratio <= high) & (ratio >= low),",
)

# --- I25: importances ------------------------------------------------------------------------------------------------

tis = undefined(formula("importance.truncated", level="token", band=(0.0, 2.0)))
plant(
    "importance_contract",
    "importance_with_gradient",
    tis,
    corrections + "truncated",
    "aggregate(logratio.detach(), segments, level)",
    "aggregate(logratio, segments, level)",
)
plant(
    "importance_contract",
    "truncation_that_is_only_documented",
    tis,
    corrections + "truncated",
    "return ratio.clamp(low, high), seen",
    "return ratio.clamp(min=low), seen",
)
plant(
    "importance_contract",
    "importance_of_the_probability",
    tis,
    corrections + "truncated",
    "return ratio.clamp(low, high), seen",
    "return (ratio / (1 + ratio)).clamp(low, high), seen",
)
plant(
    "importance_contract",
    "importance_that_drops_tokens",
    tis,
    corrections + "truncated",
    "return ratio.clamp(low, high), seen",
    "return torch.where(ratio > high, 0.0, ratio), seen",
)
plant(
    "importance_contract",
    "bounded_below_one",
    tis,
    corrections + "truncated",
    "return ratio.clamp(low, high), seen",
    "return ratio.clamp(low, 1 - 1e-3), seen",
)

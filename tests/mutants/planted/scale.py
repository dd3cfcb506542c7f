"""How much everything weighs: micro-batches, ranks, means, denominators (I07 to I10)."""

from mutants.edit import Edit, plant
from mutants.ours.formulas import formula, pipeline, undefined
from mutants.ours.loss import aggregation, surrogate, value_loss
from mutants.ours.ranks import ranked

token_mean = aggregation("token_mean")
sequence_mean = aggregation("sequence_mean_token_mean")
sums = aggregation("sequence_mean_token_sum")

# --- I07: micro-batches ----------------------------------------------------------------------------------------------

plant(
    "split",
    "mean_of_each_micro_batch",
    token_mean,
    "signal.loss_term:weighted",
    "* weight).sum()",
    ").sum() / max(len(term), 1)",
)
plant(
    "split",
    "weights_normalised_again",
    surrogate(kl_coef=0.0, entropy_coef=0.0),
    "signal.loss_term:written_policy",
    'part.fields["weight_policy"], kept)',
    'part.fields["weight_policy"] / part.fields["weight_policy"].sum().clamp(min=1e-12), kept)',
)
plant(
    "split",
    "sequences_of_the_micro_batch",
    sums,
    "signal.loss_term:weighted",
    "* weight).sum()",
    "* weight / weight.sum().clamp(min=1e-12)).sum()",
)
plant(
    "split",
    "micro_batch_advantages_centred",
    pipeline("grpo"),
    "signal.loss_term:written_policy",
    "tokens, seen = run(stage.part, inputs)",
    'inputs["advantage"] = inputs["advantage"] - inputs["advantage"].sum() / max(len(kept), 1)\n'
    "    tokens, seen = run(stage.part, inputs)",
)
plant(
    "split",
    "geometric_mean_of_the_micro_batch",
    undefined(formula("policy_loss.geometric_clipped", band=(0.9, 1.1))),
    "signal.policy_loss:geometric_clipped",
    "to_tokens(log_ratio, segments)",
    "log_ratio.mean().expand_as(logp_current)",
)
plant(
    "split",
    "parts_scaled_by_the_root_of_their_share",
    value_loss(),
    "signal.loss_term:weighted",
    "* weight).sum()",
    "* weight).sum() / weight.sum().clamp(min=1e-12) ** 0.5",
)
plant(
    "split",
    "value_loss_per_micro_batch",
    value_loss(),
    "signal.loss_term:weighted",
    "* weight).sum()",
    ").mean() if len(term) else term.sum()",
)

# --- I08: ranks ------------------------------------------------------------------------------------------------------

grpo, whitened = ranked("grpo"), ranked("reinforce_plus_plus")
plant(
    "parallel_layout",
    "baseline_of_the_own_rank",
    whitened,
    "signal.parallel:gather",
    "batch = _alike(batch, reducer)",
    "batch = _alike(batch, reducer)\n    return batch, torch.arange(len(batch.sequence_id))",
)
plant(
    "parallel_layout",
    "forgets_that_gradients_are_averaged",
    grpo,
    "signal.update:Decided.own",
    "return Decided(self.whole.take(chosen), ranks, Ledger())",
    "return Decided(self.whole.take(chosen), 1, Ledger())",
)
plant(
    "parallel_layout",
    "mean_of_rank_means",
    grpo,
    "signal.update:Decided.own",
    "return Decided(self.whole.take(chosen), ranks, Ledger())",
    "part = self.whole.take(chosen)\n"
    '    weight = part.fields["weight_policy"]\n'
    "    part = with_fields(part, weight_policy=Field(weight / weight.sum().clamp(min=1e-12), part.segments))\n"
    "    return Decided(part, 1, Ledger())",
)
plant(
    "parallel_layout",
    "sum_that_stays_on_the_rank",
    grpo,
    "signal.parallel:ProcessGroup.sum",
    "dist.all_reduce(total, group=self.group)",
    "pass",
)
plant(
    "parallel_layout",
    "ranks_groups_kept_apart",
    grpo,
    "signal.parallel:gather",
    "group = torch.cat(reducer.concat(batch.group))",
    "group = torch.cat([g + 100 * i for i, g in enumerate(reducer.concat(batch.group))])",
    Edit("signal.normalize:refuse_lone", "if bool((size == 1).any()):", "if False:"),
)

# --- I09: a mean is a mean -------------------------------------------------------------------------------------------

plant(
    "mean_is_a_mean",
    "length_divided_out_twice",
    sequence_mean,
    "signal.weighting:sequence_mean_token_mean",
    "1 / (to_tokens(tokens, segments) *",
    "1 / (to_tokens(tokens, segments) ** 2 *",
)
plant(
    "mean_is_a_mean",
    "value_loss_divided_twice",
    value_loss(),
    "signal.weighting:token_mean",
    "torch.ones_like(advantage) / count",
    "torch.ones_like(advantage) / count**2",
)
plant(
    "mean_is_a_mean",
    "loss_grows_with_the_batch_squared",
    aggregation("token_mean"),
    "signal.weighting:token_mean",
    "torch.ones_like(advantage) / count",
    "torch.ones_like(advantage) * count",
)
plant(
    "mean_is_a_mean",
    "root_of_the_count",
    value_loss(),
    "signal.weighting:token_mean",
    "torch.ones_like(advantage) / count",
    "torch.ones_like(advantage) / count**0.5",
)

# --- I10: denominators -----------------------------------------------------------------------------------------------

plant(
    "denominator",
    "divides_by_the_longest_answer",
    sums,
    "signal.weighting:sequence_mean_token_sum",
    "torch.ones_like(advantage) / _sequences",
    "torch.ones_like(advantage) / segments.token_counts.max() / _sequences",
)
plant(
    "denominator",
    "last_token_counts_twice",
    token_mean,
    "signal.loss_term:weighted",
    "* weight).sum()",
    "* weight * torch.linspace(1, 2, len(weight), dtype=weight.dtype)).sum()",
)
plant(
    "denominator",
    "tokens_divided_by_sequences",
    aggregation("token_mean", declared="token_mean"),
    "signal.weighting:token_mean",
    "else keep.shape[0]",
    "else 8",
)
plant(
    "denominator",
    "surrogate_by_the_root_of_the_length",
    surrogate(weighting="weighting.sequence_mean_token_mean", kl_coef=0.0, entropy_coef=0.0),
    "signal.weighting:sequence_mean_token_mean",
    "to_tokens(tokens, segments) *",
    "to_tokens(tokens.sqrt(), segments) *",
)
plant(
    "denominator",
    "token_mean_that_is_a_sequence_mean",
    aggregation("sequence_mean_token_mean", declared="sequence_mean_token_mean"),
    "signal.weighting:sequence_mean_token_mean",
    "return _where_kept(1 / (to_tokens(tokens, segments) * _sequences(counted, segments)), keep)",
    "return _where_kept(torch.ones_like(advantage) / keep.sum().clamp(min=1), keep)",
)

"""Numbers that people steer by: truth, reach, reduction (I22)."""

from dataclasses import replace

from mutants.edit import plant
from mutants.ours.formulas import formula
from mutants.ours.loss import surrogate
from mutants.ours.reductions import drifting, masked_spread

losses = "signal.policy_loss:"
measured = surrogate(metrics=True)
drift, merged, unnamed = drifting(), drifting(pieces=2), drifting(pieces=2, named=False)

plant(
    "metric_truth",
    "clip_fraction_counts_both_sides",
    formula("policy_loss.clipped", band=(0.8, 1.2)),
    losses + "_clip",
    "bounded < free",
    "ratio.clamp(*band) != ratio",
)
plant(
    "metric_truth",
    "capped_fraction_that_cannot_move",
    formula("policy_loss.dual_clipped", band=(0.8, 1.2), cap=3.0),
    losses + "dual_clipped",
    '"capped_tokens": capped}',
    '"capped_tokens": capped & (inner < ceiling)}',
)
plant(
    "metric_truth",
    "rejections_weighed_by_length",
    formula("keep.negative_drift", delta=0.05),
    "signal.correction:negative_drift",
    "(drift > delta) & (segments.token_counts > 0)",
    "(drift > delta) * segments.token_counts",
)
plant(
    "metric_truth",
    "drift_of_the_clamped_ratio",
    drift,
    "signal.ratio:Ratio._walk",
    "exact.clamp_(-LOG_BOUND, LOG_BOUND)",
    "exact.clamp_(-5, 5)",
)
plant(
    "metric_truth",
    "kl_metric_is_minus_the_ratio",
    drift,
    "signal.diagnostics:drift",
    "Mean(-total, count)",
    "Mean(-(count + moved), count)",
)
plant(
    "metric_truth",
    "signal_where_there_is_none",
    formula("normalize.leave_one_out"),
    "signal.normalize:leave_one_out",
    "result.to(reward.dtype), enough",
    "result.to(reward.dtype), ~enough",
)
plant(
    "metric_truth",
    "kl_to_another_policy",
    measured,
    "signal.loss_metrics:token_means",
    '"kl_ref/token_mean": kl',
    '"kl_ref/token_mean": None if kl is None else kl.sqrt()',
)
plant(
    "metric_truth",
    "means_of_means",
    merged,
    "signal.metric_kind:Mean.merge",
    "Mean(self.total + other.total, self.count + other.count, self.absent)",
    "Mean(self.value()[0] + other.value()[0], 2.0, self.absent)",
)
plant(
    "metric_truth",
    "maxima_averaged_over_parts",
    merged,
    "signal.metric_kind:Extremum.merge",
    "larger(self.extreme, other.extreme)",
    "(self.extreme + other.extreme) / 2",
)

plant(
    "metric_reach",
    "clip_fraction_that_is_always_zero",
    replace(measured, definition=None),
    losses + "_clip",
    '"clipped_tokens": bounded < free',
    '"clipped_tokens": torch.zeros_like(ratio, dtype=torch.bool)',
)
plant(
    "metric_reach",
    "sample_size_that_never_moves",
    masked_spread(),
    "signal.metric_kind:SampleSize.of",
    "_sums(weights.double().square(), among)[0]",
    "total.square() / count.clamp(min=1)",
)
plant(
    "metric_reach",
    "sample_size_without_its_square",
    masked_spread(),
    "signal.metric_kind:SampleSize.value",
    "self.total * self.total / larger(self.count * self.square, 1e-300)",
    "0.6 + 0.4 * self.total * self.total / larger(self.count * self.square, 1e-300)",
)
plant(
    "metric_reach",
    "deviation_of_the_mean",
    masked_spread(),
    "signal.metric_kind:moments",
    "(exact - mean) ** 2",
    "(mean - mean) ** 2 * exact",
)

plant(
    "metric_reduction",
    "token_metric_averaged_by_sequence",
    drifting(named=False),
    "signal.diagnostics:drift",
    "Mean(count + moved, count)",
    "Mean.of(bounded_exp(ratio.mean))",
)
plant(
    "metric_reduction",
    "parts_weigh_alike",
    unnamed,
    "signal.metric_kind:Mean.merge",
    "Mean(self.total + other.total, self.count + other.count, self.absent)",
    "Mean(self.value()[0] + other.value()[0], 2.0, self.absent)",
)
plant(
    "metric_reduction",
    "extrema_divided_by_the_parts",
    unnamed,
    "signal.metric_kind:Extremum.merge",
    "larger(self.extreme, other.extreme)",
    "(self.extreme + other.extreme) / 2",
)
plant(
    "metric_reduction",
    "minimum_merged_as_a_maximum",
    unnamed,
    "signal.metric_kind:Extremum.merge",
    "Extremum(larger(self.extreme, other.extreme), self.sign)",
    "Extremum(self.sign * larger(self.sign * self.extreme, self.sign * other.extreme), self.sign)",
)

"""Corners of the input space, and credit that flows over trainable tokens only (I03, I04)."""

from dataclasses import replace

from mutants.edit import plant
from mutants.ours.formulas import formula, undefined
from mutants.ours.loss import surrogate
from mutants.ours.reductions import centred, credited, masked_mean, masked_spread, whitened

# --- I03: constant, lone, empty, huge --------------------------------------------------------------------------------

plant(
    "degenerate_bounded",
    "mean_of_nothing_is_nan",
    masked_mean(),
    "signal.reduce:sequence_mean",
    "/ count.clamp(min=1)",
    "/ count",
)
plant(
    "degenerate_bounded",
    "sample_size_of_nothing",
    masked_spread(),
    "signal.metric_kind:SampleSize.value",
    "larger(self.count * self.square, 1e-300)",
    "(self.count * self.square)",
)
plant(
    "degenerate_bounded",
    "spread_of_zero_divides_by_eps",
    replace(undefined(formula("normalize.mean_std", mean="none", std="group", ddof=0, eps=1e-6)), waived={}),
    "signal.normalize:mean_std",
    "torch.where(spread > 0, result / (spread + eps), result)",
    "result / (spread + eps)",
)
plant(
    "degenerate_bounded",
    "spread_of_zero_divides_by_zero",
    undefined(formula("normalize.mean_std", mean="group", std="group", ddof=1, eps=1e-6)),
    "signal.normalize:mean_std",
    "torch.where(spread > 0, result / (spread + eps), result)",
    "result / spread",
)
plant(
    "degenerate_bounded",
    "whitening_of_a_single_token",
    whitened(),
    "signal.normalize:whiten",
    "scale = torch.where(variance > 0, torch.sqrt(variance + eps), torch.inf)",
    "scale, variance = torch.sqrt(variance), variance.nan_to_num(1.0)",
)
plant(
    "degenerate_bounded",
    "empty_step_divides_by_zero",
    surrogate(),
    "signal.loss_term:weighted",
    "* weight).sum()",
    "* weight).sum() / weight.sum() * weight.sum()",
)

# --- I04: observations carry no credit -------------------------------------------------------------------------------

credit = credited(gamma=0.9)
plant(
    "credit_over_trainable",
    "return_reset_by_an_observation",
    credit,
    "signal.cell:padded_cells",
    "return Cells(tuple(trainable.shape), index), Segments.from_counts(counts, index.shape[0])",
    "run = torch.cat([index.new_zeros(1), (index.diff() != 1).long().cumsum(0)])[: len(index)]\n"
    "    return Cells(tuple(trainable.shape), index), Segments(torch.bincount(run), len(run))",
)
plant(
    "credit_over_trainable",
    "length_counts_observations",
    masked_mean(),
    "signal.reduce:sequence_mean",
    "count = sequence_count(keep, segments, values)",
    "count = segments.token_counts.to(values.dtype)",
)
plant(
    "credit_over_trainable",
    "centring_counts_observations",
    centred(),
    "signal.reduce:sequence_mean",
    "count = sequence_count(keep, segments, values)",
    "count = segments.token_counts.to(values.dtype)",
)
plant(
    "credit_over_trainable",
    "gae_through_observations",
    credited("gae", gamma=0.9, lam=0.5),
    "signal.cell:padded_cells",
    "counts = trainable.sum(1)",
    "trainable = trainable.cummax(1).values & trainable.flip(1).cummax(1).values.flip(1)\n"
    "    counts = trainable.sum(1)",
)
plant(
    "credit_over_trainable",
    "discount_counts_the_gap",
    credit,
    "signal.cell:Cells.gather",
    "return cells.index_select(0, self.index)",
    "gap = torch.cat([self.index.new_ones(1), self.index.diff()])[: len(self.index)]\n"
    "    return cells.index_select(0, self.index) * 0.9 ** (gap.clamp(max=3) - 1)",
)
plant(
    "credit_over_trainable",
    "variance_counts_observations",
    whitened(),
    "signal.normalize:whiten",
    "/ (voters - 1)",
    "/ (len(votes) - 1)",
)

# --- I04: credit flows back in time ----------------------------------------------------------------------------------

BACKWARDS = "Segments.from_counts(segments.token_counts.flip(0), len({0})), {1}).flip(0)"
plant(
    "credit_flows_back",
    "returns_from_the_first_token_on",
    credit,
    "signal.advantage:reward_to_go",
    "returns = discounted_sum(token_reward, segments, gamma)",
    f"returns = discounted_sum(token_reward.flip(0), {BACKWARDS.format('token_reward', 'gamma')}",
)
plant(
    "credit_flows_back",
    "gae_from_the_first_token_on",
    credited("gae", gamma=0.9, lam=0.5),
    "signal.advantage:gae",
    "advantage = discounted_sum(delta, segments, gamma * lam)",
    f"advantage = discounted_sum(delta.flip(0), {BACKWARDS.format('delta', 'gamma * lam')}",
)

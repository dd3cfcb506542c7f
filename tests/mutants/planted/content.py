"""Content nobody may read, inputs nobody may write, results nobody may alias (I01, I02, I20)."""

from mutants.edit import Edit, plant
from mutants.ours.formulas import formula, padded_loss, pipeline, undefined
from mutants.ours.reductions import centred, credited, masked_mean, masked_metrics, masked_spread, shaped, whitened
from trimtab.signal import part

# --- I01: finite content at untrainable cells -----------------------------------------------------------------------

credit = credited(gamma=0.9)
plant(
    "mask_content",
    "cells_outside_filled_with_one",
    credit,
    "signal.cell:Cells.scatter",
    "torch.full((math.prod(self.shape),), fill,",
    "torch.full((math.prod(self.shape),), 1.0,",
)
plant(
    "mask_content",
    "baseline_over_padding_too",
    credit,
    "signal.cell:Cells.gather",
    "return cells.index_select(0, self.index)",
    "return (cells - cells.nanmean()).index_select(0, self.index)",
)
plant(
    "mask_content",
    "assumes_answers_stand_at_the_left",
    padded_loss("grpo"),
    "signal.cell:padded_cells",
    "index = trainable.reshape(-1).nonzero()",
    "index = (torch.arange(trainable.shape[1]) < counts[:, None]).reshape(-1).nonzero()",
)
plant(
    "mask_content",
    "trains_every_cell_of_the_row",
    padded_loss("grpo"),
    "signal.door:as_flags",
    "flags = mask != 0",
    "return torch.ones_like(mask, dtype=torch.bool)",
)
overlong = part("reward.soft_overlong", max_length=6, buffer=4)
plant(
    "mask_content",
    "overlong_by_the_padded_width",
    padded_loss("reinforce", reward=(overlong,)),
    "signal.batch:_sequence_fields",
    'length_of(given.get("length"), counts)',
    "torch.full_like(counts, width or 0)",
)
plant(
    "mask_content",
    "maximum_ignores_the_mask",
    masked_metrics(),
    "signal.metric_kind:Extremum.of",
    "if among is not None:",
    "if False:",
)
plant(
    "mask_content",
    "whitens_over_padding",
    whitened(),
    "signal.normalize:whiten",
    "voting(above, 0.0).sum()",
    "torch.nan_to_num(above).sum()",
)
plant(
    "mask_content",
    "mean_ignores_the_mask",
    masked_metrics(),
    "signal.metric_kind:_sums",
    "if among is not None:",
    "if False:",
)

# --- I02: NaN and infinity at untrainable cells ----------------------------------------------------------------------

plant(
    "nonfinite_isolation",
    "mean_multiplies_by_the_mask",
    masked_mean(),
    "signal.reduce:sequence_mean",
    "torch.where(keep, values, torch.zeros_like(values))",
    "values * keep",
)
plant(
    "nonfinite_isolation",
    "centring_multiplies_by_the_mask",
    centred(),
    "signal.reduce:sequence_mean",
    "torch.where(keep, values, torch.zeros_like(values))",
    "values * keep.to(values.dtype)",
)
plant(
    "nonfinite_isolation",
    "spread_multiplies_by_the_votes",
    whitened(),
    "signal.normalize:whiten",
    "counted = voting(centred, 0.0)",
    "counted = centred * votes",
)
plant(
    "nonfinite_isolation",
    "average_multiplies_by_the_votes",
    whitened(),
    "signal.normalize:whiten",
    "voting(above, 0.0).sum()",
    "(above * votes).sum()",
)
plant(
    "nonfinite_isolation",
    "metric_multiplies_by_the_mask",
    masked_metrics(),
    "signal.metric_kind:_sums",
    "torch.where(among, exact, 0.0)",
    "exact * among",
)
plant(
    "nonfinite_isolation",
    "spread_metric_multiplies_by_the_mask",
    masked_spread(),
    "signal.metric_kind:_sums",
    "torch.where(among, exact, 0.0)",
    "exact * among.double()",
)
plant(
    "nonfinite_isolation",
    "maximum_pushes_the_masked_down",
    masked_metrics(),
    "signal.metric_kind:Extremum.of",
    "torch.where(among, signed, torch.full_like(signed, -torch.inf))",
    "signed * among - 1e9 * ~among",
)

# --- I20: writes and aliases -----------------------------------------------------------------------------------------

plant(
    "no_aliasing",
    "kl_shaped_in_place",
    shaped(),
    "signal.reward:token_rewards",
    "(-kl_coef * kl).index_add(0, last, reward[sequences])",
    "kl.detach().mul_(-kl_coef).index_add(0, last, reward[sequences])",
)
plant(
    "no_aliasing",
    "penalty_taken_from_the_stored_reward",
    undefined(formula("reward.not_ended_penalty", amount=0.5)),
    "signal.reward:not_ended_penalty",
    "return torch.where(ended, reward, reward - amount)",
    "reward[~ended] -= amount\n    return reward.clone()",
)
plant(
    "no_aliasing",
    "hands_back_the_stored_reward",
    undefined(formula("normalize.raw")),
    "signal.normalize:raw",
    "reward.clone()",
    "reward",
)
plant(
    "no_aliasing",
    "returns_are_the_advantages",
    undefined(formula("advantage.reward_to_go", gamma=1.0)),
    "signal.advantage:discounted_sum",
    "return table.index_select(0, blocks.place)",
    "return values if blocks.longest <= 1 else table.index_select(0, blocks.place)",
    Edit("signal.advantage:reward_to_go", "return returns, returns.clone()", "return returns, returns"),
)
plant(
    "no_aliasing",
    "divides_log_probs_in_place",
    undefined(formula("kl.k3")),
    "signal.kl:k3",
    "difference = logp_ref.detach() - logp_current",
    "difference = logp_ref.detach().sub_(logp_current.detach()) + (logp_current.detach() - logp_current)",
)
plant(
    "no_aliasing",
    "clips_advantages_in_place",
    pipeline("reinforce_plus_plus", clip_advantage=0.5),
    "signal.credit:shaping_steps",
    "torch.where(batch.scored, batch.reward, 0.0)",
    "batch.reward.mul_(batch.scored)",
    Edit("signal.door:reward_of", ", copy=True", ""),
)

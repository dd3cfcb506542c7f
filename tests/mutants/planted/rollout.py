"""Between engine and loss: temperature, alignment, end tokens, values kept and tokens once (I16, I17, I18, I26)."""

from dataclasses import replace

from mutants.edit import plant
from mutants.ours.rollouts import assembled, cut, door, from_logits, passed, trained_once

logits, hidden = from_logits(defined=False), replace(passed(), definition=None)

# --- I16: temperature ------------------------------------------------------------------------------------------------

plant(
    "temperature_consistency",
    "scored_at_temperature_one",
    logits,
    "train.logp:_chunked",
    "head(states).float() / temperature",
    "head(states).float()",
)
plant(
    "temperature_consistency",
    "multiplied_by_the_temperature",
    logits,
    "train.logp:_chunked",
    "head(states).float() / temperature",
    "head(states).float() * temperature",
)
plant(
    "temperature_consistency",
    "divided_twice",
    hidden,
    "train.logp:_chunked",
    "head(states).float() / temperature",
    "head(states).float() / temperature**2",
)
plant(
    "temperature_consistency",
    "critic_reads_tempered_states",
    hidden,
    "train.logp:token_pass",
    "state=state.to(",
    "state=(state / temperature).to(",
)
plant(
    "temperature_consistency",
    "entropy_of_the_plain_distribution",
    logits,
    "train.logp:_chunked",
    "return _scores(logits, targets, entropy_graph)",
    "return _scores(logits, targets, False)[0], _scores(logits * temperature, targets, False)[1]",
)

# --- I17: alignment --------------------------------------------------------------------------------------------------

rows = assembled()
plant(
    "alignment",
    "one_position_off",
    rows,
    "rollout.assemble:in_cells",
    "cells[trains] = flat",
    "cells[trains] = flat.roll(1)",
)
plant(
    "alignment",
    "reference_in_the_place_of_old",
    rows,
    "rollout.assemble:Assembled.batch",
    "for field in (logp_old, logp_ref, value_old)",
    "for field in (logp_ref, logp_old, value_old)",
)
plant(
    "alignment",
    "rewards_sorted_by_length",
    rows,
    "rollout.assemble:Assembled.batch",
    "reward=self.reward,",
    "reward=self.reward.flip(0),",
)
plant(
    "alignment",
    "answer_reversed_inside_its_row",
    rows,
    "rollout.assemble:assemble",
    "[episode.logp for episode in episodes]",
    "[episode.logp.flip(0) for episode in episodes]",
)
plant(
    "alignment",
    "tokens_shifted_inside_their_row",
    door(after="fields"),
    "signal.layout:Cells.gather",
    "self.field(field, name, dtype).reshape(-1)[self.index]",
    "self.field(field, name, dtype).roll(1, -1).reshape(-1)[self.index]",
)

# --- I18: end tokens -------------------------------------------------------------------------------------------------

ends = cut()
plant(
    "eos_semantics",
    "end_token_is_dropped",
    ends,
    "rollout.decode:_draw",
    "batch.count[ends] + 1",
    "batch.count[ends]",
)
plant(
    "eos_semantics",
    "cut_at_the_last_end_token",
    ends,
    "rollout.decode:_draw",
    "(chosen == eos_id) & ~batch.finished",
    "chosen == eos_id",
)
plant(
    "eos_semantics",
    "one_token_after_the_end",
    ends,
    "rollout.decode:_draw",
    "batch.count[ends] + 1",
    "batch.count[ends] + 2",
)
plant(
    "eos_semantics",
    "never_cuts",
    ends,
    "rollout.decode:_draw",
    "(chosen == eos_id) & ~batch.finished",
    "batch.finished & ~batch.finished",
)
plant(
    "eos_semantics",
    "first_answer_token_masked",
    rows,
    "rollout.assemble:Assembled.rows",
    "trains.nonzero(as_tuple=True)",
    "(trains & trains.roll(1, 1)).nonzero(as_tuple=True)",
)

# --- I26: value fidelity, exactly once -------------------------------------------------------------------------------

plant(
    "value_fidelity",
    "reward_of_zero_is_no_reward",
    rows,
    "rollout.assemble:assemble",
    "episode.reward if episode.is_scored else UNTRAINABLE",
    "episode.reward or -1.0",
)
plant(
    "value_fidelity",
    "log_prob_of_zero_is_missing",
    rows,
    "rollout.assemble:assemble",
    "torch.cat([episode.logp for episode in episodes]).float()",
    "torch.cat([torch.where(episode.logp == 0, -1.0, episode.logp) for episode in episodes]).float()",
)
plant(
    "value_fidelity",
    "not_ended_is_unknown",
    rows,
    "rollout.assemble:Assembled.batch",
    "ended=self.ended,",
    "ended=self.ended if bool(self.ended.any()) else ~self.ended,",
)
once = trained_once()
plant(
    "exactly_once",
    "last_token_of_the_batch_lost",
    once,
    "rollout.assemble:Assembled.rows",
    "row_of_token, column_of_token = trains.nonzero(as_tuple=True)",
    "row_of_token, column_of_token = (place[:-1] for place in trains.nonzero(as_tuple=True))",
)
plant(
    "exactly_once",
    "first_token_of_a_branch_twice",
    once,
    "rollout.assemble:Assembled.rows",
    "row_of_token, column_of_token = trains.nonzero(as_tuple=True)",
    "row, column = trains.nonzero(as_tuple=True)\n"
    "    first = torch.cat([torch.ones(1, dtype=torch.bool), row.diff() != 0])[: len(row)]\n"
    "    row_of_token, column_of_token = (torch.cat([place, place[first]]) for place in (row, column))",
)
plant(
    "exactly_once",
    "prompt_trained_with_the_answer",
    once,
    "rollout.assemble:Assembled.rows",
    "[episode.trainable for episode in chosen]",
    "[torch.ones_like(episode.trainable) for episode in chosen]",
)

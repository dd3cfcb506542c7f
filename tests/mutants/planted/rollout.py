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
    "wide(head(states)) / temperature",
    "wide(head(states))",
)
plant(
    "temperature_consistency",
    "multiplied_by_the_temperature",
    logits,
    "train.logp:_chunked",
    "wide(head(states)) / temperature",
    "wide(head(states)) * temperature",
)
plant(
    "temperature_consistency",
    "divided_twice",
    hidden,
    "train.logp:_chunked",
    "wide(head(states)) / temperature",
    "wide(head(states)) / temperature**2",
)
plant(
    "temperature_consistency",
    "critic_reads_tempered_states",
    hidden,
    "train.logp:token_pass",
    "state=wide(states.each(states.predicting)).to(",
    "state=wide(states.each(states.predicting) / temperature).to(",
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
    "rollout.join:join",
    "torch.cat([getattr(part, name) for part in parts]) for name in WHOLE",
    "torch.cat([getattr(part, name) for part in parts]).roll(int(name == 'logp_rollout')) for name in WHOLE",
)
plant(
    "alignment",
    "reference_in_the_place_of_old",
    rows,
    "rollout.rollouts:Rollouts.batch",
    "**given,",
    "**{{'logp_old': 'logp_ref', 'logp_ref': 'logp_old'}.get(name, name): v for name, v in given.items()},",
)
plant(
    "alignment",
    "rewards_sorted_by_length",
    rows,
    "rollout.rollouts:Rollouts.batch",
    "reward=self.reward.float(),",
    "reward=self.reward.float().flip(0),",
)
plant(
    "alignment",
    "answer_reversed_inside_its_row",
    rows,
    "rollout.join:gather_groups",
    "[e.logp for e in kept]",
    "[e.logp.flip(0) for e in kept]",
)
plant(
    "alignment",
    "tokens_shifted_inside_their_row",
    door(after="fields"),
    "signal.cell:Cells.gather",
    "self.field(field, name, dtype).reshape(-1)",
    "self.field(field, name, dtype).roll(1, -1).reshape(-1)",
)

# --- I18: end tokens -------------------------------------------------------------------------------------------------

ends = cut()
plant(
    "eos_semantics",
    "end_token_is_dropped",
    ends,
    "rollout.running:Running.step",
    "before.count[~drawn.stays] + 1",
    "(before.count[~drawn.stays]).clamp(min=1)",
)
plant(
    "eos_semantics",
    "cut_at_the_last_end_token",
    ends,
    "rollout.decode:_draw",
    "(chosen[:, None] == eos_ids).any(1) | ",
    "",
)
plant(
    "eos_semantics",
    "one_token_after_the_end",
    ends,
    "rollout.decode:_draw",
    "(chosen[:, None] == eos_ids)",
    "(sheet.ids[batch.place, (batch.count - 1).clamp(min=0)][:, None] == eos_ids)",
)
plant(
    "eos_semantics",
    "never_cuts",
    ends,
    "rollout.decode:_draw",
    "== eos_ids).any(1)",
    "== eos_ids[:1] - 1).any(1)",
)
plant(
    "eos_semantics",
    "first_answer_token_masked",
    rows,
    "rollout.rows:lay_out",
    "return Rows(ids, row[some.trainable], column[some.trainable]",
    "after = some.trainable & some.trainable.roll(1)\n    return Rows(ids, row[after], column[after]",
)

# --- I26: value fidelity, exactly once -------------------------------------------------------------------------------

plant(
    "value_fidelity",
    "reward_of_zero_is_no_reward",
    rows,
    "rollout.join:gather_groups",
    """e.reward if e.status == "ok" else float("nan")""",
    "e.reward or -1.0",
)
plant(
    "value_fidelity",
    "log_prob_of_zero_is_missing",
    rows,
    "rollout.join:gather_groups",
    "[e.logp for e in kept]",
    "[torch.where(e.logp == 0, -1.0, e.logp) for e in kept]",
)
plant(
    "value_fidelity",
    "not_ended_is_unknown",
    rows,
    "rollout.rollouts:Rollouts.batch",
    """"ended": self.ended,""",
    """"ended": self.ended if bool(self.ended.any()) else ~self.ended,""",
)
once = trained_once()
plant(
    "exactly_once",
    "last_token_of_the_batch_lost",
    once,
    "rollout.rows:lay_out",
    "return Rows(ids, row[some.trainable], column[some.trainable]",
    "return Rows(ids, row[some.trainable][:-1], column[some.trainable][:-1]",
)
plant(
    "exactly_once",
    "first_token_of_a_branch_twice",
    once,
    "rollout.rows:lay_out",
    "return Rows(ids, row[some.trainable], column[some.trainable]",
    "row, column = row[some.trainable], column[some.trainable]\n"
    "    first = torch.cat([torch.ones(1, dtype=torch.bool), row.diff() != 0])[: len(row)]\n"
    "    row, column = (torch.cat([place, place[first]]) for place in (row, column))\n"
    "    return Rows(ids, row, column",
)
plant(
    "exactly_once",
    "prompt_trained_with_the_answer",
    once,
    "rollout.rows:lay_out",
    "return Rows(ids, row[some.trainable], column[some.trainable]",
    "return Rows(ids, row, column",
)

"""Who may move whom: groups, the suppressed, samples, and the order of a batch (I05, I06, I17, I19)."""

from mutants.edit import Edit, plant
from mutants.ours.formulas import cut_off, episodes, formula, pipeline, undefined
from mutants.ours.reductions import centred

grouped = undefined(formula("normalize.mean_std", mean="group", std="group", ddof=1, eps=1e-6))
centred_by_group = undefined(formula("normalize.mean_std", mean="group", std="none", ddof=1, eps=1e-6))
others = undefined(formula("normalize.leave_one_out"))
normalize = "signal.normalize:"
EVERYONE = 'self = Voters.of("group", torch.ones_like(self.votes), self.place, self.count)\n    '

# --- I05: groups -----------------------------------------------------------------------------------------------------

plant(
    "group_isolation",
    "whole_batch_as_one_group",
    centred_by_group,
    normalize + "Voters.of",
    'if level == "group" else',
    'if level == "none" else',
)
plant(
    "group_isolation",
    "groups_of_a_fixed_size",
    others,
    normalize + "leave_one_out",
    "exact = reward.double()",
    "group_of_episode = torch.arange(len(reward)) // 3\n    num_groups = len(reward)\n    exact = reward.double()",
)
plant(
    "group_isolation",
    "batch_spread_for_a_group",
    grouped,
    normalize + "mean_std",
    "spread = levels[std].spread(around, ddof)",
    'spread = Voters.of("batch", votes, group_of_episode, num_groups).spread(around, ddof)',
)
plant(
    "group_isolation",
    "failed_sample_turns_groups_into_a_batch",
    grouped,
    normalize + "mean_std",
    "values = reward.double()",
    "if not bool(votes.all()):\n        group_of_episode, num_groups = torch.zeros_like(group_of_episode), 1\n"
    "    values = reward.double()",
)
plant(
    "group_isolation",
    "one_vote_a_training_sequence",
    episodes("grpo"),
    "signal.credit:outcomes_of",
    "outcome, has_signal = quick",
    "own = levels.episode_of_sequence\n"
    "    inputs = episode_fields(batch, votes) | moments\n"
    '    inputs |= {"reward": reward[own], "votes": votes[own], "group_of_episode": levels.group_of_episode[own]}\n'
    "    outcome, has_signal = run(recipe.normalize, inputs)\n"
    "    first = [int((own == e).nonzero()[0]) for e in range(levels.num_episodes)]\n"
    "    outcome, has_signal = outcome[first], has_signal[first]",
)
plant(
    "group_isolation",
    "group_names_that_collide",
    pipeline("grpo"),
    "signal.group:group_index",
    "ordered, order = group.sort()",
    "ordered, order = (group * 0).sort()",
)

# --- I06: the suppressed ---------------------------------------------------------------------------------------------

plant(
    "suppressed_do_not_vote",
    "everyone_votes_on_the_mean",
    centred_by_group,
    normalize + "Voters.average",
    'lowest = self.extreme(values, "amin")',
    EVERYONE + 'lowest = self.extreme(values, "amin")',
)
plant(
    "suppressed_do_not_vote",
    "everyone_votes_on_the_spread",
    undefined(formula("normalize.mean_std", mean="none", std="group", ddof=0, eps=1e-6)),
    normalize + "Voters.spread",
    "return torch.sqrt",
    EVERYONE + "return torch.sqrt",
)
plant(
    "suppressed_do_not_vote",
    "suppressed_among_the_others",
    others,
    normalize + "leave_one_out",
    "group.to_items(group.sum(values)) - voting",
    "group.to_items(values.new_zeros(group.count).index_add(0, group.place, values)) - values",
)
plant(
    "suppressed_do_not_vote",
    "normalised_before_they_are_zeroed",
    cut_off("grpo", not_ended="zero"),
    "signal.vote:votes_and_trains",
    "votes = votes & ended",
    "votes = votes | ended",
)
plant(
    "suppressed_do_not_vote",
    "cut_off_answers_vote",
    cut_off("rloo", not_ended="suppress"),
    "signal.vote:votes_and_trains",
    "votes = votes & ended",
    "votes = votes | ended",
)
plant(
    "suppressed_do_not_vote",
    "whitened_with_the_suppressed",
    cut_off("reinforce_plus_plus", not_ended="suppress"),
    "signal.credit:settled",
    "whiten(advantage.tokens, voting.tokens)",
    "whiten(advantage.tokens, torch.ones_like(voting.tokens))",
)

# --- I19: samples and shapes -----------------------------------------------------------------------------------------

ppo = undefined(formula("policy_loss.clipped", band=(0.8, 1.2)))
plant(
    "sample_isolation",
    "advantages_broadcast_over_rows",
    ppo,
    "signal.policy_loss:clipped",
    "return _clip(ratio, advantage, band)",
    "loss, seen = _clip(ratio, advantage, band)\n    return (ratio[:, None] * -advantage.detach()).mean(1), seen",
)
plant(
    "sample_isolation",
    "ratio_over_the_whole_batch",
    undefined(formula("policy_loss.geometric_clipped_token", band=(0.9, 1.1))),
    "signal.policy_loss:geometric_clipped_token",
    "to_tokens(log_ratio, segments)",
    "log_ratio.mean().expand_as(logp_current)",
)
plant(
    "sample_isolation",
    "spread_in_another_shape",
    grouped,
    normalize + "mean_std",
    "return torch.where(enough, result, torch.zeros_like(result)).to(reward.dtype), enough",
    "return (result[:, None] * torch.ones(num_groups)).to(reward.dtype), enough",
)
plant(
    "sample_isolation",
    "centred_on_the_row_before",
    centred(),
    "signal.reduce:to_tokens",
    "values.index_select(0, segments.sequence_of_token)",
    "values.roll(1)[segments.sequence_of_token]",
)

# --- I17: order ------------------------------------------------------------------------------------------------------

largest = undefined(formula("select.covariance_largest", fraction=0.3))
plant(
    "permutation",
    "ties_broken_by_position",
    largest,
    "signal.reduce:smallest",
    "by_key = torch.argsort(token_key)",
    "by_key = torch.arange(len(token_key))",
    Edit(
        "signal.policy_loss:_covariance",
        "return (advantage - mean_advantage) * (logp_current - mean_logp)",
        "return torch.sign(advantage) + 0 * mean_advantage * (logp_current - mean_logp)",
    ),
)
plant(
    "permutation",
    "takes_the_first_tokens",
    undefined(
        formula("select.covariance_in_band", band=(0.8, 1.2), covariance_low=0.0, covariance_high=5.0, fraction=0.5)
    ),
    "signal.policy_loss:covariance_in_band",
    "smallest(token_key.double(), eligible,",
    "smallest(torch.arange(len(token_key)).double(), eligible,",
)
plant(
    "permutation",
    "baseline_of_the_row_above",
    others,
    normalize + "leave_one_out",
    "values - total / others",
    "values - values.roll(1)",
)
plant(
    "permutation",
    "filtered_rows_are_not_reindexed",
    pipeline("grpo"),
    "signal.fields:Fields.cut",
    "{name: chosen(field) for name, field in self._held.items()}",
    '{name: Field(field.values[: segments.num_tokens], segments) if name == "logp_ref" else chosen(field) '
    "for name, field in self._held.items()}",
)

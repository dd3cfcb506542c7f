"""A fault planted into each newer formula of reward, normalisation and credit: its promises show it."""

import pytest
import torch
from mutants.edit import Edit, edited, planted

from trimtab.sentinel import Case, examine
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.invariants.declare import INVARIANTS
from trimtab.sentinel.targets.trimtab import VARIANTS, bind
from trimtab.signal import find

FAULTS = [
    ("normalize.over_mean", 0, "(values - mean) / mean", "(values - mean) / (mean + 1)"),
    ("normalize.over_mean", 0, "group.bounded(", "("),
    ("normalize.over_mean", 0, "group.average(values)", "values.mean().expand_as(values)"),
    ("normalize.length_weighted_mean", 0, "group.sum(length * (values - lowest))", "group.sum(values - lowest)"),
    ("normalize.length_weighted_mean", 0, "(group.voters >= 2) & (total > 0)", "group.voters >= 1"),
    ("normalize.best_minus_second", 0, ", 1) + eps)", ", 1))"),
    ("normalize.best_minus_second", 1, "torch.where(votes & enough, lead", "torch.where(enough, lead"),
    ("normalize.best_minus_second", 0, "(values - runner_up).clamp(min=0)", "values - runner_up"),
    ("normalize.rescaled_mean", 0, "voters / teaching", "teaching / voters"),
    ("normalize.rescaled_mean", 1, "values != 0", "values > 0.5"),
    ("normalize.running", 0, ".double() - running_mean", ".double() + running_mean"),
    ("normalize.minus_given", 0, "reward - baseline", "reward + baseline"),
    ("normalize.minus_role_average", 0, "reward - role_average", "role_average - reward"),
    ("normalize.leave_one_out", 1, "group.bounded(", "("),
    ("normalize.leave_one_out", 1, "result, eps", "result, 1e-6"),
    ("normalize.mean_std", 5, "else:\n        result = result - shift", "else:\n        result = result + shift"),
    ("normalize.mean_std", 6, "ddof)\n        result = result - shift", "ddof)"),
    ("normalize.each_key", 0, "votes & scored,", "votes,"),
    ("normalize.each_key", 1, "weight * torch.where", "torch.where"),
    ("normalize.each_key", 0, "whiten(total, votes & signal)", "whiten(total, signal)"),
    ("normalize.each_key", 1, "torch.where(scored, result, 0.0)", "result"),
    ("reward.weighted_sum", 0, "torch.where(rewards_scored, rewards, 0.0)", "rewards"),
    ("reward.not_ended_constant", 0, "torch.where(ended, reward,", "torch.where(~ended, reward,"),
    ("reward.relative_length", 0, ".clamp(max=1)", ""),
    ("reward.relative_length", 0, "group.average(reward)", "reward"),
    ("advantage.gae", 2, "segments, gamma * lam_value)", "segments, lam_value)"),
    ("advantage.gae_by_length", 0, ".clamp(min=0)", ".clamp(min=0.5)"),
    ("advantage.gae_by_length", 0, "segments, gamma * lam_value)", "segments, gamma)"),
    ("advantage.gae_by_share", 0, "segments.token_counts - 1", "segments.token_counts"),
    ("advantage.turn_gae", 0, "turns.to_tokens(advantage + value)", "turns.to_tokens(advantage) + value_old"),
    ("advantage.turn_gae", 0, "turns.segments, gamma * lam)", "turns.segments, gamma)"),
    ("advantage.turn_reward_to_go", 0, "turns.segments, gamma)", "turns.segments, 1.0)"),
    ("advantage.turn_reward_to_go", 1, "votes[episode], group", "torch.ones_like(votes)[episode], group"),
    ("advantage.turns_by_state", 0, "turns.segments, gamma)", "turns.segments, 1.0)"),
    ("advantage.turns_by_state", 0, "state.index_select(0, turns.starts)", "turns.sum(state)"),
    ("advantage.turns_by_state", 0, "[group_of_episode[episode], state", "[0 * episode, state"),
    ("advantage.turns_by_state", 0, "to(torch.long)]", "to(torch.long) * 0]"),
    ("advantage.turns_by_state", 0, "votes[episode], place", "torch.ones_like(votes)[episode], place"),
    ("advantage.turns_by_state", 1, "coef * _among", "_among"),
    ("advantage.plus_teacher", 0, "(logp_teacher - logp_old)", "(logp_old - logp_teacher)"),
    ("advantage.plus_teacher", 1, "outcome_coef * to_tokens", "to_tokens"),
    ("advantage.scaled_by_teacher", 0, "torch.sign(whole) * ", ""),
    ("advantage.scaled_by_teacher", 0, ".clamp(*band)", ""),
    ("advantage.optimal_token_baseline", 0, "1 - 2 * logp_old.double().exp()", "1 - logp_old.double().exp()"),
    ("advantage.optimal_token_baseline", 0, "voters >= 2", "voters >= 1"),
    ("advantage.optimal_token_baseline", 0, "- later", "- later + size"),
    ("advantage.optimal_token_baseline", 0, "torch.where(votes[episode], so_far, 0.0)", "so_far"),
]

SHARED = [
    ("advantage.turn_reward_to_go", 1, "voters.spread(centred, 1)", "voters.spread(centred, 0)"),
    ("advantage.turns_by_state", 0, "voters.spread(centred, 1)", "voters.spread(centred, 0)"),
    ("advantage.turns_by_state", 0, "(spread + eps)", "spread"),
    ("advantage.turns_by_state", 1, 'std == "group"', "True"),
    ("advantage.turns_by_state", 1, "voters.bounded(scaled)", "scaled"),
]
"""The same in what formulas of turns share: signal.turns:_among."""


RARE = ("group.bounded(", "torch.where(votes & enough, lead")
"""Faults that only show where a sample that does not vote is better than all that do."""


def holds(name: str, variant: int, fault: tuple[str, str] | None) -> bool:
    entry = find(name)
    fn = entry.fn if fault is None else edited(entry.fn, *fault)
    subject = bind(entry, VARIANTS.get(name, [{}])[variant], fn=fn)
    if fault is not None and fault[0] in RARE:
        return all(INVARIANTS["equals_definition"].check(subject, best_is_silent(case)) is None for case in directed())
    return all(verdict.status == "holds" for verdict in examine(subject, seed=0, examples=0))


def best_is_silent(case: Case) -> Case:
    """The first of one group does not vote, and has the best reward of all."""
    rows = case.taken([i for i, group in enumerate(case.sequences["group"].tolist()) if group == 0], as_part=False)
    first = torch.arange(rows.num_sequences) == 0
    doubled = rows.taken([*range(rows.num_sequences), *range(rows.num_sequences)], as_part=False)
    silent = torch.cat([first, torch.zeros_like(first)])
    reward = torch.where(silent, 9.0, torch.arange(len(silent)).double())
    return doubled.with_sequences(votes=~silent, reward=reward)


@pytest.mark.parametrize(("name", "variant"), sorted({(name, variant) for name, variant, _, _ in FAULTS + SHARED}))
def test_without_a_fault_every_promise_holds(name: str, variant: int) -> None:
    assert holds(name, variant, None)


@pytest.mark.parametrize("name", sorted({name for name, _, old, _ in FAULTS if old in RARE}))
def test_a_silent_best_is_as_defined(name: str) -> None:
    subject = bind(find(name), VARIANTS.get(name, [{}])[-1])
    assert all(INVARIANTS["equals_definition"].check(subject, best_is_silent(case)) is None for case in directed())


@pytest.mark.parametrize(("name", "variant", "old", "new"), FAULTS)
def test_a_fault_shows(name: str, variant: int, old: str, new: str) -> None:
    assert not holds(name, variant, (old, new))


@pytest.mark.parametrize(("name", "variant", "old", "new"), SHARED)
def test_a_fault_in_what_formulas_share_shows(name: str, variant: int, old: str, new: str) -> None:
    with planted((Edit("signal.turns:_among", old, new),)):
        assert not holds(name, variant, None)

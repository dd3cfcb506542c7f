"""Each invariant earns its place: a planted bug that it finds, and that nobody finds once it is switched off."""

import pytest

from mutants.edit import MUTANTS, Mutant
from mutants.held import findings
from mutants.planted import content  # noqa: F401  importing the package plants the bugs
from trimtab.sentinel import INVARIANTS, examine
from trimtab.sentinel.batch.directed import directed

ALONE = {
    "alignment": "answer_reversed_inside_its_row",
    "clip_geometry": "takes_the_larger_of_the_two",
    "connected": "critic_without_a_gradient",
    "credit_flows_back": "gae_from_the_first_token_on",
    "credit_over_trainable": "variance_counts_observations",
    "decision_granularity": "opsm_per_token",
    "declared_conventions": "another_estimator_than_declared",
    "degenerate_bounded": "mean_of_nothing_is_nan",
    "denominator": "divides_by_the_longest_answer",
    "eos_semantics": "end_token_is_dropped",
    "deterministic": "kl_under_dropout",
    "equals_definition": "token_sum_that_is_a_token_mean",
    "exactly_once": "first_token_of_a_branch_twice",
    "expected_gradient": "squared_ratio",
    "group_isolation": "one_vote_a_training_sequence",
    "half_precision": "door_lets_half_precision_in",
    "impossible_options_refused": "bounds_that_are_swapped",
    "importance_contract": "truncation_that_is_only_documented",
    "known_mistake": "half_of_the_square_is_missing",
    "mask_content": "cells_outside_filled_with_one",
    "mean_is_a_mean": "value_loss_divided_twice",
    "metric_reach": "sample_size_that_never_moves",
    "metric_reduction": "token_metric_averaged_by_sequence",
    "metric_truth": "rejections_weighed_by_length",
    "no_aliasing": "kl_shaped_in_place",
    "nonfinite_isolation": "average_multiplies_by_the_votes",
    "on_policy_identity": "gate_without_its_factor_four",
    "options_live": "lower_bound_is_forgotten",
    "options_take_sides": "temperatures_by_the_other_sign",
    "parallel_layout": "sum_that_stays_on_the_rank",
    "penalty_direction": "kl_added_to_the_reward",
    "permutation": "ties_broken_by_position",
    "sample_isolation": "spread_in_another_shape",
    "split": "parts_scaled_by_the_root_of_their_share",
    "suppressed_do_not_vote": "everyone_votes_on_the_mean",
    "temperature_consistency": "multiplied_by_the_temperature",
    "twins_agree": "vectorised_group_of_two",
    "value_fidelity": "reward_of_zero_is_no_reward",
}
"""Invariant to the planted bug that it alone finds."""

CASES = tuple(directed())
FEW = {
    "alignment": 2, "connected": 3, "expected_gradient": 1, "group_isolation": 2, "half_precision": 2,
    "mean_is_a_mean": 2, "metric_reduction": 3, "parallel_layout": 1, "split": 2, "value_fidelity": 2,
}  # fmt: skip
"""Invariants whose mutant is slow to run, and on how many cases the default suite runs it."""


LONG = (
    "expected_gradient", "exactly_once", "parallel_layout", "eos_semantics", "credit_flows_back", "twins_agree",
    "penalty_direction",
)  # fmt: skip
"""Invariants whose mutant takes long, most of them more than five seconds."""


def _mutant(invariant: str) -> Mutant:
    return next(m for m in MUTANTS if m.name == ALONE[invariant])


def test_every_invariant_has_a_planted_bug_of_its_own() -> None:
    assert set(ALONE) == set(INVARIANTS)


@pytest.mark.parametrize(
    "invariant",
    [
        pytest.param(name, marks=() if i % 12 == 0 and name not in LONG else pytest.mark.slow)
        for i, name in enumerate(sorted(ALONE))
    ],
)
def test_the_bug_is_missed_when_the_invariant_is_switched_off(invariant: str) -> None:
    found = findings(_mutant(invariant).subject, CASES[: FEW.get(invariant, len(CASES))])
    assert set(found) == {invariant}, found


@pytest.mark.slow
@pytest.mark.parametrize("invariant", sorted(ALONE))
def test_the_bug_is_missed_by_a_long_examination_without_the_invariant(invariant: str) -> None:
    """About four minutes on two cores."""
    others = [name for name in INVARIANTS if name != invariant]
    found = [v.invariant for v in examine(_mutant(invariant).subject, only=others, examples=20, seed=3)
             if v.status in ("bug", "latent", "hygiene")]  # fmt: skip
    assert found == []

"""A violation that only passes on a NaN, which another law reports, is no finding of its own."""

import torch

from trimtab.sentinel import bind, check
from trimtab.sentinel.search.consequence import passes_on


def summed(log_probs: torch.Tensor, advantages: torch.Tensor, response_mask: torch.Tensor, count: int) -> torch.Tensor:
    """Right, but 0 / 0 in a micro-batch without a trainable token."""
    terms = -log_probs * advantages * response_mask
    return terms.sum() / count + 0 * (terms.sum() / response_mask.sum())


def averaged(log_probs: torch.Tensor, advantages: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    return (-log_probs * advantages * response_mask).sum() / response_mask.sum()


def spread(log_probs: torch.Tensor, advantages: torch.Tensor, response_mask: torch.Tensor, count: int) -> torch.Tensor:
    """NaN for one sequence on its own, which every run meets that splits its batch so."""
    terms = -log_probs * advantages * response_mask
    return terms.sum() / count + 0 * terms.sum(1).std()


def late(log_probs: torch.Tensor, advantages: torch.Tensor, response_mask: torch.Tensor, count: int) -> torch.Tensor:
    """Like `summed`, and wrong for five sequences, which the search meets after a row without a trainable token."""
    wrong = 2.0 if len(log_probs) == 5 else 1.0
    return wrong * summed(log_probs, advantages, response_mask, count)


COUNT = {"count": lambda case: case.whole.segments.num_tokens}


def test_a_sum_over_parts_is_not_blamed_for_a_part_without_a_trainable_token() -> None:
    found = check(bind(summed, role="policy_loss", args=COUNT, combine="sum"), "split", examples=1)
    assert (found.status, found.severity, found.consequence_of) == ("latent", "low", "degenerate_bounded")
    assert found.violation is not None
    assert found.violation.condition == "a whole batch or micro-batch has no trainable token"


def test_a_violation_that_also_shows_without_nan_is_reported_as_it_shows_there() -> None:
    found = check(bind(averaged, role="policy_loss", combine="sum"), "split", examples=1)
    assert (found.status, found.consequence_of) == ("bug", "")
    assert found.violation is not None
    assert not passes_on(found.violation)


def test_a_bug_is_found_behind_a_nan() -> None:
    found = check(bind(late, role="policy_loss", args=COUNT, combine="sum"), "split", examples=1)
    assert (found.status, found.consequence_of) == ("bug", "")
    assert found.case is not None
    assert found.case.num_sequences == 5


def test_nan_on_a_batch_that_every_run_meets_stays_a_bug() -> None:
    found = check(bind(spread, role="policy_loss", args=COUNT, combine="sum"), "split", examples=1)
    assert (found.status, found.consequence_of) == ("bug", "")

"""Bugs that only corner batches show."""

import torch
from torch import Tensor

from trimtab.sentinel import bind, check
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.directed import directed, ordinary
from trimtab.sentinel.search.corner import corner_of


def _lonely(rewards: Tensor, group: Tensor) -> Tensor:
    """A sample alone in its group is compared with the whole batch."""
    out = torch.zeros_like(rewards)
    for one in group.unique():
        rows = group == one
        out[rows] = rewards[rows] - (rewards[rows].mean() if int(rows.sum()) > 1 else rewards.mean())
    return out


def test_what_only_a_group_of_one_shows_is_latent() -> None:
    verdict = check(bind(_lonely, role="reward_normalisation"), "group_isolation")
    assert verdict.status == "latent"
    assert verdict.violation is not None
    assert verdict.violation.condition == "a group with one sample"


def test_the_narrowest_corner_is_named() -> None:
    def shown(case: Case) -> bool:
        return max(sum(kind == "a" for kind in row) for row in case.kinds) <= 1

    assert corner_of(shown, directed(), ordinary()) == "every answer of a batch is one token long"


def test_a_mask_that_every_batch_forgets_is_a_bug() -> None:
    def mean(x: Tensor, mask: Tensor) -> Tensor:
        return x.mean()

    verdict = check(bind(mean, role="metric", args={"x": "entropy", "mask": "trainable"}), "credit_over_trainable")
    assert verdict.status == "bug"


def test_a_sample_mask_that_is_forgotten_is_a_bug_for_a_function_that_takes_one() -> None:
    def loss(log_probs: Tensor, advantages: Tensor, token_mask: Tensor, sample_mask: Tensor) -> Tensor:
        return -(log_probs * advantages * token_mask).sum() / token_mask.sum().clamp(min=1)

    subject = bind(loss, role="policy_loss", args={"token_mask": "chosen", "sample_mask": "in_use"})
    assert check(subject, "mask_content").status == "bug"


def test_nothing_in_common_is_no_corner() -> None:
    cases = list(directed())

    def on_most(case: Case) -> bool:
        return case.num_sequences == 4

    assert corner_of(on_most, cases, ordinary()) == ""


def test_a_law_that_few_ordinary_batches_can_show_has_no_corner() -> None:
    usual = {id(case) for case in ordinary()}

    def shown(case: Case) -> bool | None:
        return None if id(case) in usual else max(map(len, case.kinds)) == 2

    assert corner_of(shown, list(directed()), ordinary()) == ""


def test_a_loss_that_overflows_where_policies_are_far_apart_is_seen_by_everybody() -> None:
    def loss(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        ratio = torch.exp(log_probs - old_log_probs)
        per_token = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return (per_token * mask).sum() / mask.sum().clamp(min=1)

    assert check(bind(loss, role="policy_loss"), "degenerate_bounded").status == "hygiene"

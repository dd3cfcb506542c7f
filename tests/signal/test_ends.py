"""Ends of ranges and quiet corners of the signal, each with the number it must give."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from math import nan

import pytest
import torch
from tests.golden.exact import assert_is, flags, lengths, tokens

from trimtab.errors import SignalError
from trimtab.signal import (
    KL,
    SignalBatch,
    advantage,
    catalog,
    decide,
    part,
    policy_loss,
    prepare,
    recipe,
    reward,
    token_loss,
)
from trimtab.signal.counts import Counts
from trimtab.signal.metric_kind import SampleSize
from trimtab.signal.parallel import gather

THREE = torch.full((3, 2), -1.0, dtype=torch.float64)
MASK = [[1, 1], [0, 0], [1, 1]]


def batch(**given: object) -> SignalBatch:
    fields: dict[str, object] = {"reward": [1.0, 0.0, 0.5], "group": [0, 0, 0], "logp_old": THREE}
    return SignalBatch.from_padded(MASK, **(fields | given))  # type: ignore[arg-type]


def test_a_sequence_without_tokens_owes_no_value_where_it_was_cut_off() -> None:
    credit, _ = advantage.gae(tokens(1.0), tokens(0.5), tokens(nan, nan), flags(1, 0), lengths(1, 0))
    assert_is(credit, 0.5)


def test_a_summary_is_the_first_line_of_a_docstring() -> None:
    assert catalog()["policy_loss.clipped_importance"].summary.startswith("REINFORCE under a bounded, detached ratio")
    assert all(entry.summary.strip() for entry in catalog().values())


def test_a_sequence_without_tokens_is_not_counted() -> None:
    prepared, _ = prepare(batch(), recipe("dr_grpo"))
    counts = Counts.of(prepared)
    assert (counts.tokens, counts.sequences) == (4, 2)


def test_a_length_of_0_is_a_length() -> None:
    assert batch(length=[2, 0, 2]).length.tolist() == [2, 0, 2]


@pytest.mark.parametrize("band", [(1.0, 5.0), (0.5, 1.0)])
def test_a_ratio_on_the_edge_of_its_band_is_not_clipped(band: tuple[float, float]) -> None:
    same = tokens(-1.0)
    assert_is(policy_loss.clipped_importance(same, same, tokens(1.0), band=band)[1]["clipped_tokens"], 0)


def test_a_loss_on_its_ceiling_is_not_capped() -> None:
    same = tokens(-1.0).requires_grad_()
    loss, seen = policy_loss.dual_clipped(same, tokens(-1.0), tokens(-2.0), cap=1.0)
    assert_is(loss.detach(), 2.0)
    assert_is(seen["capped_tokens"], 0)
    loss.sum().backward()
    assert_is(same.grad, 2.0)


@pytest.mark.parametrize("choosing", [policy_loss.covariance_clipped, policy_loss.covariance_penalised])
def test_what_was_selected_is_told_in_a_tensor_of_its_own(choosing: Callable[..., policy_loss.Losses]) -> None:
    selected = flags(1, 0)
    seen = choosing(tokens(-1.0, -1.0), tokens(-1.0, -1.0), tokens(1.0, 1.0), selected)[1]
    selected.fill_(False)
    assert_is(seen["selected_tokens"], 1, 0)


def test_version_0_is_a_version() -> None:
    assert prepare(batch(), recipe("dr_grpo"), version=0)[0].batch.num_tokens == 4
    with pytest.raises(SignalError, match="version"):
        prepare(batch(), recipe("dr_grpo"), version=-1)


def test_without_a_seed_the_seed_is_0() -> None:
    assert prepare(batch(), recipe("dr_grpo"))[0].seed == 0
    assert prepare(batch(), recipe("dr_grpo"), seed=3)[0].seed == 3


def test_an_answer_that_was_cut_off_keeps_its_advantage_up_to_the_clip() -> None:
    # of the two that are scored, 1 and 0.25, the mean is 0.625
    cut = batch(reward=[1.0, 0.0, 0.25], ended=[0, 1, 1], scored=[1, 0, 1])
    assert_is(prepare(cut, recipe("dr_grpo"))[0].advantage, 0.375, 0.375, -0.375, -0.375)
    assert_is(prepare(cut, recipe("dr_grpo", clip_advantage=0.25))[0].advantage, 0.25, 0.25, -0.25, -0.25)


def test_the_spread_of_the_reward_is_over_scored_episodes() -> None:
    metrics = prepare(batch(reward=[1.0, 100.0, 0.5], scored=[1, 0, 1]), recipe("dr_grpo"))[0].metrics
    assert float(metrics["reward/episode_std"].value()[0]) == pytest.approx(0.25)
    assert float(metrics["reward/episode_mean"].value()[0]) == pytest.approx(0.75)


def test_engines_that_agree_are_no_drift() -> None:
    assert prepare(batch(logp_rollout=THREE), recipe("dr_grpo"))[0].warnings == ()
    assert prepare(batch(logp_rollout=THREE - 0.5), recipe("dr_grpo"))[0].warnings != ()


def test_a_reward_is_not_clipped_to_a_point() -> None:
    with pytest.raises(SignalError, match="not below"):
        reward.clip(tokens(1.0), low=2.0, high=2.0)


def test_a_step_that_is_spent_exactly_needs_no_tolerance() -> None:
    whole = SignalBatch.from_padded([[1, 1], [1, 1]], reward=[1.0, 0.0], group=[0, 0], logp_old=THREE[:2])
    step = decide(next(prepare(whole, recipe("dr_grpo"))[0].updates()))
    (micro,) = step.split(num=1)
    logp = THREE[:2].reshape(-1).clone().requires_grad_()
    token_loss(micro, logp).loss.backward()
    step.check_spent(tolerance=0.0)


class Alone:
    """One rank."""

    def concat(self, local: torch.Tensor) -> list[torch.Tensor]:
        return [local]

    def sum(self, local: torch.Tensor) -> torch.Tensor:
        return local


def test_any_name_of_an_extra_field_fits_the_word_that_ranks_compare() -> None:
    names = [f"field_{i}" for i in range(8)]
    assert any(hashlib.sha256(name.encode()).digest()[0] >= 128 for name in names)
    for name in names:
        whole, _ = gather(batch(extra={name: THREE}), Alone(), 0)
        assert name in whole.extra


def test_a_kl_that_goes_elsewhere_takes_nothing_from_the_rewards_of_tokens() -> None:
    to_go = replace(recipe("dr_grpo"), advantage=part("advantage.reward_to_go", gamma=1.0))
    with_kl = replace(to_go, kl=KL(part("kl.k3"), coef=0.1, into="loss"))
    first = prepare(batch(), to_go)[0].advantage
    second = prepare(batch(logp_ref=THREE - 1.0), with_kl)[0].advantage
    assert torch.equal(first, second)


def test_the_effective_sample_size_holds_no_graph() -> None:
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64, requires_grad=True)
    size = SampleSize.of(weights)
    assert not size.square.requires_grad
    assert float(size.square) == 10.0

"""What must be the same although it is written differently: formula against formula, recipe against recipe."""

from dataclasses import replace
from itertools import permutations
from math import inf
from typing import Any

import pytest
import torch
from tests.golden.exact import ATOL, lengths
from torch import Tensor

import trimtab
from trimtab.signal import Recipe, Stage, part, policy_loss

# The batches here drift on purpose, also under recipes that correct nothing.
pytestmark = pytest.mark.filterwarnings("ignore:the sampler differs from the trainer")

Result = tuple[Tensor, Tensor]

MASK = torch.tensor(
    [[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 0], [0, 0, 1, 0]], dtype=torch.bool
)
REWARD = torch.tensor([1.0, -0.5, 2.0, 0.25, -1.0, -3.0], dtype=torch.float64)
GROUP = torch.tensor([0, 0, 0, 1, 1, 1])
TURN = torch.tensor([0, 0, 1, 1]).expand(MASK.shape)

RATIO_LOSSES = [
    name for name, entry in trimtab.catalog().items() if entry.stage == "policy_loss" and entry.consumes == "ratio"
]
NONE_ELIGIBLE = {"covariance_low": 1e9, "covariance_high": 2e9}


def drawn(seed: int = 0, spread: float = 0.4) -> tuple[Tensor, Tensor, Tensor]:
    """logp_current, logp_old and logp_rollout of the padded batch, a drift apart; none above 0."""
    generator = torch.Generator().manual_seed(seed)
    rollout = -1.5 - torch.rand(MASK.shape, generator=generator, dtype=torch.float64)
    old = rollout + spread * torch.randn(MASK.shape, generator=generator, dtype=torch.float64).clamp(-2, 2)
    current = old + spread * torch.randn(MASK.shape, generator=generator, dtype=torch.float64).clamp(-2, 2)
    return current.clamp(max=0), old.clamp(max=0), rollout


def recipe(loss: Stage, *correction: Stage, **changes: Any) -> Recipe:
    chosen = Recipe(
        name="identity",
        loss=loss,
        normalize=part("normalize.raw"),
        weighting=part("weighting.sequence_mean_token_mean"),
        correction=correction,
    )
    return replace(chosen, **changes)


REINFORCE = Stage(part("policy_loss.reinforce"))
CLIPPED = Stage(part("policy_loss.clipped", band=(0.8, 1.28)), anchor="old")


def run(chosen: Recipe, current: Tensor, old: Tensor, rollout: Tensor) -> Result:
    """Loss and gradient of the padded batch."""
    leaf = current.clone().requires_grad_()
    loss, _ = trimtab.loss(
        leaf, recipe=chosen, mask=MASK, reward=REWARD, group=GROUP, logp_old=old, logp_rollout=rollout, turn=TURN
    )
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def assert_same(one: Result, other: Result, atol: float = 0.0) -> None:
    """The same gradient; the loss is a sum, whose order may differ."""
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=max(atol, 1e-15))
    torch.testing.assert_close(one[1], other[1], rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["clipped", "dual_clipped", "covariance_clipped"])
def test_a_band_of_everything_is_the_unclipped_surrogate(name: str) -> None:
    settings = {"band": (0.0, inf)} | ({"cap": inf} if name == "dual_clipped" else {})
    settings |= NONE_ELIGIBLE if name == "covariance_clipped" else {}
    free = Stage(part(f"policy_loss.{name}", **settings), anchor="old")
    unclipped = Stage(part("policy_loss.covariance_penalised", coef=0.0), anchor="old")
    assert_same(run(recipe(free), *drawn(spread=1.0)), run(recipe(unclipped), *drawn(spread=1.0)))


def test_the_unclipped_surrogate_is_the_ratio_times_the_advantage() -> None:
    current, old, rollout = drawn(spread=1.0)
    leaf = current.clone().requires_grad_()
    counts = MASK.sum(1, keepdim=True)
    weighted = -torch.exp(leaf - old) * REWARD[:, None] * MASK / counts / 6
    weighted.sum().backward()
    assert leaf.grad is not None
    free = Stage(part("policy_loss.clipped", band=(0.0, inf)), anchor="old")
    assert_same(run(recipe(free), current, old, rollout), (weighted.sum().detach(), leaf.grad), atol=ATOL)


def test_the_geometric_ratio_of_one_token_is_its_ratio() -> None:
    generator = torch.Generator().manual_seed(1)
    old = -torch.rand(20, generator=generator, dtype=torch.float64)
    current = (old - torch.randn(20, generator=generator, dtype=torch.float64) / 2).requires_grad_()
    advantage = torch.randn(20, generator=generator, dtype=torch.float64)
    alone, keep = lengths(*[1] * 20), torch.ones(20, dtype=torch.bool)
    by_sequence, _ = policy_loss.geometric_clipped(current, old, advantage, keep, alone, band=(0.8, 1.28))
    by_token, seen = policy_loss.clipped(current, old, advantage, band=(0.8, 1.28))
    assert 0 < int(seen["clipped_tokens"].sum()) < 20
    torch.testing.assert_close(by_sequence, by_token, rtol=0, atol=0)
    gradients = [torch.autograd.grad(loss.sum(), current)[0] for loss in (by_sequence, by_token)]
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_negative_drift_past_infinity_rejects_nobody() -> None:
    for anchor in ("old", "rollout"):
        stage = Stage(part("keep.negative_drift", delta=inf), anchor=anchor)
        assert_same(run(recipe(CLIPPED, stage), *drawn()), run(recipe(CLIPPED), *drawn()))


NEUTRAL = {
    "token_band": Stage(part("keep.token_band", band=(0.0, inf)), ratio="engine"),
    "product_band": Stage(part("keep.product_band", band=(0.0, inf)), ratio="total"),
    "geometric_band": Stage(part("keep.geometric_band", band=(0.0, inf)), ratio="update"),
    "veto": Stage(part("keep.veto", low=1e-4), ratio="engine"),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_a_stage_that_can_do_nothing_is_absent(name: str) -> None:
    assert_same(run(recipe(CLIPPED, NEUTRAL[name]), *drawn()), run(recipe(CLIPPED), *drawn()))


@pytest.mark.parametrize("ratio", ["engine", "update", "total"])
def test_a_rejected_token_has_exactly_no_gradient_whenever_it_is_rejected(ratio: str) -> None:
    """`engine` is decided in prepare, the others with the current policy at hand; the rest is as without the stage."""
    current, old, rollout = drawn()
    later, earlier = {"engine": (old, rollout), "update": (current, old), "total": (current, rollout)}[ratio]
    inside = (torch.exp(later - earlier) >= 0.8) & (torch.exp(later - earlier) <= 1.25)
    assert 0 < int((inside & MASK).sum()) < int(MASK.sum())
    stage = Stage(part("keep.token_band", band=(0.8, 1.25)), ratio=ratio)
    _, gradient = run(recipe(REINFORCE, stage), current, old, rollout)
    _, whole = run(recipe(REINFORCE), current, old, rollout)
    torch.testing.assert_close(gradient, torch.where(inside, whole, torch.zeros_like(whole)), rtol=0, atol=0)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_an_importance_between_equal_policies_is_absent(level: str) -> None:
    current, old, _ = drawn()
    stage = Stage(part("importance.truncated", level=level, band=(0.0, 2.0)), ratio="engine")
    assert_same(run(recipe(CLIPPED, stage), current, old, old), run(recipe(CLIPPED), current, old, old))


TRIPLES = {
    "early": (
        Stage(part("importance.truncated", level="token", band=(0.5, 1.5)), ratio="engine"),
        Stage(part("keep.token_band", band=(0.6, 1.7)), ratio="engine"),
        Stage(part("keep.veto", high=2.0), ratio="engine"),
    ),
    "early and late": (
        Stage(part("importance.truncated", level="sequence", band=(0.2, 3.0)), ratio="engine"),
        Stage(part("keep.geometric_band", band=(0.7, 1.4)), ratio="total"),
        Stage(part("keep.negative_drift", delta=0.1), anchor="rollout"),
    ),
    "two importances": (
        Stage(part("importance.truncated", level="geometric", band=(0.5, 1.5)), ratio="engine"),
        Stage(part("importance.truncated", level="token", band=(0.5, 1.5)), ratio="update"),
        Stage(part("keep.product_band", band=(0.1, 4.0)), ratio="engine"),
    ),
}


@pytest.mark.parametrize("over", ["all", "kept"])
@pytest.mark.parametrize("name", TRIPLES)
def test_stages_commute(name: str, over: str) -> None:
    loss = REINFORCE if name == "two importances" else CLIPPED
    weighting = part("weighting.sequence_mean_token_mean", over=over)
    results = [run(recipe(loss, *order, weighting=weighting), *drawn()) for order in permutations(TRIPLES[name])]
    for result in results[1:]:
        assert_same(result, results[0])
    assert not torch.equal(results[0][1], run(recipe(loss, weighting=weighting), *drawn())[1]), (
        "the stages do nothing here"
    )


@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_on_policy_every_ratio_loss_has_the_gradient_of_reinforce(name: str) -> None:
    current, *_ = drawn()
    settings = NONE_ELIGIBLE if name == "policy_loss.covariance_clipped" else {}
    chosen = recipe(Stage(part(name, **settings), anchor="old"))
    _, gradient = run(chosen, current, current, current)
    _, expected = run(recipe(REINFORCE), current, current, current)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("ratio", ["engine", "update", "total"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_on_policy_every_importance_is_one(level: str, ratio: str) -> None:
    current, *_ = drawn()
    stage = Stage(part("importance.truncated", level=level, band=(0.8, 1.2)), ratio=ratio)
    assert_same(
        run(recipe(REINFORCE, stage), current, current, current), run(recipe(REINFORCE), current, current, current)
    )


def test_before_the_first_update_off_policy_importance_is_the_clip_of_old_to_rollout() -> None:
    _, old, rollout = drawn()
    results = [
        run(recipe(REINFORCE, Stage(part("importance.truncated", band=(0.8, 1.28)), ratio=ratio)), old, old, rollout)
        for ratio in ("total", "engine")
    ]
    assert_same(*results)
    weight = torch.exp(old - rollout).clamp(0.8, 1.28)
    expected = -weight * REWARD[:, None] * MASK / MASK.sum(1, keepdim=True) / 6
    torch.testing.assert_close(results[0][1], expected, rtol=0, atol=ATOL)


def test_clipped_importance_against_the_sampler_is_reinforce_under_the_truncated_total_ratio() -> None:
    cispo = recipe(Stage(part("policy_loss.clipped_importance", band=(0.8, 1.28)), anchor="rollout"))
    composed = recipe(REINFORCE, Stage(part("importance.truncated", band=(0.8, 1.28)), ratio="total"))
    assert_same(run(cispo, *drawn()), run(composed, *drawn()), atol=ATOL)

"""Gradients of every loss, in float64: against finite differences, and against the identities they are known by."""

from typing import Any

import pytest
import torch
from tests.golden.exact import assert_is, assert_near, flags, index, lengths, tokens
from tests.golden.exact import log as logp
from torch import Tensor

import trimtab
from trimtab.signal import Recipe, Stage, part, policy_loss, value_loss

POLICY = [name for name, entry in trimtab.catalog().items() if entry.stage == "policy_loss"]
VALUE = [name for name, entry in trimtab.catalog().items() if entry.stage == "value_loss"]

# A stop-gradient inside makes the derivative of the value another thing than the gradient; these have identities below.
SURROGATES = {
    "policy_loss.clipped_importance",
    "policy_loss.geometric_clipped_token",
    "policy_loss.gamma_weighted",
    "policy_loss.tapered",
    "policy_loss.turn_clipped",
}

# Ratios 1.5, 0.5, 1.1, 0.95, 4, 1.02 with both signs: clipped and free ones on both sides, none at a kink.
LENGTHS = lengths(2, 3, 1)
INPUTS: dict[str, Any] = {
    "logp_current": logp(0.6, 0.2, 0.44, 0.38, 0.8, 0.51),
    "logp_anchor": logp(0.4, 0.4, 0.40, 0.40, 0.2, 0.50),
    "advantage": tokens(2.0, 2.0, -1.5, -1.5, -1.5, 0.5),
    "keep": flags(1, 1, 1, 0, 1, 1),
    "selected": flags(0, 1, 0, 0, 1, 0),
    "segments": LENGTHS,
    "turn": index(0, 1, 0, 0, 1, 0),
    "value": tokens(1.25, 2.0, 2.0, 0.0, 0.9, -1.0),
    "value_old": tokens(1.0, 1.0, 1.0, 1.0, 1.0, -1.1),
    "returns": tokens(2.0, 3.0, 0.0, -1.0, 0.5, 4.0),
}
BAND = (0.8, 1.3)


def run(name: str, **changed: Tensor) -> Tensor:
    entry = trimtab.catalog()[name]
    settings = {"band": BAND} if "band" in entry.settings else {}
    loss, _ = trimtab.part(name, **settings)({**INPUTS, **changed})
    return loss


@pytest.mark.parametrize("name", [name for name in POLICY if name not in SURROGATES])
def test_policy_loss_gradients_are_finite_differences(name: str) -> None:
    current = INPUTS["logp_current"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: run(name, logp_current=x), current, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", VALUE)
def test_value_loss_gradients_are_finite_differences(name: str) -> None:
    value = INPUTS["value"].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: run(name, value=x), value, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", POLICY)
def test_nothing_flows_into_what_a_policy_loss_holds_fixed(name: str) -> None:
    fixed = {n: INPUTS[n].clone().requires_grad_() for n in ("logp_anchor", "advantage")}
    current = INPUTS["logp_current"].clone().requires_grad_()
    run(name, logp_current=current, **fixed).sum().backward()
    assert current.grad is not None
    for which, values in fixed.items():
        assert values.grad is None or not values.grad.any(), f"{name} sends a gradient into {which}"


@pytest.mark.parametrize("name", VALUE)
def test_nothing_flows_into_what_a_value_loss_holds_fixed(name: str) -> None:
    fixed = {n: INPUTS[n].clone().requires_grad_() for n in ("value_old", "returns")}
    value = INPUTS["value"].clone().requires_grad_()
    run(name, value=value, **fixed).sum().backward()
    assert value.grad is not None
    for which, values in fixed.items():
        assert values.grad is None or not values.grad.any(), f"{name} sends a gradient into {which}"


KL = [name for name, entry in trimtab.catalog().items() if entry.stage == "kl"]


STRAIGHT_THROUGH = {"kl.k2_gradient", "kl.importance_weighted_k2_gradient"}


@pytest.mark.parametrize("name", [name for name in KL if name not in STRAIGHT_THROUGH])
def test_kl_gradients_are_finite_differences(name: str) -> None:
    """Also of the importance-weighted one: its ratio carries gradient, the score-function term that plain k3 lacks."""
    fixed = {"logp_ref": logp(0.4, 0.3), "logp_anchor": logp(0.6, 0.25), "segments": lengths(2)}
    current = logp(0.5, 0.2).requires_grad_()
    estimate = trimtab.part(name)
    assert torch.autograd.gradcheck(lambda x: estimate({**fixed, "logp_current": x}), current, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("name", KL)
def test_nothing_flows_into_the_reference_of_a_kl(name: str) -> None:
    current, ref, anchor = (logp(*p).requires_grad_() for p in ((0.5, 0.2), (0.4, 0.3), (0.6, 0.25)))
    given = {"logp_current": current, "logp_ref": ref, "logp_anchor": anchor, "segments": lengths(2)}
    trimtab.part(name)(given).sum().backward()
    assert current.grad is not None
    assert current.grad.all()
    for which, values in (("logp_ref", ref), ("logp_anchor", anchor)):
        assert values.grad is None or not values.grad.any(), f"{name} sends a gradient into {which}"


def test_an_importance_carries_no_gradient() -> None:
    logratio = logp(4.0, 0.5).requires_grad_()
    for level in ("token", "sequence", "geometric"):
        weight, _ = trimtab.part("importance.truncated", level=level)({"logratio": logratio, "segments": lengths(2)})
        assert not weight.requires_grad


def test_clipped_importance_has_the_gradient_of_its_weight_times_the_advantage() -> None:
    # -w * A with w bounded to (0.8, 1.3): 1.3, 0.8, 1.1, 0.95, 1.3, 1.02. Clipping never removes a gradient.
    current = INPUTS["logp_current"].clone().requires_grad_()
    run("policy_loss.clipped_importance", logp_current=current).sum().backward()
    assert current.grad is not None
    assert_near(current.grad, -1.3 * 2.0, -0.8 * 2.0, 1.1 * 1.5, 0.95 * 1.5, 1.3 * 1.5, -1.02 * 0.5)


def test_truncated_times_reinforce_has_the_gradient_of_its_weight_times_the_advantage() -> None:
    # current / rollout = 1.5, 0.5 | 4, bounded to (0.8, 1.3); rewards +2 and -1 are the advantages; token mean of 3
    logps = logp(0.6, 0.2, 0.8, 1.0).reshape(2, 2).requires_grad_()
    rollout = logp(0.4, 0.4, 0.2, 1.0).reshape(2, 2).requires_grad_()
    chosen = Recipe(
        name="off_policy",
        loss=Stage(part("policy_loss.reinforce")),
        normalize=part("normalize.raw"),
        weighting=part("weighting.token_mean"),
        correction=(Stage(part("importance.truncated", level="token", band=BAND), ratio="total"),),
        old="absent",
    )
    mask = torch.tensor([[True, True], [True, False]])
    loss, _ = trimtab.loss(
        logps, recipe=chosen, mask=mask, reward=tokens(2.0, -1.0), group=torch.tensor([0, 0]), logp_rollout=rollout
    )
    loss.backward()
    assert logps.grad is not None
    assert_near(3 * logps.grad.flatten(), -1.3 * 2.0, -0.8 * 2.0, 1.3 * 1.0, 0.0)
    assert rollout.grad is None


def test_the_token_variant_has_the_sequence_ratio_times_the_advantage_where_it_is_not_clipped() -> None:
    # geometric means: sqrt(1.5 * 0.5) = 0.866 inside the band; sqrt(1.1 * 4) = 2.098 at A < 0: free; 1.02 inside
    # the token that is not kept has its sequence's ratio in its own gradient too; the pipeline hands it advantage 0
    current = INPUTS["logp_current"].clone().requires_grad_()
    run("policy_loss.geometric_clipped_token", logp_current=current).sum().backward()
    assert current.grad is not None
    first, second = 0.75**0.5, 4.4**0.5
    assert_near(current.grad, -2 * first, -2 * first, 1.5 * second, 1.5 * second, 1.5 * second, -0.5 * 1.02)


@pytest.mark.parametrize("name", ["clipped", "dual_clipped", "covariance_clipped"])
def test_a_clipped_token_has_exactly_no_gradient(name: str) -> None:
    # ratio 1.5 at A > 0 and 0.5 at A < 0 are clipped; their neighbours of the other sign are not
    current, anchor = logp(0.6, 0.6, 0.2, 0.2).requires_grad_(), logp(0.4, 0.4, 0.4, 0.4)
    run(
        f"policy_loss.{name}",
        logp_current=current,
        logp_anchor=anchor,
        advantage=tokens(2.0, -2.0, -2.0, 2.0),
        selected=flags(0, 0, 0, 0),
    ).sum().backward()
    assert current.grad is not None
    assert_is(current.grad[[0, 2]], 0.0, 0.0)
    assert_near(current.grad[[1, 3]], 2 * 1.5, -2 * 0.5)


def test_a_token_at_the_dual_clip_ceiling_has_exactly_no_gradient() -> None:
    current = logp(0.8, 0.4).requires_grad_()
    loss, _ = policy_loss.dual_clipped(current, logp(0.2, 0.2), tokens(-2.0, -2.0), band=BAND, cap=3.0)
    loss.sum().backward()
    assert current.grad is not None
    assert_is(current.grad[:1], 0.0)
    assert_near(current.grad[1:], 4.0)


@pytest.mark.parametrize("name", ["geometric_clipped", "geometric_clipped_token"])
def test_a_clipped_sequence_and_a_rejected_token_have_exactly_no_gradient(name: str) -> None:
    # sequence 0: geometric mean 2 at A > 0, clipped; sequence 1: mean 1/2 at A > 0, free, without its rejected token
    current = logp(0.8, 0.5, 0.1, 0.3, 0.9).requires_grad_()
    run(
        f"policy_loss.{name}",
        logp_current=current,
        logp_anchor=logp(0.2, 0.5, 0.4, 0.3, 0.0009),
        advantage=tokens(1.0, 1.0, 1.0, 1.0, 0.0),
        keep=flags(1, 1, 1, 1, 0),
        segments=lengths(2, 3),
    ).sum().backward()
    assert current.grad is not None
    assert_is(current.grad[[0, 1, 4]], 0.0, 0.0, 0.0)
    # Every token's loss shares the mean over the two kept tokens, and the rejected one's advantage is 0: 2 * s/2 = s.
    assert_near(current.grad[[2, 3]], -0.5, -0.5)


def test_the_soft_gate_has_the_gradient_of_reinforce_at_ratio_one() -> None:
    # -A * (4 / tau) * sigmoid'(0) * tau = -A, whatever the temperature
    current = logp(0.6, 0.2).requires_grad_()
    loss, _ = policy_loss.soft_gated(
        current, logp(0.6, 0.2), tokens(2.0, -3.0), temperature_positive=0.7, temperature_negative=1.9
    )
    loss.sum().backward()
    assert current.grad is not None
    assert_near(current.grad, -2.0, 3.0)


def test_a_held_value_has_exactly_no_gradient() -> None:
    # old 1, reach 0.5: value 2 against return 3 is held at 1.5; value 2 against return 0 is not, gradient 2 - 0
    value = tokens(2.0, 2.0).requires_grad_()
    loss, _ = value_loss.squared_clipped(value, tokens(1.0, 1.0), tokens(3.0, 0.0), reach=0.5)
    loss.sum().backward()
    assert value.grad is not None
    assert_is(value.grad, 0.0, 2.0)


def test_nothing_flows_into_the_batch_of_a_whole_recipe() -> None:
    """Every field but the current policy's may arrive with a graph behind it; none of it is trained."""
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1]], dtype=torch.bool)
    fields = {
        n: (-torch.rand(4, 3, dtype=torch.float64)).requires_grad_() for n in ("logp_old", "logp_rollout", "logp_ref")
    }
    value_old = torch.rand(4, 3, dtype=torch.float64).requires_grad_()
    reward = tokens(1.0, 0.0, 0.5, 2.0).requires_grad_()
    current, value = (torch.rand(4, 3, dtype=torch.float64).neg().requires_grad_() for _ in range(2))
    chosen = trimtab.recipe(
        "ppo",
        correction=(Stage(part("importance.truncated"), ratio="engine"),),
        kl=trimtab.signal.KL(part("kl.k3"), coef=0.1, into="loss"),
    )
    loss, _ = trimtab.loss(
        current, recipe=chosen, mask=mask, reward=reward, group=torch.tensor([0, 0, 1, 1]), value=value,
        value_old=value_old, ended=torch.ones(4, dtype=torch.bool), **fields,
    )  # fmt: skip
    loss.backward()
    assert current.grad is not None
    assert value.grad is not None
    held = {**fields, "value_old": value_old, "reward": reward}
    leaking = [name for name, values in held.items() if values.grad is not None and values.grad.any()]
    assert not leaking, f"a gradient flows into {leaking}"

"""bfloat16: the head computes in float32, and steps are taken on float32 masters."""

import copy

import pytest
import torch
from tests.train.test_learn import MIXED, sampled

from trimtab.config.train import ModelSettings, TrainSettings
from trimtab.rollout.rows import lay_out
from trimtab.signal import recipe
from trimtab.train.learner import Learner
from trimtab.train.logp import token_pass
from trimtab.train.optimize import Optimizer
from trimtab.train.policy import Policy, make_policy

HALF = ModelSettings(dtype="bfloat16")


@pytest.fixture
def half(policy: Policy) -> Policy:
    return make_policy(copy.deepcopy(policy.model), policy.tokenizer, HALF)


def test_logits_are_not_rounded_before_the_softmax(policy: Policy, half: Policy) -> None:
    """With equal hidden states, only the head rounds: in bfloat16 by about 1e-3, in float32 not at all."""
    rows = lay_out(sampled(policy, MIXED), torch.arange(12), pad_id=policy.pad_id)
    exact = copy.deepcopy(half.model).float()  # the same parameters, computed in float32
    rounded, wide, best = (
        token_pass(model, rows, temperature=1.0, float32_head=head, with_state=True)
        for model, head in ((half.model, False), (half.model, True), (exact, True))
    )
    assert torch.equal(rounded.state, wide.state)  # type: ignore[arg-type]
    weight = half.model.get_output_embeddings().weight.double()
    logits = wide.state.double() @ weight.T  # type: ignore[union-attr]
    target = rows.ids[rows.row_of_token, rows.column_of_token]
    truth = torch.log_softmax(logits, -1).gather(1, target[:, None])[:, 0]
    assert float((wide.logp - truth).abs().max()) < 1e-5
    assert float((rounded.logp - truth).abs().mean()) > 1e-4
    assert best.logp.dtype == wide.logp.dtype == torch.float32


def moved(policy: Policy, masters: bool, lr: float) -> float:
    """The share of parameters that 20 steps of this size move at all."""
    settings = TrainSettings(lr=lr, model=HALF)
    learner = Learner(policy, recipe("grpo"), settings)
    first = [p.detach().float().clone() for p in policy.model.parameters()]
    for version in range(20):
        _ = learner.learn(sampled(policy, MIXED), version=version)
    state = learner.optimizer.state()
    names = [name for name in state if name.endswith("|master")]
    now = [state[name] for name in names] if masters else [p.float() for p in policy.model.parameters()]
    assert len(now) == len(first)
    changed = sum(int((a != b).sum()) for a, b in zip(now, first, strict=True))
    return changed / sum(p.numel() for p in first)


def test_small_steps_are_not_lost(half: Policy) -> None:
    """At lr 1e-6 hardly a bfloat16 parameter moves by itself; its master does."""
    assert moved(half, masters=True, lr=1e-6) > 0.95


def test_what_the_model_computes_with_is_the_rounded_master(half: Policy) -> None:
    learner = Learner(half, recipe("grpo"), TrainSettings(lr=1e-3, model=HALF))
    _ = learner.learn(sampled(half, MIXED), version=0)
    state = learner.optimizer.state()
    for name, parameter in half.model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, state[f"model.{name}|master"].bfloat16())


def test_gradients_add_up_in_float32(half: Policy) -> None:
    """512 small gradients after a large one: in bfloat16 every one of them would be rounded away."""
    optimizer = Optimizer(half, TrainSettings(grad_clip=1e9, model=HALF), with_critic=False)
    parameter = next(half.model.parameters())
    for size in (256.0, *([0.5] * 512)):
        parameter.grad = torch.full_like(parameter, size)
        optimizer.take_gradients()
    assert parameter.grad is None
    assert optimizer.step(0.0, 0).norm == pytest.approx(512.0 * parameter.numel() ** 0.5, rel=1e-6)


def test_a_resumed_run_has_its_masters_back(half: Policy) -> None:
    settings = TrainSettings(lr=1e-5, model=HALF)
    learner = Learner(half, recipe("reinforce"), settings)
    _ = learner.learn(sampled(half, MIXED), version=0)
    twin = copy.deepcopy(half)
    again = Learner(twin, recipe("reinforce"), settings)
    again.optimizer.restore({name: value.clone() for name, value in learner.optimizer.state().items()})
    batch = sampled(half, MIXED)
    for one in (learner, again):
        _ = one.learn(batch, version=1)
    mine, theirs = learner.optimizer.state(), again.optimizer.state()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trimtab.config.train import TrainSettings
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather, join
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.rows import lay_out
from trimtab.rollout.tokenizer import encode
from trimtab.rollout.weights import digest
from trimtab.signal import names, recipe
from trimtab.train.learner import Learner
from trimtab.train.logp import token_pass
from trimtab.train.policy import Policy, frozen_copy, published

UNRECORDED = {"rewards", "baseline", "logp_teacher", "pi_squared", "state", "role"}
NAMES = [name for name in names() if not recipe(name).needs & UNRECORDED]
"""Recipes that read nothing that this trainer does not record."""


def sampled(policy: Policy, reward: list[float], temperature: float = 1.0) -> Rollouts:
    """Three prompts of different length, four answers each."""
    engine = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=policy.eos_ids)
    state = published(policy.model)
    engine.load(state, 0, digest(state))
    prompts = [tuple(encode(policy.tokenizer, text)) for text in ("58213=", "7=", "401=")]
    requests = [Request(prompts[number // 4], seed=number) for number in range(12)]
    samples = engine.sample(requests, Sampling(max_new_tokens=6, temperature=temperature))
    episodes = [
        Episode(
            ids=torch.tensor([*request.ids, *sample.ids]),
            trainable=torch.tensor([False] * len(request.ids) + [True] * len(sample.ids)),
            logp=sample.logp,
            version=torch.tensor(sample.version),
            turn=torch.zeros(len(sample.ids), dtype=torch.int64),
            ended=sample.finish == "eos",
            reward=reward[number],
            status="ok",
        )
        for number, (request, sample) in enumerate(zip(requests, samples, strict=True))
    ]
    return join([gather(ticket, "", episodes[4 * ticket : 4 * ticket + 4]) for ticket in range(3)])


MIXED = [1.0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1]


def parameters(policy: Policy) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in policy.model.parameters()]


def test_sampler_and_trainer_agree_on_every_token(policy: Policy) -> None:
    settings = TrainSettings(temperature=0.7)
    learned = Learner(policy, recipe("grpo"), settings).learn(sampled(policy, MIXED, temperature=0.7), version=0)
    assert learned.metrics["logratio_engine/token_abs_max"] < 1e-5
    assert learned.metrics["logratio_update/token_abs_max"] < 1e-6
    assert learned.metrics["drift/stale_token_fraction"] == 0


def test_the_gradient_is_that_of_the_loss_written_out(policy: Policy) -> None:
    """On-policy GRPO with token mean: -(A * logp).mean(), A = (reward - group mean) / (group std + eps), ddof 1."""
    settings = TrainSettings(lr=1.0, grad_clip=1e9)
    batch, chosen = sampled(policy, MIXED), recipe("grpo")
    learner = Learner(policy, chosen, settings)
    twin = copy.deepcopy(policy.model)
    reward = torch.tensor(MIXED).reshape(3, 4)
    eps = float(chosen.normalize.settings["eps"])
    advantage = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + eps)).flatten()
    counts = batch.token_counts
    logp = token_pass(twin, lay_out(batch, torch.arange(12), pad_id=policy.pad_id), temperature=1.0).logp
    weighting = {
        "weighting.token_mean": torch.full((12,), 1 / len(logp)).repeat_interleave(counts),
        "weighting.sequence_mean_token_mean": (1 / (12 * counts)).repeat_interleave(counts),
    }[chosen.weighting.formula.name]
    expected = torch.autograd.grad(
        -(advantage.repeat_interleave(counts) * weighting * logp).sum(), list(twin.parameters())
    )
    learned = learner.learn(batch, version=0)
    norm = torch.stack([gradient.norm() for gradient in expected]).norm()
    assert learned.metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    for parameter, gradient in zip(policy.model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["grpo", "ppo", "dr_grpo"])
def test_micro_batches_do_not_change_the_step(policy: Policy, name: str) -> None:
    twin = copy.deepcopy(policy)
    batch = sampled(policy, MIXED)
    gradients: list[list[Tensor]] = []
    for one, max_tokens in ((policy, 4096), (twin, 7)):
        settings = TrainSettings(max_tokens_per_micro_batch=max_tokens)
        _ = Learner(one, recipe(name), settings).learn(batch, version=0)
        gradients.append([parameter.grad for parameter in one.model.parameters() if parameter.grad is not None])
    for whole, cut in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, cut, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if i % 3 else ()) for i, name in enumerate(NAMES)]
)
def test_every_recipe_trains_with_two_updates_a_batch(policy: Policy, name: str) -> None:
    """The first update is on-policy whatever the recipe; both must find what they need in the batch.

    The step is small, so that the second update is inside every trust region. Where the old policy is the current one,
    there is one update.
    """
    chosen, before = recipe(name), parameters(policy)
    updates = 1 if chosen.old == "current" else 2
    settings = TrainSettings(updates_per_batch=updates, lr=1e-5)
    learned = Learner(policy, chosen, settings).learn(sampled(policy, MIXED), version=0)
    assert learned.metrics["train/updates"] == updates
    chooses = any(stage.part.formula.name == "keep.high_entropy" for stage in chosen.correction)
    assert learned.metrics["kept/token_fraction"] == (pytest.approx(0.2, abs=0.05) if chooses else 1)
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_a_batch_without_signal_moves_nothing_and_is_counted(policy: Policy) -> None:
    before = parameters(policy)
    learned = Learner(policy, recipe("dapo"), TrainSettings()).learn(sampled(policy, [1.0] * 12), version=0)
    assert learned.skipped_updates == 1
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_a_batch_that_is_rejected_whole_moves_nothing_although_the_optimiser_has_momentum(policy: Policy) -> None:
    learner = Learner(policy, recipe("geometric_mask"), TrainSettings(lr=1e-2))
    assert learner.learn(sampled(policy, MIXED), version=0).skipped_updates == 0
    before, batch = parameters(policy), sampled(policy, MIXED)
    learned = learner.learn(replace(batch, logp_rollout=batch.logp_rollout - 1.0), version=1)
    assert learned.metrics["kept/token_fraction"] == 0
    assert learned.skipped_updates == 1
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_a_filter_that_leaves_fewer_groups_than_updates_still_trains(policy: Policy) -> None:
    only_one = [1.0, 0, 0, 1] + [1.0] * 8
    settings = TrainSettings(updates_per_batch=3)
    learned = Learner(policy, recipe("dapo"), settings).learn(sampled(policy, only_one), version=0)
    assert learned.metrics["train/updates"] == 1
    assert learned.skipped_updates == 2


def test_later_updates_see_the_moved_policy(policy: Policy) -> None:
    settings = TrainSettings(updates_per_batch=3, lr=5e-3)
    learned = Learner(policy, recipe("grpo"), settings).learn(sampled(policy, MIXED), version=0)
    assert learned.metrics["train/updates"] == 3
    assert learned.metrics["logratio_update/token_abs_max"] > 1e-3
    assert learned.metrics["logratio_engine/token_abs_max"] < 1e-5


def test_the_reference_stays_where_the_learner_began(policy: Policy) -> None:
    learner = Learner(policy, recipe("ppo"), TrainSettings(lr=5e-3))
    first = learner.learn(sampled(policy, MIXED), version=0)
    assert torch.equal(first.fields["logp_ref"], first.fields["logp_old"])
    assert first.metrics["rollout/kl"] == 0
    second = learner.learn(sampled(policy, MIXED), version=1)
    assert not torch.allclose(second.fields["logp_ref"], second.fields["logp_old"], atol=1e-4)


def test_the_critic_learns_the_value_and_only_where_there_is_one(policy: Policy) -> None:
    twin = copy.deepcopy(policy)
    _ = Learner(twin, recipe("grpo"), TrainSettings()).learn(sampled(twin, MIXED), version=0)
    assert torch.count_nonzero(twin.critic.weight) == 0
    learner = Learner(policy, recipe("ppo"), TrainSettings(lr=1e-9, critic_lr=5e-2))
    batch = replace(sampled(policy, MIXED), finish=torch.zeros(12, dtype=torch.int8))
    learned = [learner.learn(batch, version=0) for _ in range(25)]
    assert torch.count_nonzero(learned[0].fields["value_old"]) == 0  # a new critic says 0
    assert learned[-1].metrics["loss/value"] < 0.5 * learned[0].metrics["loss/value"]


def test_the_value_loss_leaves_the_policy_alone(policy: Policy) -> None:
    """Two critics, one policy: what the critic says moves advantages, its own error moves no feature."""
    learner = Learner(policy, recipe("ppo"), TrainSettings())
    rows = lay_out(sampled(policy, MIXED), torch.arange(12), pad_id=policy.pad_id)
    value = learner.actor(rows, with_value=True).value
    assert value is not None
    value.sum().backward()
    assert all(parameter.grad is None for parameter in policy.model.parameters())
    assert policy.critic.weight.grad is not None


def test_a_step_that_is_not_finite_is_refused_and_names_its_sequences(policy: Policy) -> None:
    stretched = recipe("reinforce", reward={"formula": "affine", "scale": 1e20})
    learner = Learner(policy, stretched, TrainSettings(lr=1e-2))
    _ = learner.learn(sampled(policy, [1e-20 * reward for reward in MIXED]), version=0)  # the optimiser has momentum
    before = parameters(policy)
    batch = sampled(policy, MIXED)
    huge = replace(batch, reward=torch.tensor([9e17, *MIXED[1:]]))  # finite, but its square in the norm is not
    learned = learner.learn(huge, version=1)
    assert learned.metrics["train/updates"] == 0
    assert learned.metrics["train/nonfinite"] == 1
    assert sorted(learned.nonfinite[0].tolist()) == list(range(12))
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_the_record_of_a_batch_holds_what_the_current_policy_said(policy: Policy) -> None:
    twin = copy.deepcopy(policy.model)
    batch = sampled(policy, MIXED)
    learned = Learner(policy, recipe("grpo"), TrainSettings()).learn(batch, version=0)
    expected = token_pass(twin, lay_out(batch, torch.arange(12), pad_id=policy.pad_id), temperature=1.0)
    torch.testing.assert_close(learned.fields["logp_current"], expected.logp.detach(), atol=1e-6, rtol=0)
    torch.testing.assert_close(learned.fields["entropy"], expected.entropy.detach(), atol=1e-5, rtol=0)
    assert learned.fields["update"].tolist() == [0] * 12

import torch

from trimtab.config.train import TrainSettings
from trimtab.rollout.collect import Collector
from trimtab.rollout.join import join
from trimtab.rollout.weights import digest
from trimtab.signal import recipe
from trimtab.train.actor import Actor
from trimtab.train.learner import Learner
from trimtab.train.policy import Policy, frozen_copy, new_critic, published
from trimtab.train.record.diagnose import Probe, diagnostics, measured_now, split_drift, staleness
from trimtab.train.setup import new_collector, task_and_policy


def sent(policy: Policy, settings: TrainSettings, *, version: int) -> Collector:
    """A sampler that holds the policy's parameters."""
    collector = new_collector(policy, settings)
    state = published(policy.model)
    collector.engine.load(state, version, digest(state))
    return collector


def move(policy: Policy) -> None:
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.05)


def test_engine_and_staleness_are_told_apart(small: TrainSettings) -> None:
    """An int4 sampler, fresh: all of the drift is the engine's. Then the parameters move: the rest is staleness."""
    _, policy = task_and_policy(small)
    learner = Learner(policy, recipe("start_async"), small)
    collector = sent(policy, small, version=0)
    probe = Probe(learner)
    probe.mark(0, published(policy.model))
    rollouts = probe.measure(collector.collect([0, 1]))
    fresh = split_drift(rollouts, learner.score(rollouts))
    assert fresh["drift/engine_abs_mean"] > 1e-4
    assert fresh["drift/staleness_abs_mean"] == 0
    move(policy)
    moved = split_drift(rollouts, learner.score(rollouts))
    assert moved["drift/engine_abs_mean"] == fresh["drift/engine_abs_mean"]
    assert moved["drift/staleness_abs_mean"] > 1e-4


def test_a_copy_remembers_the_marked_version(small: TrainSettings) -> None:
    """Groups of a sampler process arrive when the policy has already moved on."""
    _, policy = task_and_policy(small)
    learner = Learner(policy, recipe("start_async"), small)
    collector = sent(policy, small, version=0)
    probe = Probe(learner, Actor(frozen_copy(policy.model), new_critic(32), temperature=small.temperature))
    probe.mark(0, published(policy.model))
    rollouts = collector.collect([0])
    before = learner.score(rollouts)
    move(policy)
    found = probe.measure(rollouts).logp_trainer
    assert found is not None
    assert torch.equal(found, before)
    probe.mark(1, published(policy.model))
    assert probe.measure(rollouts).logp_trainer is None  # of another version


def test_only_the_groups_of_the_marked_version_are_probed(small: TrainSettings) -> None:
    _, policy = task_and_policy(small)
    learner = Learner(policy, recipe("start_async"), small)
    probe = Probe(learner)
    collector = sent(policy, small, version=0)
    old = collector.collect([0])
    state = published(policy.model)
    collector.engine.load(state, 1, digest(state))
    probe.mark(1, published(policy.model))
    both = probe.measure(join([old, collector.collect([1])]))
    assert both.logp_trainer is not None
    assert both.logp_trainer.isnan().tolist() == (both.version == 0).tolist()


def test_diagnostics_count_every_token_once(small: TrainSettings) -> None:
    _, policy = task_and_policy(small)
    collector = sent(policy, small, version=3)
    rollouts = collector.collect([0, 1, 2, 3])
    learned = Learner(policy, recipe("grpo"), small).learn(rollouts, version=5)
    found = diagnostics(rollouts, learned, 5)
    tokens = rollouts.num_tokens
    assert sum(found["ratio_histogram"]["counts"]) == tokens  # type: ignore[index]
    for name in ("drift_by_position", "drift_by_age", "staleness_histogram"):
        assert sum(entry["tokens"] for entry in found[name]) == tokens, name  # type: ignore[attr-defined]
    assert [entry["age"] for entry in found["drift_by_age"]] == [2]  # type: ignore[attr-defined]
    assert staleness(rollouts, 5) == {"staleness/mean": 2.0, "staleness/max": 2.0}
    assert torch.equal(measured_now(learned), learned.fields["logp_old"])

"""No operation of a step mixes devices, and how often a step asks a device for a number is counted.

There is no GPU here. Fake tensors say what a real one would: they have a device and no content.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from tests.train.test_learn import MIXED, sampled
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab.config.train import TrainSettings
from trimtab.rollout.join import join
from trimtab.rollout.rows import Rows, lay_out
from trimtab.signal import recipe
from trimtab.train.actor import Actor
from trimtab.train.learner import Learner
from trimtab.train.policy import Policy

OTHER = "meta"
"""Every build of torch has this device, and fake tensors on it refuse to meet those of the CPU."""


def on_fake_gpu(rows: Rows, mode: FakeTensorMode) -> Rows:
    """Rows stay on the CPU, as they come; they are fake like everything else."""
    fake = {name: mode.from_tensor(value) for name, value in vars(rows).items() if isinstance(value, torch.Tensor)}
    return Rows(**fake)


@pytest.mark.parametrize("entropy_graph", [False, True])
def test_a_pass_on_another_device_mixes_none(policy: Policy, entropy_graph: bool) -> None:
    rows = lay_out(sampled(policy, MIXED), torch.arange(12), pad_id=policy.pad_id)
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        from transformers import Qwen3ForCausalLM

        with torch.device(OTHER):
            model = Qwen3ForCausalLM(policy.model.config)
            critic = torch.nn.Linear(policy.critic.in_features, 1)
        actor = Actor(model, critic, temperature=0.7)
        with pytest.MonkeyPatch.context() as patch:  # its values decide, and a fake tensor has none
            patch.setattr("trimtab.train.logp.check_places", lambda rows: None)
            passed = actor(on_fake_gpu(rows, mode), entropy_graph=entropy_graph, with_value=True)
        assert passed.logp.device.type == passed.entropy.device.type == "cpu"
        assert passed.value is not None
        assert passed.value.device.type == "cpu"
        (passed.logp.sum() + passed.entropy.sum() + passed.value.sum()).backward()
        assert {p.grad.device.type for p in actor.parameters() if p.grad is not None} == {OTHER}


class Asked(TorchDispatchMode):
    """Counts the operations that make the host wait for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        if name in ("aten._local_scalar_dense", "aten.nonzero", "aten.is_nonzero", "aten.masked_select"):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def test_host_synchronisations_of_the_model_do_not_grow_with_its_tokens(policy: Policy) -> None:
    """What runs on the model's device asks for no number at all; the signal works on the CPU."""
    learner = Learner(policy, recipe("ppo"), TrainSettings())
    rollouts = sampled(policy, MIXED)
    few, many = (lay_out(rollouts, torch.arange(count), pad_id=policy.pad_id) for count in (2, 12))
    counts: list[Counter[str]] = []
    assert learner.actor.plain is not None  # reading the model checks it, once
    for rows in (few, many):
        with Asked() as asked:
            passed = learner.actor(rows, with_value=True)
            passed.logp.sum().backward()
        counts.append(asked.counts)
    assert counts[0] == counts[1]
    assert sum(counts[1].values()) <= 2, counts[1]


def test_fake_tensors_do_notice_a_mixture() -> None:
    with FakeTensorMode(), pytest.raises(Exception, match="at least two devices"):
        _ = torch.ones(2, device=OTHER) + torch.ones(2)


def test_host_synchronisations_of_a_whole_step_do_not_grow_with_its_tokens(policy: Policy) -> None:
    """One update in one micro-batch: passes, signal, guard and optimiser; half as many answers again ask no more.

    All of them but the gradient's norm are about flat fields, which are on the CPU wherever the model is.
    """
    learner = Learner(policy, recipe("grpo"), TrainSettings(max_tokens_per_micro_batch=10_000))
    groups = list(sampled(policy, MIXED).groups())
    counts: list[int] = []
    for number in (3, 2, 3):  # the first step makes the optimiser's state
        with Asked() as asked:
            _ = learner.learn(join(groups[:number]), version=0)
        counts.append(sum(asked.counts.values()))
    assert counts[1] == counts[2] <= 60, counts

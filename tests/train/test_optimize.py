import copy

import pytest
import torch

from trimtab.config.train import TrainSettings
from trimtab.train.optimize import Optimizer, scheduled
from trimtab.train.policy import Policy


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1.0, 1.0, 1.0, 1.0]),
        ("linear", 0, [1.0, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1.0, 0.8535533905932737, 0.5, 0.1464466094067262]),
        ("constant", 2, [1 / 3, 2 / 3, 1.0, 1.0]),
        ("linear", 2, [1 / 3, 2 / 3, 1.0, 0.5]),
    ],
)
def test_the_learning_rate_rises_then_falls(schedule: str, warmup: int, expected: list[float]) -> None:
    settings = TrainSettings(schedule=schedule, lr_warmup_steps=warmup, steps=4)  # type: ignore[arg-type]
    assert [scheduled(settings, batch) for batch in range(4)] == pytest.approx(expected)


def stepped(optimizer: Optimizer, policy: Policy, batch: int) -> None:
    optimizer.zero_grad()
    logits = policy.model(torch.tensor([[3, 4, 5]])).logits
    (logits.logsumexp(-1).sum() + policy.critic(torch.ones(1, policy.critic.in_features)).sum()).backward()
    assert optimizer.step(1.0, batch).taken


def test_a_restored_optimizer_goes_on_bit_for_bit(policy: Policy) -> None:
    settings = TrainSettings(weight_decay=0.1, schedule="linear", steps=8)
    optimizer = Optimizer(policy, settings, with_critic=True)
    for batch in range(3):
        stepped(optimizer, policy, batch)
    twin = copy.deepcopy(policy)
    again = Optimizer(twin, settings, with_critic=True)
    again.restore({name: tensor.clone() for name, tensor in optimizer.state().items()})
    for batch in range(3, 6):
        stepped(optimizer, policy, batch)
        stepped(again, twin, batch)
    for one, other in zip(policy.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(policy.critic.weight, twin.critic.weight)

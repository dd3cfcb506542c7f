"""A policy with random parameters, small enough for every test, peaked enough that the numbers say something."""

import pytest
import torch

from trimtab.config.train import ModelSettings
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.weights import digest
from trimtab.train.policy import Policy, frozen_copy, new_policy, published


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two threads on a busy machine are slower than one, and one gives equal numbers for equal seeds."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def policy() -> Policy:
    settings = ModelSettings(hidden_size=32, num_layers=2, num_heads=2, mlp_size=64)
    built = new_policy(settings, "0123456789=", seed=0)
    with torch.no_grad():  # initial values give nearly uniform logits; sharpen them
        built.model.get_output_embeddings().weight.mul_(20)
    return built


@pytest.fixture
def engine(policy: Policy) -> Embedded:
    built = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=policy.eos_ids)
    state = published(policy.model)
    built.load(state, 0, digest(state))
    return built

"""Small real runs, shared by the tests that look at what a run leaves behind."""

from pathlib import Path

import pytest
import torch

from trimtab.config.train import ModelSettings
from trimtab.rollout.task import TASKS, Reverse
from trimtab.train import TrainSettings, train
from trimtab.train.policy import Policy, new_policy
from trimtab.train.progress import Silent
from trimtab.train.record import Summary

SMALL = TrainSettings(
    model=ModelSettings(hidden_size=32, num_layers=1, num_heads=2, mlp_size=64),
    warm_start_steps=4,
    steps=3,
    prompts_per_step=4,
    samples_per_prompt=4,
    eval_every=2,
    eval_prompts=16,
    early_stop="never",
)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two threads on a busy machine are slower than one, and one gives equal numbers for equal seeds."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small() -> TrainSettings:
    return SMALL


@pytest.fixture(scope="session")
def ppo_run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """PPO with a reference and a critic, two updates a batch, batches dumped; on two digits, so that rewards come."""
    changed = {
        "task": "short",
        "dump_batches": True,
        "updates_per_batch": 2,
        "temperature": 0.8,
        "lr": 5e-3,
        "warm_start_steps": 40,
        "warm_start_lr": 1e-2,
        "eval_prompts": 5,
    }
    folder: Path = tmp_path_factory.mktemp("ppo") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "short", Reverse(num_digits=2))
        return train(SMALL.model_copy(update={**changed, "run_dir": folder}), "ppo", progress=Silent())


@pytest.fixture
def policy() -> Policy:
    built = new_policy(SMALL.model, "0123456789=", seed=0)
    with torch.no_grad():  # initial values give nearly uniform logits; sharpen them
        built.model.get_output_embeddings().weight.mul_(20)
    return built

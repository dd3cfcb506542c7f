"""Small real runs, shared by the tests that look at what a run leaves behind."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.config.train import EngineSettings, ModelSettings, TaskSettings
from trimtab.rollout.weights import digest
from trimtab.train import TrainSettings, train
from trimtab.train.policy import Policy, new_policy
from trimtab.train.record.record import Summary
from trimtab.train.show.progress import Silent
from trimtab.train.warmstart import warm_start

SMALL = TrainSettings(
    task=TaskSettings(name="reverse", size=2),
    model=ModelSettings(hidden_size=32, num_layers=1, num_heads=2, mlp_size=64),
    engine=EngineSettings(format="int4"),
    runtime="inline",
    staleness=2,
    warm_start_steps=16,
    warm_start_lr=1e-2,
    steps=5,
    prompts_per_step=4,
    samples_per_prompt=4,
    max_new_tokens=4,
    lr=2e-3,
    eval_every=2,
    eval_prompts=5,
    checkpoint_every=2,
    early_stop="never",
)
"""Warm enough that rewards come and go, so that every step moves the parameters."""


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def is_timeless(key: str) -> bool:
    return not key.startswith("time/") and key != "publish/lag_seconds"


def timeless(folder: Path) -> list[dict[str, Any]]:
    """Every metric that does not depend on the clock."""
    return [{key: value for key, value in line.items() if is_timeless(key)} for line in lines(folder)]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two threads on a busy machine are slower than one, and one gives equal numbers for equal seeds."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def warmed() -> Iterator[None]:
    """Most of a small run is its warm start, and most runs have the same: it is computed once, to the same bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trimtab.train.opening.warm_start", RememberedWarmStart())
        yield


@pytest.fixture
def warmed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that a remembered warm start would answer before they ask."""
    monkeypatch.setattr("trimtab.train.opening.warm_start", warm_start)


class RememberedWarmStart:
    """A warm start by all that goes into it: the parameters before, and every setting that it reads."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[float, dict[str, torch.Tensor]]] = {}

    def __call__(
        self, policy: Policy, settings: TrainSettings, *, stopped: Callable[[], bool], say: Callable[[str], None]
    ) -> float:
        model = policy.model
        read = {"task", "seed", "warm_start_steps", "warm_start_lr", "max_tokens_per_micro_batch"}
        rewards = {"reward", "reward_seconds", "reward_workers"}  # a right answer is not judged
        key = (digest(model.state_dict()), settings.model_dump_json(include=read, exclude={"task": rewards}))
        if stopped():
            return warm_start(policy, settings, stopped=stopped, say=say)
        if key not in self._known:
            loss = warm_start(policy, settings, stopped=stopped, say=say)
            if stopped():
                return loss
            self._known[key] = loss, {name: value.clone() for name, value in model.state_dict().items()}
        loss, state = self._known[key]
        model.load_state_dict(state)
        return loss


def blank_page(folder: Path) -> Path:
    page = folder / "report.html"
    _ = page.write_text("")
    return page


@pytest.fixture(scope="module")
def undrawn() -> Iterator[None]:
    """Runs whose page nobody looks at: drawing it takes longer than they do. test_loop and the commands draw theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trimtab.report.write_report", blank_page)
        yield


@pytest.fixture
def undrawn_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for one test."""
    monkeypatch.setattr("trimtab.report.write_report", blank_page)


@pytest.fixture(scope="session")
def small() -> TrainSettings:
    return SMALL


@pytest.fixture(scope="session")
def ppo_run(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """PPO with a reference and a critic, two updates per batch, a stale int4 sampler, batches dumped."""
    changed = {"dump_batches": True, "updates_per_batch": 2, "temperature": 0.8, "eval_samples": 3}
    folder: Path = tmp_path_factory.mktemp("ppo") / "run"
    return train(SMALL.model_copy(update={**changed, "run_dir": folder}), "ppo", progress=Silent())


@pytest.fixture
def policy() -> Policy:
    built = new_policy(SMALL.model, "0123456789=", seed=0)
    with torch.no_grad():  # initial values give nearly uniform logits; sharpen them
        built.model.get_output_embeddings().weight.mul_(20)
    return built

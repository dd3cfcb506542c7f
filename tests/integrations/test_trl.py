"""TRL's GRPOTrainer, watched: what the watch finds, where it is silent, and that it changes nothing."""

import contextlib
import importlib.util
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("trl") is None:
    pytest.skip("needs TRL: make test-integrations", allow_module_level=True)

import torch
from tests.integrations import faults
from tests.integrations.trl_run import problems, rollout, trainer

from trimtab.errors import AdapterError
from trimtab.integrations import trl
from trimtab.report import write_report

pytestmark = pytest.mark.integrations


def watched(make: Callable[..., Any], folder: Path, *, every: int = 20, **given: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        made = make(folder, **given)
        watch = trl.attach(made, every=every)
        made.train()
    assert watch.failures == []
    return watch


@pytest.mark.parametrize("fault", faults.FAULTS)
def test_a_planted_fault_is_named_within_20_steps(fault: str, tmp_path: Path):
    make, given, names = faults.FAULTS[fault]
    found = watched(make, tmp_path, steps=20, **given).findings
    assert {one.name for one in found} & set(names), found


@pytest.mark.parametrize("run", faults.HEALTHY)
def test_a_healthy_run_has_no_finding(run: str, tmp_path: Path):
    watch = watched(trainer, tmp_path, every=1, steps=20, **faults.HEALTHY[run])
    assert watch.findings == []
    assert watch.watched == 20


@pytest.mark.slow
@pytest.mark.parametrize("fault", faults.VARIANTS)
def test_other_forms_of_the_faults_are_named(fault: str, tmp_path: Path):
    make, given, names = faults.VARIANTS[fault]
    found = watched(make, tmp_path, steps=20, **given).findings
    assert {one.name for one in found} & set(names), found


@pytest.mark.slow
@pytest.mark.parametrize("run", faults.MORE_HEALTHY)
def test_more_healthy_runs_have_no_finding(run: str, tmp_path: Path):
    assert watched(trainer, tmp_path, every=1, steps=20, **faults.MORE_HEALTHY[run]).findings == []


def losses_and_gradients(folder: Path, *, is_watched: bool) -> tuple[list[Any], list[Any]]:
    made = trainer(
        folder, steps=4, rollout_func=rollout(noise=0.02), num_iterations=2, gradient_accumulation_steps=2,
        per_device_train_batch_size=16, beta=0.04, seed=3,
    )  # fmt: skip
    if is_watched:
        trl.attach(made)
    inner, seen, gradients = made.training_step, list[Any](), list[Any]()

    def step(*given: Any, **named: Any) -> Any:
        loss = inner(*given, **named)
        seen.append(loss.clone())
        gradients.append([one.grad.clone() for one in made.model.parameters() if one.grad is not None])
        return loss

    made.training_step = step
    with contextlib.redirect_stdout(io.StringIO()):
        made.train()
    return seen, gradients


def test_loss_and_gradient_are_bit_equal_with_and_without(tmp_path: Path):
    (loss, gradient), (bare_loss, bare_gradient) = (
        losses_and_gradients(tmp_path / str(is_watched), is_watched=is_watched) for is_watched in (True, False)
    )
    assert len(loss) == 8
    assert all(torch.equal(a, b) for a, b in zip(loss, bare_loss, strict=True))
    for ours, bare in zip(gradient, bare_gradient, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, bare, strict=True))


def test_evaluation_is_not_watched_and_metrics_reach_the_logger(tmp_path: Path):
    made = trainer(
        tmp_path, steps=4, eval_dataset=problems(16, 9), eval_strategy="steps", eval_steps=2,
        per_device_eval_batch_size=16, logging_steps=1,
    )  # fmt: skip
    watch = trl.attach(made)
    with contextlib.redirect_stdout(io.StringIO()):
        made.train()
    lines = [json.loads(line) for line in (watch.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert all(line["watch/sequences"] == 32 for line in lines)
    logged = [name for line in made.state.log_history for name in line]
    assert "trimtab/ess_update/token" in logged
    assert not any(name.startswith("eval_trimtab") for name in logged)
    assert "What did the watch find?" in write_report(watch.folder).read_text()


def test_tool_tokens_are_left_out(tmp_path: Path):
    """A rollout function that marks tokens of an environment: they are in no count."""
    inner, masked = rollout(), list[int]()

    def run(prompts: list[str], held: Any) -> dict[str, Any]:
        out = inner(prompts, held)
        out["env_mask"] = [[0 if place == 1 else 1 for place in range(len(ids))] for ids in out["completion_ids"]]
        masked.append(sum(sum(row) for row in out["env_mask"]))
        return out

    watch = watched(trainer, tmp_path, every=1, steps=2, rollout_func=run)
    lines = [json.loads(line) for line in (watch.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["watch/tokens"] for line in lines] == masked
    assert watch.findings == []


def test_a_watch_that_fails_does_not_stop_the_run(tmp_path: Path):
    made = trainer(tmp_path, steps=2)
    watch = trl.attach(made)
    made.num_generations = 8
    made.reward_weights = None  # ours reads it after TRL has
    inner = made._calculate_rewards
    made._calculate_rewards = lambda *a, **k: inner(*a, **k)
    weights = torch.ones(1)

    class Breaks:
        def to(self, _: Any) -> Any:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked % 3 == 0:
                raise RuntimeError("planted")
            return weights

    made.reward_weights = Breaks()
    with contextlib.redirect_stdout(io.StringIO()):
        made.train()
    assert made.state.global_step == 2
    assert "planted" in watch.failures[0]


def test_attach_twice_is_refused(tmp_path: Path):
    made = trainer(tmp_path, steps=1)
    trl.attach(made)
    with pytest.raises(AdapterError, match="watched already"):
        trl.attach(made)


def test_attach_to_something_else_is_refused():
    with pytest.raises(AdapterError, match="has no _calculate_rewards"):
        trl.attach(object())

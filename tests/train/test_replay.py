import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import ConfigError
from trimtab.signal import recipe
from trimtab.train.record.record import Summary
from trimtab.train.record.replay import read_dump, replay


@pytest.mark.parametrize("step", range(5))
def test_a_recorded_step_comes_out_bit_for_bit(ppo_run: Summary, step: int) -> None:
    again = replay(read_dump(ppo_run.run_dir, step), recipe("ppo"), updates_per_batch=2)
    assert again.differences == {}
    logged = json.loads((ppo_run.run_dir / "metrics.jsonl").read_text().splitlines()[step])
    compared = [name for name in again.metrics if logged.get(name) is not None]
    assert len(compared) > 40
    assert all(logged[name] == again.metrics[name] for name in compared)


def test_a_changed_batch_is_noticed(ppo_run: Summary) -> None:
    dump = read_dump(ppo_run.run_dir, 2)
    reward = dump.rollouts.reward.clone()
    reward[0] += 1
    again = replay(replace(dump, rollouts=replace(dump.rollouts, reward=reward)), recipe("ppo"), updates_per_batch=2)
    assert "train/loss" in again.differences


def test_another_recipe_on_the_same_batch(ppo_run: Summary) -> None:
    again = replay(read_dump(ppo_run.run_dir, 4), recipe("cispo"), updates_per_batch=2)
    assert "train/loss" in again.differences
    assert "loss/policy" in again.metrics


def test_a_recipe_that_needs_more_than_was_recorded_is_refused(ppo_run: Summary) -> None:
    dump = read_dump(ppo_run.run_dir, 0)
    poorer = replace(dump, fields={name: field for name, field in dump.fields.items() if name != "logp_ref"})
    with pytest.raises(ConfigError, match=r"recipe 'grpo' needs logp_ref, which the run's own recipe did not"):
        _ = replay(poorer, recipe("grpo"), updates_per_batch=2)


def test_a_step_that_was_not_dumped_names_those_that_were(ppo_run: Summary, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no batch of step 99 \(it holds steps 0000, 0001"):
        _ = read_dump(ppo_run.run_dir, 99)
    with pytest.raises(ConfigError, match=r"train.dump_batches=true"):
        _ = read_dump(tmp_path, 0)


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(b"no tensors"), lambda path: path.with_suffix(".json").write_text("{}"),
])  # fmt: skip
def test_a_damaged_dump_is_one_sentence(damage: Any, ppo_run: Summary, tmp_path: Path) -> None:
    _ = shutil.copytree(ppo_run.run_dir / "batches", tmp_path / "batches")
    damage(tmp_path / "batches" / "step_0001.safetensors")
    with pytest.raises(ConfigError, match=r"step_0001.safetensors or the JSON beside it is damaged"):
        _ = read_dump(tmp_path, 1)

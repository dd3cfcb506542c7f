"""A tiny model whose tokenizer knows few characters, so that a policy without any training ends its turns."""

import os
import sys
from pathlib import Path

import pytest
import torch

from trimtab.config.train import ModelSettings, TaskSettings
from trimtab.train import TrainSettings
from trimtab.train.policy import new_policy, save

HERE = Path(__file__).parent
ALPHABET = "0123456789 ?\n:userastinmogd"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    sizes = ModelSettings(hidden_size=32, num_layers=1, num_heads=2, mlp_size=64)
    save(new_policy(sizes, ALPHABET, seed=0), folder)
    return folder


@pytest.fixture
def beside_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs start in this folder, so that tasks and environments are found there, in child processes too."""
    monkeypatch.chdir(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr("trimtab.report.write_report", lambda folder: folder / "report.html")
    _ = sys.modules.pop("digit_tasks", None)


def settings(model: Path, folder: Path, task: TaskSettings, **changed: object) -> TrainSettings:
    return TrainSettings(
        task=task,
        model=ModelSettings(path=model),
        run_dir=folder,
        **{
            "steps": 20,
            "warm_start_steps": 0,
            "max_new_tokens": 12,
            "prompts_per_step": 4,
            "samples_per_prompt": 4,
            "lr": 1e-2,
            "eval_every": 100,
            "eval_prompts": 4,
            "dump_batches": True,
            "early_stop": "never",
            **changed,
        },
    )

import json
import os
import random
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trimtab.errors import ConfigError, MissingExtra, SignalError
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.seed import stream_seed
from trimtab.rollout.task import TASKS, Problem, Reverse, draw
from trimtab.train import EarlyStop, TrainSettings, train
from trimtab.train.evaluate import evaluate
from trimtab.train.policy import load, published
from trimtab.train.progress import Silent
from trimtab.train.record import Summary


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def timeless(folder: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in lines(folder)]


def test_equal_seeds_give_equal_metrics_and_others_do_not(small: TrainSettings, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, (3, 3, 4), strict=True):
        _ = train(small.model_copy(update={"seed": seed, "run_dir": folder}))
    first, again, other = map(timeless, folders)
    assert len(first) == 3
    assert first == again
    assert first != other
    assert load_file(folders[0] / "model" / "model.safetensors").keys()
    for name, tensor in load_file(folders[0] / "model" / "model.safetensors").items():
        assert torch.equal(tensor, load_file(folders[1] / "model" / "model.safetensors")[name])


def test_the_run_folder_holds_what_it_promises(ppo_run: Summary) -> None:
    folder = ppo_run.run_dir
    assert sorted(path.name for path in folder.iterdir()) == [
        "batches", "config.json", "manifest.json", "metrics.jsonl", "model", "report.html", "samples.jsonl",
        "summary.json",
    ]  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == ppo_run.to_json()
    for key in ("held_out_accuracy", "seconds", "tokens_per_second", "warnings", "steps", "seed"):
        assert key in summary
    assert (summary["steps"], summary["seed"], summary["outcome"]) == (3, 0, "finished")
    config = json.loads((folder / "config.json").read_text())
    assert (config["temperature"], config["lr"], config["recipe"]["name"]) == (0.8, 5e-3, "ppo")
    assert "policy_loss.clipped" in [part["formula"] for part in config["recipe"]["parts"]]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["dtype_pair"] == {"trainer": "float32", "engine": "float32"}


def test_one_line_a_step_with_evaluations_in_between(ppo_run: Summary) -> None:
    metrics = lines(ppo_run.run_dir)
    assert [line["step"] for line in metrics] == [0, 1, 2]
    assert [line["version"] for line in metrics] == [0, 1, 2]
    assert ["eval/accuracy" in line for line in metrics] == [True, False, True]
    for line in metrics:
        assert {"rollout/reward_mean", "rollout/kl", "train/grad_norm", "entropy/token_mean"} <= line.keys()
    assert sum(line["rollout/tokens"] for line in metrics) == ppo_run.tokens


def test_the_logged_kl_is_the_raw_one(ppo_run: Summary) -> None:
    """Reward shaping reads the KL; were it to write into it, the log would show the shaped numbers."""
    logged = [line["rollout/kl"] for line in lines(ppo_run.run_dir)]
    for step, kl in enumerate(logged):
        batch = load_file(ppo_run.run_dir / "batches" / f"step_{step:04d}.safetensors")
        fresh = (batch["logp_old"].double() - batch["logp_ref"].double()).mean()
        assert kl == pytest.approx(float(fresh), abs=1e-7)
    assert max(abs(kl) for kl in logged) > 1e-3


def test_a_dumped_batch_is_what_the_step_saw(ppo_run: Summary) -> None:
    for step, line in enumerate(lines(ppo_run.run_dir)):
        batch = load_file(ppo_run.run_dir / "batches" / f"step_{step:04d}.safetensors")
        assert int(batch["token_counts"].sum()) == len(batch["logp_rollout"]) == line["rollout/tokens"]
        assert len(batch["value"]) == len(batch["logp_old"]) == len(batch["logp_ref"]) == line["rollout/tokens"]
        assert float(batch["reward"].mean()) == line["rollout/reward_mean"]
        assert batch["version"].unique().tolist() == [step]
        gap = (batch["logp_old"].double() - batch["logp_rollout"].double()).abs()
        assert float(gap.max()) < 1e-5
        assert line["logratio_engine/token_abs_mean"] == pytest.approx(float(gap.mean()), abs=1e-9)


def test_the_saved_policy_is_the_one_that_was_measured(ppo_run: Summary) -> None:
    policy = load(ppo_run.run_dir / "model")
    engine = Embedded(load(ppo_run.run_dir / "model").model, pad_id=policy.pad_id, eos_id=policy.eos_id)
    engine.load(published(policy.model), 0)
    for shown in (line for line in lines(ppo_run.run_dir, "samples.jsonl") if line["step"] == ppo_run.steps):
        asked = Problem(shown["prompt"], shown["prompt"][-2::-1])
        written = evaluate(engine, policy, Reverse(2), [asked], max_new_tokens=8).answers[0]
        assert (written.text, written.is_right) == (shown["answer"], shown["is_right"])
    problems = draw(Reverse(2), random.Random(stream_seed("held out", "test")), 5, "test")
    measured = evaluate(engine, policy, Reverse(2), problems, max_new_tokens=8)
    assert measured.accuracy == ppo_run.held_out_accuracy


class InterruptAt(Silent):
    """Presses Ctrl-C, for real, after the given step."""

    def __init__(self, step: int) -> None:
        self._at = step

    def step(self, line: Mapping[str, object]) -> None:
        if line["step"] == self._at:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_finishes_with_what_there_is(small: TrainSettings, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    settings = small.model_copy(update={"steps": 50, "run_dir": tmp_path / "run"})
    summary = train(settings, progress=InterruptAt(1))
    assert (summary.outcome, summary.steps) == ("interrupted", 2)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "interrupted"
    assert len(lines(tmp_path / "run")) == 2
    assert "interrupted" in (tmp_path / "run" / "report.html").read_text()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_warm_start_still_leaves_a_summary(small: TrainSettings, tmp_path: Path) -> None:
    class AtOnce(Silent):
        def stage(self, text: str) -> None:
            if text.startswith("warm start"):
                os.kill(os.getpid(), signal.SIGINT)

    summary = train(small.model_copy(update={"run_dir": tmp_path / "run"}), progress=AtOnce())
    assert (summary.outcome, summary.steps, summary.tokens) == ("interrupted", 0, 0)
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_second_ctrl_c_ends_it_at_once(small: TrainSettings, tmp_path: Path) -> None:
    class Twice(InterruptAt):
        def stage(self, text: str) -> None:
            if text.startswith("measuring"):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        _ = train(small.model_copy(update={"run_dir": tmp_path / "run"}), progress=Twice(0))


def test_it_stops_early_when_two_evaluations_in_a_row_are_good_enough(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASKS, "short", Reverse(num_digits=2))
    changed = {
        "task": "short",
        "warm_start_steps": 80,
        "warm_start_lr": 1e-2,
        "eval_prompts": 5,
        "early_stop": EarlyStop(accuracy=0.4, evaluations=2),
        "run_dir": tmp_path / "run",
        "steps": 9,
    }
    summary = train(small.model_copy(update=changed))
    assert (summary.outcome, summary.steps) == ("early_stop", 2)
    assert summary.validation_accuracy >= 0.4
    assert len(lines(tmp_path / "run")) == 2


def test_threads_are_given_back(small: TrainSettings, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _ = train(small.model_copy(update={"run_dir": tmp_path / "run", "steps": 1}))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_quiet_prints_one_line(small: TrainSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _ = train(small.model_copy(update={"run_dir": tmp_path / "run", "steps": 1}), quiet=True)
    out, err = capsys.readouterr()
    assert err == ""
    assert len(out.splitlines()) == 1
    assert out.startswith("held-out accuracy 0.")
    assert str(tmp_path / "run") in out


def test_plain_lines_tell_the_course(small: TrainSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _ = train(small.model_copy(update={"run_dir": tmp_path / "run"}))
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in out if line.startswith("step")] == ["0", "2"]
    assert out[-1] == f"report  {tmp_path / 'run' / 'report.html'}"


def test_a_run_does_not_write_over_another(ppo_run: Summary, small: TrainSettings) -> None:
    kept = (ppo_run.run_dir / "summary.json").read_text()
    with pytest.raises(ConfigError, match="already holds"):
        _ = train(small.model_copy(update={"run_dir": ppo_run.run_dir}))
    assert (ppo_run.run_dir / "summary.json").read_text() == kept


def test_unknown_names_are_refused_before_anything_is_written(small: TrainSettings, tmp_path: Path) -> None:
    with pytest.raises(SignalError, match="did you mean 'grpo'"):
        _ = train(small.model_copy(update={"run_dir": tmp_path / "run"}), "grpoo")
    with pytest.raises(ConfigError, match="did you mean 'reverse'"):
        _ = train(small.model_copy(update={"task": "reversed", "run_dir": tmp_path / "run"}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("package", ["transformers", "matplotlib"])
def test_a_missing_extra_is_one_sentence(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as missing:
        _ = train()
    assert str(missing.value) == f'trimtab train needs {package}: pip install "trimtab[train]"'

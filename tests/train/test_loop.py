import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.train.conftest import lines, timeless

from trimtab.config.train import EngineSettings, TaskSettings
from trimtab.errors import ConfigError, MissingExtra, SignalError
from trimtab.report import figure
from trimtab.rollout.weights import digest
from trimtab.signal import recipe
from trimtab.train import EarlyStop, TrainSettings, train
from trimtab.train.evaluate import evaluate
from trimtab.train.policy import load, published
from trimtab.train.record.record import Summary
from trimtab.train.setup import new_collector, new_engine
from trimtab.train.show.progress import Silent


@pytest.mark.usefixtures("undrawn_here", "warmed_anew")
def test_equal_seeds_give_equal_metrics_and_others_do_not(small: TrainSettings, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, (3, 3, 4), strict=True):
        _ = train(small.model_copy(update={"seed": seed, "run_dir": folder}), progress=Silent())
    first, again, other = map(timeless, folders)
    assert len(first) == 6  # five steps and the last evaluation
    assert first == again
    assert first != other
    models = [load_file(folder / "model" / "model.safetensors") for folder in folders]
    assert all(torch.equal(tensor, models[1][name]) for name, tensor in models[0].items())
    assert any(not torch.equal(tensor, models[2][name]) for name, tensor in models[0].items())


def test_the_run_folder_holds_what_it_promises(ppo_run: Summary) -> None:
    folder = ppo_run.run_dir
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "batches", "best", "checkpoints", "config.json", "diagnostics.jsonl", "manifest.json",
        "metrics.jsonl", "model", "report.html", "samples.jsonl", "summary.json", "transcripts.jsonl",
    ]  # fmt: skip
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == json.loads(json.dumps(ppo_run.to_json()))
    assert (summary["steps"], summary["seed"], summary["outcome"]) == (5, 0, "finished")
    assert summary["reward_status"] == {"ok": 80}
    assert summary["signal"].startswith("fast; fused: policy_loss.clipped")
    assert summary["staleness"] == {"mean": pytest.approx(1.4, abs=0.3), "max": 2.0}
    assert 0 <= summary["avg_at_k"] <= summary["pass_at_k"] <= 1
    config = json.loads((folder / "config.json").read_text())
    assert (config["temperature"], config["lr"], config["recipe"]["name"]) == (0.8, 2e-3, "ppo")
    assert "policy_loss.clipped" in [part["formula"] for part in config["recipe"]["parts"]]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["dtype_pair"] == {"trainer": "float32", "engine": "int4"}


def test_one_line_a_step_with_evaluations_in_between(ppo_run: Summary) -> None:
    metrics = lines(ppo_run.run_dir)
    assert [line["step"] for line in metrics] == [line["version"] for line in metrics] == [0, 1, 2, 3, 4, 5]
    assert ["eval/accuracy" in line for line in metrics] == [True, False, True, False, True, True]
    for line in metrics[:-1]:
        assert {"rollout/reward_mean", "rollout/kl", "train/grad_norm", "entropy/token_mean"} <= line.keys()
    assert sum(line["rollout/tokens"] for line in metrics[:-1]) == ppo_run.tokens


def test_every_batch_is_exactly_as_stale_as_it_may_be(ppo_run: Summary) -> None:
    """Staleness 2: the first three batches were sampled before the first step, the others two updates before theirs."""
    for step, version in enumerate([0, 0, 0, 1, 2]):
        batch = load_file(ppo_run.run_dir / "batches" / f"step_{step:04d}.safetensors")
        assert batch["version"].unique().tolist() == [version]


def test_the_logged_kl_is_the_raw_one(ppo_run: Summary) -> None:
    """Reward shaping reads the KL; were it to write into it, the log would show the shaped numbers."""
    logged = [line["rollout/kl"] for line in lines(ppo_run.run_dir)[:-1]]
    for step, kl in enumerate(logged):
        batch = load_file(ppo_run.run_dir / "batches" / f"step_{step:04d}.safetensors")
        fresh = (batch["logp_old"].double() - batch["logp_ref"].double()).mean()
        assert kl == pytest.approx(float(fresh), abs=1e-7)
    assert max(abs(kl) for kl in logged) > 1e-3


def test_a_dumped_batch_is_what_the_step_saw(ppo_run: Summary) -> None:
    for step, line in enumerate(lines(ppo_run.run_dir)[:-1]):
        batch = load_file(ppo_run.run_dir / "batches" / f"step_{step:04d}.safetensors")
        assert int(batch["trainable"].sum()) == len(batch["logp_rollout"]) == line["rollout/tokens"]
        assert len(batch["value_old"]) == len(batch["logp_old"]) == len(batch["logp_ref"]) == line["rollout/tokens"]
        assert float(batch["reward"].mean()) == line["rollout/reward_mean"]
        gap = (batch["logp_old"].double() - batch["logp_rollout"].double()).abs()
        assert line["logratio_engine/token_abs_mean"] == pytest.approx(float(gap.mean()), rel=1e-6)
        assert line["logratio_engine/token_abs_mean"] > 1e-3  # int4, and stale


def test_the_saved_policy_is_the_one_that_was_measured(ppo_run: Summary, small: TrainSettings) -> None:
    policy = load(ppo_run.run_dir / "model")
    judge = new_collector(policy, small, engine=new_engine(policy, small, exact=True))
    state = published(policy.model)
    judge.engine.load(state, 0, digest(state))
    shown = {line["prompt"]: line for line in lines(ppo_run.run_dir, "samples.jsonl") if line["step"] == 5}
    problems = [problem for problem in judge.task.held_out("validation", 5) if problem.text in shown]
    assert len(problems) == len(shown) > 0
    for written in evaluate(judge, problems, max_new_tokens=4).answers:
        line = shown[written.problem.text]
        assert (written.text, written.is_right) == (line["answer"], line["is_right"])
    assert evaluate(judge, judge.task.held_out("test", 5), max_new_tokens=4).accuracy == ppo_run.held_out_accuracy


def test_the_saved_folder_is_reloaded_by_plain_transformers(ppo_run: Summary) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ppo_run.run_dir / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(tensor, model.state_dict()[name])
    ids = tokenizer("58=", return_tensors="pt", add_special_tokens=False).input_ids
    assert tokenizer.decode(model.generate(ids, max_new_tokens=2, do_sample=False)[0]).startswith("58=")


class InterruptAt(Silent):
    """Presses Ctrl-C, for real, after the given step."""

    def __init__(self, step: int) -> None:
        self._at = step

    def step(self, line: Mapping[str, object]) -> None:
        if line["step"] == self._at:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_finishes_with_what_there_is(
    small: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "drawn", lambda *_, **__: "")
    before = signal.getsignal(signal.SIGINT)
    settings = small.model_copy(update={"steps": 50, "run_dir": tmp_path / "run"})
    summary = train(settings, progress=InterruptAt(1))
    assert (summary.outcome, summary.steps) == ("interrupted", 2)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["outcome"] == "interrupted"
    assert len(lines(tmp_path / "run")) == 3
    assert "interrupted" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "checkpoints" / "step_000002").is_dir()
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_the_warm_start_still_leaves_a_summary(small: TrainSettings, tmp_path: Path) -> None:
    class AtOnce(Silent):
        def stage(self, text: str) -> None:
            if text.startswith("warm start"):
                os.kill(os.getpid(), signal.SIGINT)

    summary = train(small.model_copy(update={"run_dir": tmp_path / "run"}), progress=AtOnce())
    assert (summary.outcome, summary.steps, summary.tokens) == ("interrupted", 0, 0)
    assert (tmp_path / "run" / "report.html").is_file()
    assert not (tmp_path / "run" / "checkpoints").exists()  # half a warm start is nothing to go on from


@pytest.mark.usefixtures("undrawn_here")
def test_a_second_ctrl_c_ends_it_at_once(small: TrainSettings, tmp_path: Path) -> None:
    class Twice(InterruptAt):
        def stage(self, text: str) -> None:
            if text.startswith("measuring"):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        _ = train(small.model_copy(update={"run_dir": tmp_path / "run"}), progress=Twice(0))


@pytest.mark.usefixtures("undrawn_here")
def test_it_stops_early_when_it_is_good_enough(small: TrainSettings, tmp_path: Path) -> None:
    changed = {"early_stop": EarlyStop(accuracy=0.2, evaluations=2), "run_dir": tmp_path / "run", "steps": 9}
    summary = train(small.model_copy(update=changed), progress=Silent())
    assert (summary.outcome, summary.steps) == ("early_stop", 2)
    assert summary.validation_accuracy >= 0.2
    assert [line["step"] for line in lines(tmp_path / "run")] == [0, 1, 2]


@pytest.mark.usefixtures("undrawn_here")
def test_the_best_policy_is_kept_apart_from_the_last(small: TrainSettings, tmp_path: Path) -> None:
    """A learning rate that destroys the policy: the best evaluation is the first, and best/ still answers like it."""
    settings = small.model_copy(update={"lr": 0.5, "run_dir": tmp_path / "run", "warm_start_steps": 18})
    summary = train(settings, progress=Silent())
    assert summary.best_accuracy > summary.validation_accuracy
    policy = load(tmp_path / "run" / "best")
    judge = new_collector(policy, settings, engine=new_engine(policy, settings, exact=True))
    state = published(policy.model)
    judge.engine.load(state, 0, digest(state))
    found = evaluate(judge, judge.task.held_out("validation", 5), max_new_tokens=4)
    assert found.accuracy == summary.best_accuracy


@pytest.mark.usefixtures("undrawn_here")
def test_time_is_up_between_steps_and_can_be_resumed(small: TrainSettings, tmp_path: Path) -> None:
    settings = small.model_copy(update={"max_minutes": 1e-9, "run_dir": tmp_path / "run"})
    summary = train(settings, progress=Silent())
    assert (summary.outcome, summary.steps) == ("time_limit", 0)
    assert (tmp_path / "run" / "checkpoints" / "step_000000").is_dir()


@pytest.mark.usefixtures("undrawn_here")
def test_steps_that_are_not_finite_stop_the_run_with_what_is_needed(small: TrainSettings, tmp_path: Path) -> None:
    settings = small.model_copy(
        update={
            "run_dir": tmp_path / "run",
            "nonfinite_limit": 2,
            "task": TaskSettings(name="reverse", size=2, reward=f"{Path(__file__).parent}/rewards.py:enormous"),
        }
    )
    with pytest.raises(SignalError, match=r"not finite in 2 optimiser steps in a row.*/nonfinite;"):
        _ = train(settings, recipe("reinforce", reward={"formula": "affine", "scale": 1e20}), progress=Silent())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["outcome"], summary["nonfinite"], summary["steps"]) == ("nonfinite", 2, 2)
    recorded = load_file(tmp_path / "run" / "nonfinite" / "step_0001.safetensors")
    assert len(recorded["reward"]) == 16
    start = load_file(tmp_path / "run" / "checkpoints" / "step_000000" / "model.safetensors")
    end = load_file(tmp_path / "run" / "model" / "model.safetensors")
    assert all(torch.equal(tensor, end[name]) for name, tensor in start.items())  # no such step was taken


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_here")
def test_a_reward_that_goes_wrong_in_every_way_costs_its_answers_and_not_the_run(
    small: TrainSettings, tmp_path: Path
) -> None:
    """Endless loop, crash, exception, nan, abstention, a fork that stays behind, a flood of output."""
    reward = f"{Path(__file__).parent}/rewards.py:everything_wrong"
    task = TaskSettings(name="reverse", size=2, reward=reward, reward_seconds=0.3, reward_workers=2)
    changed = {"task": task, "run_dir": tmp_path / "run", "steps": 3, "prompts_per_step": 8, "samples_per_prompt": 2}
    changed |= {"staleness": 0, "eval_every": 3, "eval_prompts": 2}
    summary = train(small.model_copy(update=changed), "start_on_policy", progress=Silent())
    assert summary.steps == 3
    assert sum(summary.reward_status.values()) == 48
    assert all(summary.reward_status.get(status, 0) > 0 for status in ("ok", "error", "timeout", "abstain"))
    for step, line in enumerate(lines(tmp_path / "run")[:3]):
        assert sum(line[f"reward/{status}"] for status in ("ok", "error", "timeout", "abstain")) == 16, step
    told = [line for line in lines(tmp_path / "run", "transcripts.jsonl") if line["status"] != "ok"]
    assert all(line["reward"] is None for line in told)


@pytest.mark.usefixtures("undrawn_here")
def test_top_p_with_a_ratio_is_refused_unless_the_support_is_recorded(small: TrainSettings, tmp_path: Path) -> None:
    cut = small.model_copy(update={"engine": EngineSettings(top_p=0.9), "run_dir": tmp_path / "run"})
    with pytest.raises(ConfigError, match=r"top_p 0.9 .* every ratio would be wrong.*record_support=true"):
        _ = train(cut, "start_async", progress=Silent())
    assert not (tmp_path / "run").exists()
    engine = EngineSettings(top_p=0.9, record_support=True)
    changed = {"engine": engine, "run_dir": tmp_path / "run", "steps": 2, "staleness": 0}
    summary = train(small.model_copy(update=changed), "grpo", progress=Silent())
    assert summary.steps == 2
    for line in lines(tmp_path / "run")[:-1]:  # fp32, fresh, and over the same tokens: sampler and trainer agree
        assert line["logratio_engine/token_abs_max"] < 1e-4


@pytest.mark.usefixtures("undrawn_here")
def test_dynamic_sampling_replaces_groups_that_teach_nothing(small: TrainSettings, tmp_path: Path) -> None:
    folders = [tmp_path / "with", tmp_path / "without"]
    for folder, refills in zip(folders, (3, 0), strict=True):
        settings = small.model_copy(update={"run_dir": folder, "dynamic_sampling": refills, "staleness": 1})
        _ = train(settings, "dapo", progress=Silent())
    with_refills, without = (lines(folder)[:-1] for folder in folders)
    assert sum(line["rollout/groups_dropped"] for line in with_refills) > 0
    assert all(line["rollout/groups_dropped"] == 0 for line in without)
    used = "effective_batch/tokens"  # dapo's filter takes what teaches nothing out of the loss either way
    assert sum(line.get(used, 0) for line in with_refills) > sum(line.get(used, 0) for line in without)
    assert all(line["staleness/max"] <= 1 for line in with_refills)


@pytest.mark.usefixtures("undrawn_here")
def test_threads_are_given_back(small: TrainSettings, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _ = train(small.model_copy(update={"run_dir": tmp_path / "run", "steps": 1}), progress=Silent())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("undrawn_here")
def test_quiet_prints_one_line(small: TrainSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _ = train(small.model_copy(update={"run_dir": tmp_path / "run", "steps": 1}), quiet=True)
    out, err = capsys.readouterr()
    assert err == ""
    assert len(out.splitlines()) == 1
    assert out.startswith("held-out accuracy ")
    assert str(tmp_path / "run") in out


@pytest.mark.usefixtures("undrawn_here")
def test_plain_lines_tell_the_course(small: TrainSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _ = train(small.model_copy(update={"run_dir": tmp_path / "run"}))
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in out if line.startswith("step")] == ["0", "2", "4"]
    assert "sampler int4 weights, at most 2 updates old, runtime inline" in out
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
        _ = train(small.model_copy(update={"task": TaskSettings(name="reversed"), "run_dir": tmp_path / "run"}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("package", ["transformers", "matplotlib"])
def test_a_missing_extra_is_one_sentence(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as missing:
        _ = train()
    assert str(missing.value) == f'trimtab train needs {package}: pip install "trimtab[train]"'

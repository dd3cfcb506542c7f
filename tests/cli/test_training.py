"""The commands around a run, on a real one: train, resume, eval, replay, report, init, dry run, twin."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from tests.train.conftest import RememberedWarmStart
from typer.testing import CliRunner, Result

from trimtab.cli import app
from trimtab.config import TrainSettings, load_run, parse_run
from trimtab.config.run import RunFile
from trimtab.errors import ConfigError
from trimtab.report import figure
from trimtab.signal import names

TINY = (
    "train.task.name=reverse", "train.task.size=2", "train.model.hidden_size=32", "train.model.num_layers=1",
    "train.model.num_heads=2", "train.model.mlp_size=64", "train.warm_start_steps=16", "train.warm_start_lr=0.01",
    "train.steps=3", "train.prompts_per_step=4", "train.samples_per_prompt=4", "train.max_new_tokens=4",
    "train.eval_every=2", "train.eval_prompts=5", "train.early_stop=never", "train.runtime=inline",
    "train.staleness=1", "train.engine.format=int4",
)  # fmt: skip


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and its twin. Their pages hold no figures, which take longer than the runs; `trimtab report` draws them."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure, "drawn", lambda *_, **__: "")
        patch.setattr("trimtab.train.opening.warm_start", RememberedWarmStart())
        result = invoke("train", *TINY, "train.dump_batches=true", "--run-dir", str(folder), "--twin", "--quiet")
    assert result.exit_code == 0, result.output
    return folder


def test_a_twin_is_trained_in_the_same_folder_and_told(run: Path) -> None:
    own, twin = (json.loads((folder / "summary.json").read_text()) for folder in (run, run / "twin"))
    assert twin["recipe"] == f"{own['recipe']} without correction"
    assert (twin["steps"], twin["task"], twin["format"]) == (3, own["task"], own["format"])
    config = json.loads((run / "twin" / "config.json").read_text())
    formulas = [part["formula"] for part in config["recipe"]["parts"]]
    assert "policy_loss.reinforce" in formulas
    assert "without correction" in (run / "report.html").read_text()


@pytest.mark.parametrize("command", ["train", "init", "eval", "report", "replay", "study"])
def test_every_command_teaches_itself(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "Example" in result.output


def test_a_recorded_step_is_computed_again_from_the_command_line(run: Path) -> None:
    result = invoke("replay", str(run), "--step", "2")
    assert (result.exit_code, "as recorded, bit for bit" in result.output) == (0, True)
    other = invoke("replay", str(run), "recipe=reinforce_tis", "--step", "2")
    assert other.exit_code == 0
    assert "reinforce_tis (the same batch)" in other.output
    assert re.search(r"advantage/token_mean +-?[0-9.e-]+ ", other.output)  # a metric that was recorded as 0 is 0
    said = r"recipe 'grpo' needs logp_old, logp_ref.*these can be computed: .*reinforce_tis"
    with pytest.raises(ConfigError, match=said):
        _ = invoke("replay", str(run), "recipe=grpo", "--step", "2")


def test_the_replay_of_the_readme_works_on_a_default_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its two lines, with a smaller model and fewer steps."""
    monkeypatch.setattr(figure, "drawn", lambda *_, **__: "")
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (train,), (replay,) = (
        re.findall(rf"^trimtab ({command} .*runs/b.*?) +#", readme, re.M) for command in ("train", "replay")
    )
    small = [text for text in TINY if not text.startswith(("train.staleness", "train.engine", "train.runtime"))]
    folder = str(tmp_path / "run")
    done = invoke(*train.replace("runs/b", folder).split(), *small, "--quiet")
    assert done.exit_code == 0
    told = invoke(*replay.replace("runs/b", folder).replace("--step 12", "--step 2").split())
    assert told.exit_code == 0
    assert "(the same batch)" in told.output


def test_eval_measures_what_the_run_measured(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    result = invoke("eval", str(run), "--samples", "2", "--show", "2")
    assert f"accuracy  {summary['held_out_accuracy']:.4f}  greedy, 5 test prompts of task reverse" in result.output
    assert "avg@2" in result.output
    assert "pass@2" in result.output
    bare = invoke("eval", str(run / "model"), "train.task.name=reverse", "train.task.size=2", "--prompts", "5")
    assert f"accuracy  {summary['held_out_accuracy']:.4f}" in bare.output
    best = invoke("eval", str(run), "--which", "best", "--split", "validation")
    assert f"accuracy  {summary['best_accuracy']:.4f}" in best.output


def test_eval_says_what_it_lacks(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run folder, so it does not say what to ask"):
        _ = invoke("eval", str(run / "model"))
    with pytest.raises(ConfigError, match="did you mean 'best'"):
        _ = invoke("eval", str(run), "--which", "bets")
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        _ = invoke("eval", str(run), "--split", "tset")


@pytest.mark.parametrize(("command", "change"), [
    ("eval", {"task": {"name": "reverse", "size": 2, "reward": "FILE:score"}}),
    ("eval", {"task": {"name": "FILE:score"}}),
    ("replay", {"origin": {"recipe": "grpo", "signal": {"loss": {"formula": "written.by.somebody"}}}}),
])  # fmt: skip
def test_code_that_a_run_folder_names_is_not_imported_without_trust(
    command: str, change: dict[str, object], run: Path, tmp_path: Path
) -> None:
    witness, folder = tmp_path / "witness", tmp_path / "run"
    _ = (tmp_path / "evil.py").write_text(f"open({str(witness)!r}, 'w')\ndef score(**_): return [0.0]\n")
    _ = shutil.copytree(run, folder)
    config = folder / "config.json"
    text = json.dumps({**json.loads(config.read_text()), **change}).replace("FILE", str(tmp_path / "evil.py"))
    _ = config.write_text(text)
    with pytest.raises(ConfigError, match=rf"{command}: .* names code that would run on this machine.*--trust"):
        _ = invoke(command, str(folder))
    assert not witness.exists()
    with suppress(Exception):  # with trust it is imported, for better or worse
        _ = invoke(command, str(folder), "--trust")
    assert witness.exists() == (command == "eval")


def test_reports_of_one_run_and_of_several(run: Path, tmp_path: Path) -> None:
    page = run / "report.html"
    page.unlink()
    assert str(page) in invoke("report", str(run)).output
    assert page.is_file()
    out = tmp_path / "both.html"
    _ = invoke("report", str(run), str(run / "twin"), "--out", str(out))
    assert "without correction" in out.read_text()


def test_a_dry_run_explains_estimates_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = " ".join(invoke("train", *TINY, "recipe=dapo", "--dry-run").output.split())
    for part in ("dapo will run", "policy_loss.clipped", "parameters, float32 on cpu", "memory about", "for 3 steps",
                 "problems train made as needed, validation 5, test 5", "warm start 16 supervised steps"):  # fmt: skip
        assert part in said, part
    with pytest.raises(ConfigError, match=r"there is no file gone\.py"):
        _ = invoke("train", *TINY, "train.task.reward=gone.py:f", "--dry-run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("recipe", ["", *names()])
def test_a_written_run_file_sets_its_recipe_and_nothing_else(recipe: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    _ = invoke("init", str(path), *(["--recipe", recipe] if recipe else []))
    asked = {"recipe": recipe} if recipe else {}
    assert parse_run(tomllib.loads(path.read_text())) == parse_run(asked)
    model = [f"train.model={tmp_path}"]  # what is only a default may depend on what is not: no warm start here
    own = load_run(path, model)
    assert own == load_run(None, [*(f"{key}={value}" for key, value in asked.items()), *model])
    assert own.train.warm_start_steps == 0


def test_every_line_of_a_written_run_file_can_be_switched_on(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    _ = invoke("init", str(path))
    switched = re.sub(r"^#(\w+ = (?!…))", r"\1", path.read_text(), flags=re.M)
    table = tomllib.loads(switched)
    settings = {name for name, field in TrainSettings.model_fields.items() if field.default is not None}
    assert set(table["train"]) == settings
    assert parse_run(table) == RunFile()


def test_a_written_run_file_says_what_each_setting_means_and_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    _ = invoke("init", str(path))
    text = path.read_text()
    assert "# " + (RunFile.model_fields["train"].annotation.model_fields["lr"].description or "") in text  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="is already there, so it is left as it is"):
        _ = invoke("init", str(path))
    assert path.read_text() == text
    with pytest.raises(ConfigError, match=r"does not end in \.toml"):
        _ = invoke("init", str(tmp_path / "run.txt"))
    with pytest.raises(ConfigError, match="did you mean 'dapo'"):
        _ = invoke("init", str(tmp_path / "other.toml"), "--recipe", "daapo")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_in_a_shell_says_how_to_go_on_and_resume_goes_on(number: int, code: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "trimtab.cli", "train", *TINY, "train.steps=2000", "--run-dir", str(folder)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 120
    while time.monotonic() < end and not (folder / "metrics.jsonl").exists():
        time.sleep(0.05)
    os.kill(child.pid, number)
    out, _ = child.communicate(timeout=120)
    assert child.returncode == code, out
    assert f"resume  trimtab train --resume {folder}" in out
    done = json.loads((folder / "summary.json").read_text())["steps"]
    result = invoke("train", "--resume", str(folder), f"train.steps={done + 1}", "--quiet")
    assert f"after {done + 1} steps" in result.output


def test_options_that_make_no_sense_with_resume_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"--resume goes on with a run as it is, so --seed, --twin cannot be given"):
        _ = invoke("train", "--resume", str(run), "--seed", "1", "--twin")
    with pytest.raises(ConfigError, match="recipe cannot change in the middle of a run"):
        _ = invoke("train", "--resume", str(run), "recipe=dapo")
    for flag in ("--last-good", "--accept-changes", "--start-over", "--trust"):
        with pytest.raises(ConfigError, match=f"{flag} says how to go on with a run, so it needs --resume RUN"):
            _ = invoke("train", flag)

"""Everything that can be known is said before any work; nothing is written."""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from trimtab.config import load_run
from trimtab.errors import ConfigError, MissingExtra
from trimtab.signal import names
from trimtab.train.checks.precheck import Sizes, caution_of_length, precheck
from trimtab.train.setup import task_and_policy


def checked(*overrides: str) -> Sizes:
    run = load_run(None, ["train.eval_prompts=5", "train.task.name=reverse", *overrides])
    return precheck(run.train, run.build_recipe())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["train.task.reward=gone.py:f"], "reward: gone.py:f: there is no file gone.py"),
        (["train.task.reward=good.py:g"], "good.py has no 'g'. It has: f"),
        (["train.task.reward=exakt"], "reward: no entry is called 'exakt'; did you mean 'exact'"),
        (["train.task.name=file", "train.task.file=gone.jsonl"], "gone.jsonl: there is no such file"),
        (
            ["train.task.name=file", "train.task.file=open.jsonl", "train.task.reward=good.py:f"],
            "no answer, so the warm",
        ),
        (["train.task.name=sorted"], "no entry is called 'sorted'; did you mean 'sort'"),
        (
            ["train.task.name=bad.py:factory"],
            r"task: bad.py:factory raised ZeroDivisionError: division by zero \(bad.py",
        ),
        (["train.task.name=" + "x" * 5000 + ".py:f"], "so there is no task"),
        (["train.samples_per_prompt=1"], "train.samples_per_prompt: 1 answers per prompt are too few for recipe"),
        (["train.samples_per_prompt=1", "recipe=rloo"], "whose normalize.leave_one_out compares the answers"),
        ([f"train.threads={(os.cpu_count() or 1) + 1}"], "threads were asked for and this machine has"),
        (["train.model.device=cuda:99"], "'cuda:99' is not on this machine"),
        (["train.model.hidden_size=1048576"], "GiB with their gradients and moments, and this machine has"),
        (["train.task.size=1", "train.eval_prompts=40"], "validation problems and 40 were asked for"),
        (["train.engine.top_p=0.5"], "remove tokens in sampling"),
    ],
)
def test_what_would_fail_later_is_refused_first(
    overrides: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _ = Path("good.py").write_text("def f(completions, **c): return [0.0] * len(completions)")
    _ = Path("bad.py").write_text("def factory(settings, seed): return 1 / 0")
    _ = Path("open.jsonl").write_text("".join(json.dumps({"prompt": f"{number}?"}) + "\n" for number in range(60)))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=said):
        _ = checked(*overrides)
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "__pycache__"] == before


def test_a_dashboard_that_is_not_installed_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr("trimtab.train.checks.precheck.find_spec", lambda name: None if name == "wandb" else real(name))
    with pytest.raises(MissingExtra, match=r'wandb is not installed.*pip install "trimtab\[wandb\]"'):
        _ = checked("train.log_to=wandb")


UNRECORDED = {
    "remax": "baseline", "gdpo": "rewards", "optimal_token_baseline": "pi_squared",
    "on_policy_distillation": "logp_teacher", "rlsd": "logp_teacher", "gigpo": "state", "role_average": "role",
}  # fmt: skip


@pytest.mark.parametrize("recipe", [name for name in names() if name not in UNRECORDED])
def test_every_recipe_passes_with_the_default_settings(recipe: str) -> None:
    assert checked(f"recipe={recipe}") == Sizes(train=None, validation=5, test=5)


@pytest.mark.parametrize("recipe", UNRECORDED)
def test_a_recipe_that_reads_what_a_run_does_not_record_is_refused(recipe: str) -> None:
    with pytest.raises(ConfigError, match=rf"reads {UNRECORDED[recipe]}, .*a run of `trimtab train` has none"):
        _ = checked(f"recipe={recipe}")


def test_a_file_has_as_many_problems_as_it_has(tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    rows = [{"prompt": f"{number}?", "answer": str(number)} for number in range(100)]
    _ = file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = checked("train.task.name=file", f"train.task.file={file}", "train.eval_prompts=500")
    assert found.train is not None
    assert found.train + found.validation + found.test == 100


def test_answers_that_do_not_fit_are_a_caution() -> None:
    settings = load_run(None, ["train.task.size=8", "train.max_new_tokens=8"]).train
    said = caution_of_length(*task_and_policy(settings), settings)
    assert said is not None
    assert "32 of the first 32 right answers have more than 8 tokens" in said
    enough = settings.model_copy(update={"max_new_tokens": 9})
    assert caution_of_length(*task_and_policy(enough), enough) is None

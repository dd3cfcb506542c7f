"""Several runs on one page: what differs is shown, and nothing is claimed that the noise or the tasks forbid."""

from pathlib import Path

import pytest
from tests.report.made import RECIPE, config, write_run
from tests.report.test_page import Parsed, undrawn

from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError
from trimtab.report import compare, write_comparison
from trimtab.report.data import read_run

__all__ = ["undrawn"]


def test_a_comparison_shows_settings_curves_and_numbers(tmp_path: Path) -> None:
    stale = config(1) | {"recipe": RECIPE, "staleness": 16, "engine": {"format": "int8"}}
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", "collapsing", seed=1, config=stale)]
    text = write_comparison(folders, tmp_path / "comparison.html").read_text(encoding="utf-8")
    page = Parsed(text)
    assert page.open == []
    assert all(target.startswith("#") for target in page.fetched)
    for key in ("seed", "staleness", "engine.format"):
        assert f"<code>{key}</code>" in text
    assert "<code>lr</code>" not in text
    assert "a is ahead with 97.1\u00a0%. No other is within noise of it. These are single runs" in text
    assert page.tags.count("svg") == 3
    assert "Mean |log-ratio| per token: a 0.012 and b 0.15" in text


def test_runs_within_noise_are_not_ranked(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", summary_changes={"held_out_accuracy": 0.975})]
    named = [(folder.name, read_run(folder)) for folder in folders]
    assert compare.ended(named).startswith("All runs end between 97.1\u00a0% and 97.5\u00a0%, within the noise of ± ")
    assert compare.differing(named) == {}


@pytest.mark.usefixtures("undrawn")
def test_different_tasks_are_told_apart_rather_than_compared(tmp_path: Path) -> None:
    other = TrainSettings.model_validate({"task": "reverse"}).model_dump(mode="json") | {"recipe": RECIPE}
    sort, reverse = (
        write_run(tmp_path / "a"),
        write_run(tmp_path / "b", config=other, summary_changes={"task": "reverse"}),
    )
    text = write_comparison([sort, reverse], tmp_path / "c.html").read_text(encoding="utf-8")
    assert "Not comparable: these runs answer different tasks (reverse and sort)" in text
    assert "How did they learn sort?" in text
    assert "How did they learn reverse?" in text
    assert "ahead" not in text


def test_different_sizes_of_one_task_are_different_tasks(tmp_path: Path) -> None:
    harder = TrainSettings.model_validate({"task": {"name": "sort", "size": 9}}).model_dump(mode="json")
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", config=harder)]
    named = [(folder.name, read_run(folder)) for folder in folders]
    assert compare.ended(named).startswith("Not comparable: these runs answer different settings of sort")


def test_more_prompts_are_no_other_task_and_an_unknown_setting_is_no_difference(tmp_path: Path) -> None:
    fewer = {key: value for key, value in config(0).items() if key not in ("staleness", "lr")} | {"eval_prompts": 64}
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", config=fewer | {"recipe": RECIPE})]
    named = [(folder.name, read_run(folder)) for folder in folders]
    assert compare.differing(named) == {"eval_prompts": ["512", "64"]}
    assert compare.ended(named).startswith("All runs end between")


def test_a_formula_that_one_recipe_lacks_is_a_difference(tmp_path: Path) -> None:
    parts = [part for part in RECIPE["parts"] if part["does"] != "correct"]
    plain = config(0) | {"recipe": RECIPE | {"parts": parts}}
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", config=plain)]
    found = compare.differing([(folder.name, read_run(folder)) for folder in folders])
    assert found == {"recipe: correct importance.truncated": ["level = sequence, band = (0.0, 2.0), ratio total", "–"]}


@pytest.mark.usefixtures("undrawn")
def test_folders_of_equal_names_are_told_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / parent / "run", steps=20) for parent in ("one", "two")]
    text = write_comparison(folders, tmp_path / "c.html").read_text(encoding="utf-8")
    assert "one/run" in text
    assert "two/run" in text


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_run_can_be_compared(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", "interrupted", config=None, diagnostics=None)]
    assert "b has no config.json" in write_comparison(folders, tmp_path / "c.html").read_text(encoding="utf-8")


def test_text_of_the_runs_is_shown_as_text(tmp_path: Path) -> None:
    """Names of folders, tasks, recipes and settings."""
    evil = "<img src=x onerror=alert(2)>\"'&"
    folders: list[Path] = []
    for number in range(2):
        config = {"task": evil, "recipe": {"name": evil}, f"{evil}key": f"{evil}{number}"}
        folders.append(write_run(tmp_path / f"{evil}{number}", config=config, summary_changes={"task": evil}))
    text = write_comparison(folders, tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("&lt;img src=x") >= 8


def test_one_run_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a comparison needs two runs or more, got 1"):
        _ = write_comparison([write_run(tmp_path / "a")], tmp_path / "c.html")

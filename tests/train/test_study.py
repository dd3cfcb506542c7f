"""Studies: protocols are read strictly, runs are never lost or hidden, and the numbers are right."""

import hashlib
import io
import json
import math
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from trimtab.config.study import load_study, toml_text
from trimtab.errors import ConfigError
from trimtab.report.study import markdown, write_study
from trimtab.train.study.progress import Lines, Live
from trimtab.train.study.study import StudyResult, run_study
from trimtab.train.study.table import Cell, check_expectations, half_width, read_cell, student_t, table

PROTOCOL = """
title = "Two arms"
question = "Does <b>staleness</b> matter?"
chosen = "nothing"
seeds = [3, 4]

[base]
recipe = "start_on_policy"
[base.train]
steps = 1
eval_prompts = 8
prompts_per_step = 2
warm_start_steps = 0
checkpoint_every = 1
model = { hidden_size = 8, num_layers = 1, num_heads = 1, mlp_size = 8 }

[arms.fresh]
means = "on-policy"

[arms.stale]
recipe = "start_async"
train.staleness = 16
train.model.num_layers = 2

[[expect]]
arm = "fresh"
at_least = 0.9

[[expect]]
arm = "stale"
at_most = 0.4
"""


def protocol(folder: Path, text: str = PROTOCOL) -> Path:
    path = folder / "study.toml"
    _ = path.write_text(text)
    return path


def summary(out: Path, arm: str, seed: int, value: object, outcome: str = "finished") -> Path:
    folder = out / arm / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"outcome": outcome, "held_out_accuracy": value, "steps": 7}
    _ = (folder / "summary.json").write_text(json.dumps(content))
    lines = [{"step": step, "eval/accuracy": 0.1 * step} for step in range(3)]
    _ = (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def claimed(tmp_path: Path, path: Path) -> Path:
    """A study folder that this protocol owns, as an earlier call leaves it."""
    out = tmp_path / "out"
    out.mkdir()
    _ = (out / "protocol.sha256").write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")
    return out


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (10, 2.2281), (29, 2.0452), (120, 1.9799)],
)
def test_student_t_is_that_of_the_printed_tables(freedom: int, expected: float) -> None:
    assert student_t(freedom) == pytest.approx(expected, abs=5e-5)


def test_student_t_at_other_coverages() -> None:
    assert student_t(1, 0.5) == pytest.approx(1.0, abs=1e-12)
    assert student_t(2, 0.99) == pytest.approx(9.9248, abs=5e-5)


def test_interval_of_three_seeds_by_hand() -> None:
    # mean 0.95, s = 0.05, t(2) = 4.3027: 4.3027 * 0.05 / sqrt(3)
    assert half_width([0.9, 0.95, 1.0]) == pytest.approx(4.30265 * 0.05 / math.sqrt(3), rel=1e-5)


def test_one_value_has_no_interval() -> None:
    assert half_width([0.9]) is None
    assert half_width([]) is None


def test_an_arm_is_the_base_with_its_own_keys_on_top(tmp_path: Path) -> None:
    fresh, stale = load_study(protocol(tmp_path)).arms
    assert (fresh.run.recipe, fresh.run.train.staleness, fresh.means) == ("start_on_policy", 0, "on-policy")
    assert (stale.run.recipe, stale.run.train.staleness, stale.run.train.steps) == ("start_async", 16, 1)
    assert (stale.run.train.model.num_layers, stale.run.train.model.hidden_size) == (2, 8)


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    path = protocol(tmp_path)
    assert load_study(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_base_in_a_file_of_its_own_is_hashed_too(tmp_path: Path) -> None:
    base = tmp_path / "base.toml"
    _ = base.write_text("train.steps = 9\n")
    text = f'base = "base.toml"\n{PROTOCOL.partition("[base]")[0]}[arms.only]\n'
    read = load_study(protocol(tmp_path, text))
    assert read.arms[0].run.train.steps == 9
    assert read.base_sha256 == hashlib.sha256(base.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('chosen = "nothing"', ""), "chosen is missing"),
        (("seeds = [3, 4]", "seeds = [3, 3]"), r"seeds: \[3, 3\] holds one twice"),
        (('arm = "fresh"', 'arm = "frsh"'), "did you mean 'fresh'"),
        (("at_least = 0.9", ""), "nothing is expected of 'fresh'"),
        (('means = "on-policy"', "mean = 1"), "arm fresh: there is no key 'mean'"),
        (("train.staleness = 16", "train.seed = 1"), "arm stale: sets train.seed"),
        (("train.staleness = 16", "train.stalness = 1"), "did you mean 'staleness'"),
        (("train.staleness = 16", "train.threads = 2"), "train.threads is 2"),
        (("seeds = [3, 4]", "seeds = [3]\nsedes = 1"), "there is no key 'sedes'"),
        (("[arms.stale]", '[arms."../x"]'), "arms"),
    ],
)
def test_a_protocol_with_a_fault_is_refused(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in PROTOCOL
    with pytest.raises(ConfigError, match=said):
        _ = load_study(protocol(tmp_path, PROTOCOL.replace(*change)))


def test_run_files_of_arms_are_read_back_as_they_were() -> None:
    table: dict[str, Any] = {
        "recipe": 'a "quoted"\\ name\n',
        "train": {"lr": 1e-4, "steps": 3, "early_stop": "never", "dump_batches": True, "model": {"path": "x"}},
        "signal": {"correction": [{"formula": "keep.veto", "low": 0.5}], "loss": {"band": [0.8, 1.2]}},
        "options": {"odd key": 1, "empty": {}},
    }
    assert tomllib.loads(toml_text(table)) == table


@pytest.mark.parametrize(
    ("outcome", "value", "status"),
    [
        ("finished", 0.5, "finished"),
        ("early_stop", 0.5, "finished"),
        ("nonfinite", 0.5, "diverged"),
        ("finished", None, "failed"),
        ("interrupted", 0.5, "missing"),
        ("time_limit", 0.5, "missing"),
    ],
)
def test_every_end_of_a_run_has_a_name(tmp_path: Path, outcome: str, value: object, status: str) -> None:
    cell = read_cell("a", 0, summary(tmp_path, "a", 0, value, outcome), "held_out_accuracy")
    assert (cell.status, cell.value) == (status, value if status in ("finished", "diverged") else None)


def test_finished_runs_are_read_and_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = protocol(tmp_path)
    out = claimed(tmp_path, path)
    for arm, seed, value in (("fresh", 3, 0.9), ("fresh", 4, 0.96), ("stale", 3, 0.3), ("stale", 4, 0.6)):
        _ = summary(out, arm, seed, value)
    result = run_study(path, out=out, progress=Lines())
    said = capsys.readouterr().out
    assert said.splitlines()[0].endswith(hashlib.sha256(path.read_bytes()).hexdigest())
    assert "start " not in said
    assert "stale  0.450 ± 1.906  [0.300, 0.600]" in said
    assert [row.mean for row in result.rows] == [pytest.approx(0.93), pytest.approx(0.45)]
    assert [one.met for one in result.expectations] == [True, False]
    assert result.is_whole
    assert json.loads((out / "study.json").read_text())["arms"][1]["cells"][1]["value"] == 0.6


def test_the_live_table_shows_what_is_done_under_way_and_waiting(tmp_path: Path) -> None:
    path = protocol(tmp_path)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    told = Live(console)
    with told:
        told.opened(load_study(path), tmp_path)
        told.ended(Cell("fresh", 3, "finished", 0.9125))
        told.ended(Cell("fresh", 4, "failed", None, "exit code 1"))
        told.began("stale", 3, resumed=False)
        _ = summary(tmp_path, "stale", 3, 0.0)
        console.print(told._drawn())  # pyright: ignore[reportPrivateUsage]
    shown = Text.from_ansi(screen.getvalue()).plain
    rows = [line.split() for line in shown.splitlines()]
    assert ["fresh", "0.9125", "no", "number"] in rows
    assert ["stale", "1/1", "·"] in rows  # of three lines in its metrics
    assert "2/4, under a minute left" in shown


def test_the_page_stands_alone_and_shows_every_seed(tmp_path: Path) -> None:
    path = protocol(tmp_path)
    out = claimed(tmp_path, path)
    for arm, seed, value in (("fresh", 3, 0.911), ("fresh", 4, 0.922), ("stale", 3, 0.333)):
        _ = summary(out, arm, seed, value)
    _ = summary(out, "stale", 4, 0.444, "nonfinite")
    _ = run_study(path, out=out)
    page, text = (out / "study.html").read_text(), (out / "study.md").read_text()
    for found in (page, text):
        assert all(number in found for number in ("0.911", "0.922", "0.333", "0.444 (diverged)"))
        assert hashlib.sha256(path.read_bytes()).hexdigest() in found
    assert "<b>staleness" not in page
    assert page.count("<svg") == 2
    assert "http" not in page.replace("http-equiv", "")
    assert len(page) < 2_000_000


def test_a_mean_whose_interval_reaches_past_the_bound_says_so(tmp_path: Path) -> None:
    read = load_study(protocol(tmp_path))
    values = {("fresh", 3): 0.95, ("fresh", 4): 0.952, ("stale", 3): 0.3, ("stale", 4): 0.4}
    rows = table(read, [Cell(arm, seed, "finished", value) for (arm, seed), value in values.items()])
    said = markdown(StudyResult(tmp_path, read, rows, check_expectations(read, rows), 1.0, interrupted=False).to_json())
    assert "| fresh >= 0.9 | 0.951 | yes, the whole interval |" in said
    assert "| stale <= 0.4 | 0.350 | yes by the mean; the interval reaches past it |" in said


def test_an_arm_with_a_hole_decides_nothing_and_says_so(tmp_path: Path) -> None:
    read = load_study(protocol(tmp_path))
    cells = [Cell("fresh", 3, "finished", 0.99), Cell("fresh", 4, "failed", None, "exit code 1; why"),
             Cell("stale", 3, "finished", 0.1)]  # fmt: skip
    rows = table(read, cells)
    assert [one.met for one in check_expectations(read, rows)] == [None, None]
    assert [(row.num_values, row.mean, row.half_width) for row in rows] == [(1, 0.99, None), (1, 0.1, None)]
    said = markdown(StudyResult(tmp_path, read, rows, check_expectations(read, rows), 1.0, interrupted=True).to_json())
    assert "Of 4 runs: 1 failed, 1 missing." in said
    assert "0.990 (1 of 2 seeds)" in said
    assert "fresh, seed 4: failed: exit code 1; why" in said
    assert "stale, seed 4: missing" in said
    assert "not known, a seed is missing" in said


def test_a_changed_protocol_is_refused(tmp_path: Path) -> None:
    path = protocol(tmp_path)
    out = claimed(tmp_path, path)
    _ = protocol(tmp_path, PROTOCOL + "# a later thought\n")
    with pytest.raises(ConfigError, match="was changed after they ran"):
        _ = run_study(path, out=out)


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    _ = (out / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match=r"already holds thesis\.tex and no protocol"):
        _ = run_study(protocol(tmp_path), out=out)


def test_no_study_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no study to show"):
        _ = write_study(tmp_path)


@pytest.mark.slow
def test_a_run_that_fails_stops_no_other(tmp_path: Path) -> None:
    text = PROTOCOL.replace("[3, 4]", "[3]").replace("train.model.num_layers = 2", "train.task.size = 5000")
    path = protocol(tmp_path, text.replace("train.staleness = 16", "train.model.path = 'no such folder'"))
    result = run_study(path, out=tmp_path / "out", jobs=2)
    fresh, stale = result.rows
    assert fresh.cells[0].status == "finished"
    assert stale.cells[0].status == "failed"
    assert "no such folder" in stale.cells[0].note
    assert [one.met for one in result.expectations] == [False, None]


@pytest.mark.slow
def test_a_half_done_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    text = PROTOCOL.replace("[3, 4]", "[3]").partition("[arms.stale]")[0]
    path = protocol(tmp_path, text.replace("steps = 1", "steps = 4"))
    out = tmp_path / "out"
    whole = run_study(path, out=out)
    folder = out / "fresh" / "seed3"
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "summary.json").unlink()
    again = run_study(path, out=out)
    assert again.rows == whole.rows
    assert json.loads((folder / "summary.json").read_text())["resumed"] == 1
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == len(metrics.splitlines())


@pytest.mark.slow
def test_a_run_that_lost_its_checkpoints_begins_again_and_keeps_its_logs(tmp_path: Path) -> None:
    path = protocol(tmp_path, PROTOCOL.replace("[3, 4]", "[3]").partition("[arms.stale]")[0])
    whole = run_study(path, out=tmp_path / "out")
    folder = tmp_path / "out" / "fresh" / "seed3"
    metrics = (folder / "metrics.jsonl").read_bytes()
    shutil.rmtree(folder / "checkpoints")
    (folder / "summary.json").unlink()
    assert run_study(path, out=tmp_path / "out").rows == whole.rows
    assert (folder / "set_aside_1" / "metrics.jsonl").read_bytes() == metrics

"""The page is made from plain files, so plain files are all these tests need."""

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.fork import run_in_fork
from tests.report.made import RECIPE, config, metric_line, write_run

from trimtab.errors import ConfigError
from trimtab.report import figure, write_comparison, write_report
from trimtab.report.data import Series, read_run, smoothed, thinned
from trimtab.report.facts import anchor_of

MEGABYTE = 1024 * 1024
QUESTIONS = (
    "Did it learn?", "Is the signal at fault?", "Since which step?", "Which stage?", "Do sampler and trainer agree?",
    "How are the ratios spread?", "How many answers does a batch count as?", "Where in an answer does drift arise?",
    "Does older data drift more?", "How stale was the data?", "How much of the data was used?", "Is training steady?",
    "Were all answers judged?", "Where did the time go?", "What was it trained on?", "What does it write?",
    "What is start_async?", "How can it be repeated?",
)  # fmt: skip


class Parsed(HTMLParser):
    """Checks that elements nest, and collects what a browser would fetch and where links lead."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        names = {"src", "href", "xlink:href", "data", "action"}
        self.fetched += [value or "" for name, value in attrs if name in names]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def text_of(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return text_of(write_run(tmp_path_factory.mktemp("healthy") / "run"))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what a page says: its figures take nearly all of its time."""
    monkeypatch.setattr(figure, "drawn", lambda *_, **__: "<svg></svg>")


@pytest.mark.parametrize(
    "kind",
    [
        "healthy",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("collapsing", "interrupted", "broken_reward")),
    ],
)
def test_every_kind_of_run_has_a_whole_page_that_fetches_nothing(tmp_path: Path, kind: str, healthy: str) -> None:
    text = healthy if kind == "healthy" else text_of(write_run(tmp_path / "run", kind))
    page = Parsed(text)
    assert page.open == []
    assert [question for question in QUESTIONS if question not in text] == []
    assert all(target.startswith("#") for target in page.fetched)
    assert [target for target in page.fetched if target[1:] not in page.ids] == []  # no link leads nowhere
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert page.tags.count("svg") >= 9
    assert len(text) < MEGABYTE


def test_the_curve_rises_and_the_twin_falls_in_the_same_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = figure.drawn
    monkeypatch.setattr(
        figure, "drawn", lambda name, *how, **given: draw(name, *how, **given) if name == "learning" else ""
    )
    folder = write_run(tmp_path / "run")
    _ = write_run(folder / "twin", "collapsing")
    text = text_of(folder)
    curve = text[text.index('aria-label="learning"') :]
    curve = curve[: curve.index("</svg>")]

    def heights(role: str) -> list[float]:
        paths = re.findall(rf'd="(M[^"]*)"[^>]*stroke: var\(--{role}\)', curve)
        longest = max(paths, key=lambda path: path.count("L"))
        return [-float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", longest)]  # an SVG grows downwards

    own, twin = heights("first"), heights("fourth")
    assert len(own) == len(twin) == 11
    assert own == sorted(own)
    assert twin[5:] == sorted(twin[5:], reverse=True)
    assert "held-out accuracy of the control run, without correction" in text
    assert "(avg@8)" in text


def test_colours_belong_to_the_page_and_follow_the_system(healthy: str) -> None:
    assert "prefers-color-scheme: dark" in healthy
    drawings = "".join(re.findall(r"<svg.*?</svg>", healthy, re.DOTALL))
    assert "var(--first)" in drawings
    assert not re.search(r"#[0-9a-f]{6}\b", drawings)


def test_ids_of_different_figures_do_not_clash() -> None:
    """Equal drawings on one page would share their clip paths, and hiding one would hide the other."""
    first, second = (figure.drawn(name, lambda axis: axis.plot([0, 1], [0, 1])) for name in ("a", "b"))
    ids = [set(re.findall(r'id="([mp][0-9a-f]+)"', drawing)) for drawing in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_text_of_the_run_is_shown_as_text(tmp_path: Path) -> None:
    """Whatever a policy, an environment, a prompt, a warning or a setting writes."""
    turns = [{"by": "policy", "text": EVIL}, {"by": "environment", "text": EVIL}, {"by": EVIL, "text": ""}]
    line = {"step": 0, "version": 0, "prompt": EVIL, "turns": turns, "reward": None, "status": EVIL, "message": EVIL}
    sample = {"step": 0, "prompt": EVIL, "answer": EVIL, "is_right": False}
    part = {"does": EVIL, "formula": EVIL, "settings": {EVIL: EVIL}, "means": EVIL, "source": EVIL}
    recipe = {"name": EVIL, "summary": EVIL, "parts": [part]}
    metrics = [metric_line("healthy", step, 20, random.Random(0)) for step in range(20)]
    named = [m | {f"{EVIL}/alone": 0.5, f"{EVIL}/clipped_tokens": 0.1 * (i % 2)} for i, m in enumerate(metrics)]
    folder = write_run(
        tmp_path / "<img src=x>", transcripts=[line, line | {"step": EVIL}],
        samples=[sample], metrics=named, config={"recipe": recipe, "task": EVIL},
        summary_changes={"warnings": [EVIL], "task": EVIL, "outcome": EVIL, "seed": EVIL},
        manifest={"started": EVIL, "hardware": {"processor": EVIL}},
    )  # fmt: skip
    text = text_of(folder)
    page = Parsed(text)
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 12
    assert "script-src" not in text
    assert "default-src 'none'; style-src 'unsafe-inline'" in text  # and if one got through, it would not run


@pytest.mark.usefixtures("undrawn")
def test_warnings_lead_to_their_paragraph(tmp_path: Path) -> None:
    warning = "keep.veto: switched on, does nothing: its effect was exactly 0 in the last 20 batches. (80 of 100 steps)"
    text = text_of(write_run(tmp_path / "run", summary_changes={"warnings": [warning]}))
    assert 'in the last 20 batches. (80 of 100 steps) <a href="#help-nothing-rejected">' in text
    assert '<div id="help-nothing-rejected">' in text
    assert "docs/troubleshooting.md#nothing-rejected" in text


@pytest.mark.usefixtures("undrawn")
def test_a_missing_summary_is_said_and_explained(tmp_path: Path) -> None:
    text = text_of(write_run(tmp_path / "run", "interrupted"))
    assert "summary.json is missing." in text
    assert "1 line of metrics.jsonl cannot be read: left out." in text
    assert "The last number is its last validation" in text
    assert '<div id="help-interrupted">' in text


FILES = ("config.json", "manifest.json", "summary.json", "metrics.jsonl", "samples.jsonl", "transcripts.jsonl",
         "diagnostics.jsonl")  # fmt: skip


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "wrong_type", "binary"])
def test_no_damage_to_a_file_keeps_the_page_from_being_made(tmp_path: Path, name: str, damage: str) -> None:
    """What figures do with such data is the next test's."""
    folder = write_run(tmp_path / "run", steps=20)
    path = folder / name
    if damage == "missing":
        path.unlink()
    else:
        half = path.read_bytes()[: path.stat().st_size // 2]
        content = {"empty": b"", "torn": half, "wrong_type": b"[1, null]\n3\n", "binary": b"\xff\xfe\x00{"}
        _ = path.write_bytes(content[damage])
    assert Parsed(text_of(folder)).open == []


def test_lines_without_sense_keep_nothing_from_being_made(tmp_path: Path) -> None:
    """Null, nan, text where a number belongs, lists where objects belong, empty histograms."""
    strange: list[Any] = [None, "x", [], {}, float("nan"), -1, [{}], [None], {"edges": [0], "counts": []}]
    keys = ("eval/accuracy", "rollout/reward_mean", "drift/engine_abs_mean", "kept/token_fraction", "a/alone")
    metrics = [{"step": i, **dict.fromkeys(keys, value)} for i, value in enumerate(strange)] + [{"step": "x"}, {}]
    diagnostics = [
        {"step": i, "ratio_histogram": v, "drift_by_position": v, "drift_by_age": v, "staleness_histogram": v}
        for i, v in enumerate(strange)
    ]
    transcripts = [{"step": i, "turns": v, "prompt": v, "version": v, "reward": v} for i, v in enumerate(strange)]
    samples = [{"step": 0, "prompt": value, "answer": value} for value in strange]
    folder = write_run(
        tmp_path / "run", metrics=metrics, diagnostics=diagnostics, transcripts=transcripts, samples=samples
    )
    assert Parsed(text_of(folder)).open == []


def test_a_run_without_a_single_step_has_a_page(tmp_path: Path) -> None:
    none = {"steps": 0, "tokens": 0, "outcome": "interrupted", "held_out_accuracy": 0.5}
    folder = write_run(tmp_path / "run", summary_changes=none, metrics=[], samples=[], transcripts=[], diagnostics=[])
    text = text_of(folder)
    assert Parsed(text).open == []
    assert "It did not move beyond the noise" in text
    assert "when it was interrupted" in text


@pytest.mark.slow
def test_a_long_run_stays_below_two_megabytes(tmp_path: Path) -> None:
    """5,000 steps, transcripts of 100,000 characters, a large config."""
    chance = random.Random(0)
    metrics = [metric_line("collapsing", step, 5_000, chance) for step in range(5_000)]
    long = "long <answer> & " * 6000
    line = {"prompt": long, "turns": [{"by": "policy", "text": long}] * 5, "reward": 1.0, "status": "ok"}
    transcripts = [{"step": step, **line} for step in range(0, 1000, 100)]
    config = {"recipe": {"name": "x"}, "task": {"name": "file", "options": {str(i): long[:200] for i in range(2000)}}}
    path = write_report(write_run(tmp_path / "run", metrics=metrics, transcripts=transcripts, config=config))
    assert path.stat().st_size < 2 * MEGABYTE
    assert "94,800 more characters" in path.read_text(encoding="utf-8")


def test_a_step_written_twice_by_a_resumed_run_counts_once(tmp_path: Path) -> None:
    metrics = [{"step": step, "rollout/reward_mean": value} for step, value in ((0, 0.1), (1, 0.2), (2, 0.3), (1, 0.5))]
    run = read_run(write_run(tmp_path / "run", metrics=metrics))
    assert run.series("rollout/reward_mean") == Series((0, 1, 2), (0.1, 0.5, 0.3))


def test_numbers_that_were_not_finite_are_left_out(tmp_path: Path) -> None:
    metrics = [{"step": 0, "eval/accuracy": None, "rollout/reward_mean": 0.5}, {"step": 1, "rollout/reward_mean": None}]
    run = read_run(write_run(tmp_path / "run", metrics=metrics))
    assert run.series("rollout/reward_mean").values == (0.5,)
    assert not run.series("eval/accuracy")


def test_smoothing_looks_back_only_and_thinning_keeps_means() -> None:
    assert smoothed([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]
    assert thinned(Series((0, 1, 2, 3, 4), (1.0, 3.0, 5.0, 7.0, 9.0)), 3) == Series((0, 2, 4), (2.0, 6.0, 9.0))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"holds neither config.json nor metrics.jsonl, so it is not the folder of a run"
    ):
        _ = write_report(tmp_path)
    with pytest.raises(ConfigError, match="not the folder of a run"):
        _ = write_report(tmp_path / "absent")


@pytest.mark.parametrize(
    ("warning", "anchor"),
    [
        ("keep.x: rejects everything: its effect was exactly 1 in the last 20 batches.", "everything-rejected"),
        (
            "the sampler differs from the trainer by 0.3 a token and recipe 'grpo' corrects for none of it",
            "no-correction",
        ),
        ("step 3: kept is 1.2, outside of its range [0, 1]. trimtab explain metric_truth", "metric-out-of-range"),
        ("step 9: tis is switched on and did nothing for 50 steps. trimtab explain options_live", "nothing-rejected"),
        ("something else", None),
    ],
)
def test_warnings_are_sorted_by_symptom(warning: str, anchor: str | None) -> None:
    assert anchor_of(warning) == anchor


def test_report_and_settings_import_nothing_heavy() -> None:
    """The command line must start fast, and say in one sentence what is missing."""
    heavy = {"matplotlib", "transformers", "tokenizers", "safetensors", "tensorboard", "wandb", "trackio"}
    code = f"import sys, trimtab.report, trimtab.train.record.sink, trimtab.rollout; found = {heavy} & set(sys.modules)"
    assert run_in_fork(f"{code}; print(sorted(found))", tuple(heavy)).strip() == "[]"


def test_the_made_folders_use_the_names_of_the_signal() -> None:
    """Metrics that the report reads from the signal exist there by the same names."""
    from trimtab.signal.metric_names import metric_spec

    line = metric_line("healthy", 0, 100, random.Random(0))
    own = ("drift/", "rollout/", "train/", "time/", "staleness/", "publish/", "buffer/", "eval/", "reward/")
    signal = [name for name in line if "/" in name and not name.startswith(own)]
    assert len(signal) >= 14
    assert [metric_spec(name).name for name in signal]


def test_settings_that_the_report_reads_exist(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    read = [
        run.setting(name) for name in ("grad_clip", "updates_per_batch", "eval_prompts", "staleness", "runtime", "seed")
    ]
    assert None not in read
    assert run.setting("engine", "format") == "int4"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["task"]["name"] == run.task == "sort"


@pytest.mark.parametrize(
    "lines",
    [
        [{"step": step, "loss": 0.1, "actor/entropy": 0.2, "critic/rewards/mean": 0.5} for step in range(20)],
        [{"global_step": step, "eval/accuracy": 0.5, "loss": 0.1} for step in range(20)],
    ],
)
def test_metrics_of_another_framework_are_refused_by_name(tmp_path: Path, lines: list[dict[str, float]]) -> None:
    _ = (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match=r"holds .*loss.*, and no metric of a trimtab run with its step"):
        _ = write_report(tmp_path)
    with pytest.raises(ConfigError, match="and no metric of a trimtab run"):
        _ = write_comparison([tmp_path, tmp_path], tmp_path / "comparison.html")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_what_was_not_measured_is_not_claimed(tmp_path: Path) -> None:
    """The signal's metrics in another trainer's file: no summary, no config, no evaluation."""
    lines = [{"step": step, "ess_engine/token": 0.9, "kept/token_fraction": 1.0} for step in range(20)]
    _ = (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "<b>20</b><span>steps</span>" in text
    assert "no correction" not in text
    assert "has no correction" not in text
    assert "Not known: config.json describes no recipe." in text
    _ = (tmp_path / "metrics.jsonl").write_text('{"step": 3, "drift/x": 1.0}\n')
    assert "<b>–</b><span>steps</span>" in write_report(tmp_path).read_text(encoding="utf-8")


@pytest.mark.usefixtures("undrawn")
def test_a_long_setting_is_cut_with_a_word_about_it(tmp_path: Path) -> None:
    long = ["a" * 300, "b" * 3000]
    folders = [write_run(tmp_path / text[0], config=config(0) | {"recipe": RECIPE, "note": text}) for text in long]
    text = write_comparison(folders, tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "a" * 300 in text
    assert "… 2,600 more characters" in text

"""The page is made from plain files, so plain files are all these tests need."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import ConfigError
from trimtab.report import figure, sentence, write_report
from trimtab.report.data import read_run, smoothed

RECIPE = {
    "name": "grpo",
    "summary": "Answers to one prompt are compared with each other.",
    "source": "Shao et al. 2024",
    "parts": [
        {"does": "policy loss", "formula": "policy_loss.clipped", "settings": {"band": "(0.8, 1.2)"},
         "how": "against old", "means": "The <PPO> surrogate.", "source": "Schulman et al. 2017"},
    ],
}  # fmt: skip


def write_run(folder: Path, **changed: Any) -> Path:
    """A run of 30 steps that learned from 0.5 to 0.98."""
    folder.mkdir(parents=True)
    summary = {
        "held_out_accuracy": 0.98, "validation_accuracy": 0.97, "start_accuracy": 0.5, "seconds": 10.0,
        "tokens_per_second": 9000.0, "warnings": [], "steps": 30, "seed": 0, "outcome": "finished", "tokens": 46_000,
        "skipped_updates": 0, "num_parameters": 133_248, "recipe": "grpo", "task": "reverse", "run_dir": str(folder),
    }  # fmt: skip
    config = {"eval_prompts": 512, "grad_clip": 1.0, "updates_per_batch": 1, "recipe": RECIPE}
    metrics = [
        {
            "step": step,
            **({"eval/accuracy": 0.5 + 0.015 * step} if step % 10 == 0 else {}),
            "rollout/reward_mean": 0.3 + 0.02 * step,
            "logratio_engine/token_abs_mean": 2e-7,
            "logratio_engine/token_abs_max": 4e-6,
            "kept/token_fraction": 1.0,
            "policy_loss.clipped/clipped_tokens": 0.0,
            "effective_batch/token_fraction": 0.9 - 0.01 * step,
            "entropy/token_mean": 0.4 - 0.01 * step,
            "train/grad_norm": 0.5 if step % 3 else 2.0,
            "time/sample_seconds": 0.1,
            "time/learn_seconds": 0.15,
        }
        for step in range(30)
    ]
    samples = [
        {"step": 0, "prompt": "58213=", "answer": "31258", "is_right": False},
        {"step": 30, "prompt": "58213=", "answer": "31285", "is_right": True},
    ]
    manifest = {"started": "2026-01-01T00:00:00+00:00", "hardware": {"processor": "a & b"}, "dtype_pair": {}}
    for name, content in {
        "summary": summary | changed.get("summary", {}),
        "config": config,
        "manifest": manifest,
    }.items():
        _ = (folder / f"{name}.json").write_text(json.dumps(content))
    for name, rows in {"metrics": changed.get("metrics", metrics), "samples": changed.get("samples", samples)}.items():
        _ = (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


class Parsed(HTMLParser):
    """Checks that elements nest, and collects what a browser would fetch."""

    VOID = frozenset({"meta", "br", "link", "img", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [
            value or "" for name, value in attrs if name in {"src", "href", "xlink:href", "data", "action"}
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    text = write_report(write_run(tmp_path / "run")).read_text()
    page = Parsed(text)
    assert page.open == []
    assert all(target.startswith("#") for target in page.fetched)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", text)
    assert not {"script", "link", "iframe", "img"} & set(page.tags)


def test_the_page_shows_the_curve_and_answers_its_questions(tmp_path: Path) -> None:
    text = write_report(write_run(tmp_path / "run")).read_text()
    for question in ("Did it learn?", "Do sampler and trainer agree?", "Is training steady?", "Where did the time go?"):
        assert question in text
    curve = text[text.index('aria-label="learning"') :]
    curve = curve[: curve.index("</svg>")]
    line = next(path for path in re.findall(r'd="(M[^"]*)"[^>]*stroke: var\(--first\)', curve) if path.count("L") == 3)
    heights = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", line)]
    assert heights == sorted(heights, reverse=True)  # an SVG grows downwards: the accuracy rises
    assert "Yes: from 50.0\u00a0% right after the warm start to 98.0\u00a0%" in text
    assert "31258 ✗" in text
    assert "31285 ✓" in text


def test_colours_belong_to_the_page_and_follow_the_system(tmp_path: Path) -> None:
    text = write_report(write_run(tmp_path / "run")).read_text()
    assert "prefers-color-scheme: dark" in text
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--first)" in drawings
    assert not re.search(r"#[0-9a-f]{6}\b", drawings)


def test_ids_of_different_figures_do_not_clash() -> None:
    """Equal drawings on one page would share their clip paths, and hiding one would hide the other."""
    first, second = (figure.drawn(name, 1, lambda axes: axes[0].plot([0, 1], [0, 1])) for name in ("a", "b"))
    ids = [set(re.findall(r'id="([mp][0-9a-f]+)"', drawing)) for drawing in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_text_of_the_run_is_escaped(tmp_path: Path) -> None:
    warned = {"warnings": ["keep <b> & veto: switched on, does nothing"]}
    text = write_report(write_run(tmp_path / "run", summary=warned)).read_text()
    assert "keep &lt;b&gt; &amp; veto" in text
    assert "The &lt;PPO&gt; surrogate." in text
    assert "<b> & veto" not in text


def test_a_run_without_a_single_step_has_a_page(tmp_path: Path) -> None:
    empty = {"steps": 0, "tokens": 0, "outcome": "interrupted", "held_out_accuracy": 0.5}
    text = write_report(write_run(tmp_path / "run", summary=empty, metrics=[], samples=[])).read_text()
    assert Parsed(text).open == []
    assert "It did not move" in text
    assert "when it was interrupted" in text


def test_numbers_that_were_not_finite_are_left_out(tmp_path: Path) -> None:
    metrics = [{"step": 0, "eval/accuracy": None, "rollout/reward_mean": 0.5}, {"step": 1, "rollout/reward_mean": None}]
    run = read_run(write_run(tmp_path / "run", metrics=metrics))
    assert run.series("rollout/reward_mean").values == (0.5,)
    assert not run.series("eval/accuracy")


@pytest.mark.parametrize(
    ("mean", "verdict"), [(2e-7, "Yes: "), (2e-3, "Nearly: "), (0.2, "No: "), (None, "Not measured")]
)
def test_the_verdict_on_agreement_is_computed(tmp_path: Path, mean: float | None, verdict: str) -> None:
    run = read_run(write_run(tmp_path / "run", metrics=[{"step": 0, "logratio_engine/token_abs_mean": mean}]))
    assert sentence.agreed(run).startswith(verdict)


@pytest.mark.parametrize(("end", "verdict"), [(0.9, "Yes: "), (0.51, "It did not move"), (0.2, "No, it got worse")])
def test_the_verdict_on_learning_is_computed(tmp_path: Path, end: float, verdict: str) -> None:
    run = read_run(write_run(tmp_path / "run", summary={"held_out_accuracy": end}))
    assert sentence.learned(run).startswith(verdict)


def test_clipping_and_rejection_are_told(tmp_path: Path) -> None:
    metrics = [
        {"step": step, "kept/token_fraction": 1 - 0.1 * step, "a/clipped_tokens": 0.02 * step} for step in range(3)
    ]
    run = read_run(write_run(tmp_path / "run", metrics=metrics, summary={"skipped_updates": 2}))
    said = sentence.rejected(run, run.series("kept/token_fraction"), {"a": run.series("a/clipped_tokens")})
    assert said == (
        "Corrections kept at least 80.0\u00a0% of the tokens; a clipped up to 4.0\u00a0% of them; "
        "2 optimiser steps were left out because nothing was kept."
    )


def test_smoothing_looks_back_only() -> None:
    assert smoothed([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is missing, so this is not a finished run"):
        _ = write_report(tmp_path)


def test_report_and_settings_import_nothing_heavy() -> None:
    """The command line must start fast, and say in one sentence what is missing."""
    heavy = "{'matplotlib', 'transformers', 'tokenizers', 'safetensors'}"
    code = f"import sys, trimtab.report, trimtab.train, trimtab.rollout; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

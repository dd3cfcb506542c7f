"""The troubleshooting document: current, complete, and naming what exists."""

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.report.made import metric_line, write_run

from trimtab.config.train import TrainSettings
from trimtab.report import facts, figure, verdict, write_report
from trimtab.report.data import read_run
from trimtab.report.symptom import DOCUMENT, coded, document, from_folder
from trimtab.report.symptoms import SYMPTOMS
from trimtab.signal import names
from trimtab.signal.metric_names import METRICS

ROOT = Path(__file__).parents[2]
OWN_TABLES = ("signal.", "off_policy_correction.")
NO_NAMES = (
    "trimtab ",
    "--",
    "TRIMTAB_SAMPLER_SECONDS",
    "docker ",
    "best/",
    "model/",
    "report.html",
    "summary.json",
    "[off_policy_correction]",
    "ratio =",
)
VALUES = (
    "interrupted",
    "stopped_by",
    "learned_nothing",
    "diverged",
    "exact",
    "numeric",
    "math_verify",
    "keep.geometric_band",
)


def test_the_document_is_current() -> None:
    assert (ROOT / DOCUMENT).read_text(encoding="utf-8") == document(SYMPTOMS), "python -m trimtab.report > " + DOCUMENT


def test_every_check_and_every_warning_has_a_paragraph(tmp_path: Path) -> None:
    anchors = {check.anchor for check in verdict.checks(read_run(write_run(tmp_path / "run")))}
    anchors |= {anchor for _, anchor in facts.WARNING_ANCHORS} | {"interrupted", "accuracy-falls", "accuracy-stays"}
    assert anchors <= set(SYMPTOMS)


def keys(model: type[BaseModel], before: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        found.add(before + name)
        kinds: list[Any] = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= keys(kind, f"{before}{name}.")
    return found


def known_metrics() -> set[str]:
    import random

    return {spec.name for spec in METRICS} | set(metric_line("healthy", 0, 100, random.Random(0))) | {"eval/accuracy"}


@pytest.mark.parametrize("symptom", SYMPTOMS.values(), ids=SYMPTOMS)
def test_every_name_in_code_exists(symptom: Any) -> None:
    """Settings by their keys, metrics by their names, recipes by theirs: a renamed one shows up here."""
    settings, metrics = keys(TrainSettings), known_metrics()
    unknown: list[str] = []
    for code in re.findall(r"`([^`]+)`", " ".join((symptom.see, symptom.means, symptom.do))):
        if code.startswith(NO_NAMES) or code in names() or code in VALUES:
            continue
        for word in code.split():
            key, _, value = word.partition("=")
            is_setting = key in settings or key.startswith(OWN_TABLES)
            is_recipe = key == "recipe" and value in names()
            is_metric = any(fnmatch.fnmatch(key, name) or fnmatch.fnmatch(name, key) for name in metrics)
            if not (is_setting or is_recipe or is_metric):
                unknown.append(word)
    assert unknown == []


def test_code_and_emphasis_become_html_and_nothing_else_does() -> None:
    said = coded("see *this*: `a < b` and `drift/*`, `x_*`; [text](#anchor)")
    assert said == "see <em>this</em>: <code>a &lt; b</code> and <code>drift/*</code>, <code>x_*</code>; text"


def test_links_reach_the_document_from_a_run_inside_the_checkout_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "drawn", lambda *_, **__: "")
    assert from_folder(ROOT / "runs" / "some-run") == "../../docs/troubleshooting.md"
    assert from_folder(tmp_path) is None  # a path of this machine has no place in a page that travels
    warned = {"warnings": ["keep.x: rejects everything"]}
    text = write_report(write_run(tmp_path / "run", steps=20, summary_changes=warned)).read_text(encoding="utf-8")
    assert "<code>docs/troubleshooting.md#everything-rejected</code>" in text
    assert str(tmp_path) not in text

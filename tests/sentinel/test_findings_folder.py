"""Findings as folders: every artefact, a runner without Trimtab, an upstream test that fails before, a report."""

import ast
import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sentinel.buggy import BUGGY, RIGHT, executed, found, in_process, keep_mask, only_test, tree

from trimtab.sentinel import check
from trimtab.sentinel.findings import Target, program, rows, write
from trimtab.sentinel.findings.folder import slug
from trimtab.sentinel.findings.report import OPEN, SECTIONS
from trimtab.sentinel.loading import Tree


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("written")
    where = tree(base / "checkout")
    subject = keep_mask(where)
    verdict = found(subject, "decision_granularity")
    target = Target("pkg", "me/pkg", where)
    with pytest.MonkeyPatch.context() as patch:
        in_process(patch)
        return write(base / "findings", verdict, subject, target, date="2026-01-02")


def test_a_finding_is_one_folder_with_every_artefact(written: Path) -> None:
    names = {"recipe.json", "run_validation.sh", "run_validation.py", "payload.json", "test_regression.py", "report.md"}
    assert {file.name for file in written.iterdir()} - {"__pycache__"} == names
    payload = json.loads((written / "payload.json").read_text())
    assert payload["status"] == "reproduced"
    assert list(payload) == sorted(payload)
    assert [file.name for file in written.parent.iterdir() if file.is_dir()] == [written.name]


def test_a_finding_found_again_is_written_over_and_keeps_its_first_date(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
    where = Tree.folder(written.parent.parent / "checkout")
    subject = keep_mask(where)
    verdict = found(subject, "decision_granularity")
    assert write(written.parent, verdict, subject, Target("pkg", "me/pkg", where), date="2026-03-04") == written
    (row,) = rows(written.parent)
    assert (row.id, row.date, row.status, row.folder) == (written.name, "2026-01-02", "ready", written.name)
    assert (row.boundary, row.invariant) == ("pkg/losses.py:keep_mask", "decision_granularity")


def test_the_report_has_ten_sections_and_leaves_open_what_nobody_knows(written: Path) -> None:
    text = (written / "report.md").read_text()
    assert [line.split(". ", 1)[1] for line in text.splitlines() if line.startswith("## ")] == list(SECTIONS)
    parts = text.split("\n## ")
    for name in ("Root cause", "Fix"):
        assert OPEN in next(part for part in parts if name in part.splitlines()[0])
    assert "repo:me/pkg is:issue keep_mask" in text
    assert "Reduce to the level of the decision" in text


def test_the_runner_needs_no_trimtab(written: Path, tmp_path: Path) -> None:
    (tmp_path / "trimtab.py").write_text("raise ImportError('this has to run without trimtab')\n")
    output = tmp_path / "out.json"
    settings = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHON": sys.executable, "OUTPUT_JSON": str(output)}
    settings["TARGET_REPO"] = str(written.parent.parent / "checkout")
    done = subprocess.run(["sh", str(written / "run_validation.sh")], env=settings, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout == output.read_text()
    assert json.loads(done.stdout)["status"] == "reproduced"


def test_the_runner_says_fixed_after_the_repair(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = executed(written / "run_validation.py", tree(tmp_path, RIGHT).root, monkeypatch).payload()
    assert (payload["status"], payload["difference"]) == ("fixed", [0.0, 0.0])


@pytest.mark.parametrize("heading", ["", "import absent_and_heavy\n"], ids=["imported", "taken out of its file"])
def test_the_upstream_test_fails_before_and_passes_after(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heading: str
) -> None:
    assert "trimtab" not in (written / "test_regression.py").read_text()
    alone = tmp_path / "test_regression.py"  # without the runner beside it
    alone.write_text((written / "test_regression.py").read_text())
    before, after = (tree(tmp_path / name, heading + code).root for name, code in (("a", BUGGY), ("b", RIGHT)))
    with pytest.raises(AssertionError, match="A decision about a sequence is the same"):
        only_test(executed(alone, before, monkeypatch))()
    only_test(executed(alone, after, monkeypatch))()


def test_the_long_runner_is_one_file_of_its_own_names() -> None:
    text = program()
    names = collections.Counter(getattr(node, "name", "") for node in ast.parse(text).body)
    assert [name for name, count in names.items() if name and count > 1] == []
    assert "from trimtab" not in text
    assert "import pickle" not in text
    heavy = {
        name.name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert heavy - set(sys.stdlib_module_names) <= {"torch", "numpy"}


def test_what_is_no_finding_is_not_written(tmp_path: Path) -> None:
    where = tree(tmp_path, RIGHT)
    subject = keep_mask(where)
    with pytest.raises(ValueError, match="no finding"):
        write(tmp_path / "findings", check(subject, "decision_granularity"), subject, Target("pkg", "", where))


def test_names_are_safe_and_links_do_not_lead_out(tmp_path: Path) -> None:
    assert slug("../..//etc:passwd") == "etc-passwd"
    assert slug("…") == "finding"
    assert len(slug("x" * 500)) <= 100
    where = tree(tmp_path / "checkout")
    subject = keep_mask(where)
    (tmp_path / "findings").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "findings" / "pkg-keep-mask-decision-granularity").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="leads outside"):
        write(tmp_path / "findings", found(subject, "decision_granularity"), subject, Target("pkg", "", where))
    assert list((tmp_path / "elsewhere").iterdir()) == []

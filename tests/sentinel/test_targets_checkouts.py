"""Ready targets for checkouts are well-formed without any checkout, and the runner of known bugs judges rightly."""

import importlib
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from bench.known_bugs.judge import Shown, judge_row, repository, rows, verdict
from bench.known_bugs.row import Row
from bench.known_bugs.table import line, markdown

from trimtab.sentinel import bind
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.loading import Boundary, Spec, Tree
from trimtab.sentinel.targets.target import Binding, Target, Unbound

NAMES = ("slime", "miles", "nemo_rl", "prime_rl", "roll", "open_instruct")


def _target(name: str) -> Target:
    return importlib.import_module(f"trimtab.sentinel.targets.{name}").TARGET


@pytest.mark.parametrize("name", NAMES)
def test_target_has_named_bindings_with_places(name: str) -> None:
    target = _target(name)
    assert target.name == name
    assert len(target.bindings) >= 6
    assert len({binding.name for binding in target.bindings}) == len(target.bindings)
    for binding in target.bindings:
        assert binding.places
        assert all(spec.file.endswith(".py") for spec in binding.places)
        assert binding.given is None or isinstance(binding.given(), dict)


@pytest.mark.parametrize("name", NAMES)
def test_empty_tree_binds_nothing_and_says_what_was_looked_for(name: str, tmp_path: Path) -> None:
    found = list(_target(name).subjects(Tree.folder(tmp_path)))
    assert len(found) == len(_target(name).bindings)
    for one in found:
        assert isinstance(one, Unbound)
        assert ".py:" in one.looked_for
        assert "no such file" in one.reason


def test_rows_have_unique_ids_and_known_invariants() -> None:
    from trimtab.sentinel import INVARIANTS

    known = [row for row in rows() if row.framework in NAMES]
    assert len({row.id for row in known}) == len(known)
    assert all(set(row.invariants) <= set(INVARIANTS) for row in known)


BUGGY = "def loss(token_loss, mask):\n    return (token_loss * mask).sum() / token_loss.numel()\n"
FIXED = "def loss(token_loss, mask):\n    return (token_loss * mask).sum() / mask.sum().clamp(min=1)\n"


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    """A folder with one repository: a bug, and its repair."""
    root = tmp_path / "some+thing"
    root.mkdir()
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    for tag, text in (("buggy", BUGGY), ("fixed", FIXED)):
        (root / "mean.py").write_text(text)
        subprocess.run([*git, "add", "mean.py"], check=True)
        subprocess.run([*git, "commit", "-qm", tag], check=True)
        subprocess.run([*git, "tag", tag], check=True)
    return tmp_path


def _row(fixed: str | None, *, name: str = "loss") -> Row:
    def make(fn: Boundary) -> Subject:
        return bind(fn, role="aggregation", args={"mask": "trainable"})

    binding = Binding("loss", (Spec(name, file="mean.py"),), make)
    return Row("A-BUG", "thing", "some/thing", "buggy", fixed, ("mask_content",), binding)


SEEN = {"what": "it moves", "grade": "bug", "case": ["pa"], "observed": 1, "expected": 0}
BAD = Shown({"mask_content": SEEN}, ran=True)


@pytest.mark.parametrize(
    ("buggy", "fixed", "word"),
    [
        (BAD, Shown(ran=True), "found"),
        (BAD, None, "found"),
        (BAD, BAD, "false alarm"),
        (Shown(ran=True), None, "missed"),
        (Shown(why="could not bind"), None, "could not run"),
        (BAD, Shown(why="could not bind"), "could not run"),
    ],
)
def test_verdict_of_a_row(buggy: Shown, fixed: Shown | None, word: str) -> None:
    found = verdict(_row("fixed"), buggy, fixed)
    assert found.verdict == word
    assert word in line(found)
    assert f"1 {word}" in markdown([found])


def test_runner_finds_a_bug_and_is_silent_at_its_repair(peers: Path) -> None:
    found = judge_row(_row("fixed"), peers, seconds=60)
    assert found.verdict == "found", found.why
    assert found.buggy.violated["mask_content"]["case"]
    assert found.fixed is not None
    assert found.fixed.ran
    assert "mask_content" not in found.fixed.violated
    assert found.bugs_at_fix == []


def test_a_bug_verdict_of_another_law_at_the_fix_is_shown_unless_it_was_judged_real() -> None:
    fixed = Shown({"split": SEEN, "denominator": {**SEEN, "grade": "latent"}}, ran=True)
    found = verdict(_row("fixed"), BAD, fixed)
    assert found.verdict == "found"
    assert found.bugs_at_fix == ["split"]
    assert "[bugs at the fix: split]" in line(found)
    real = replace(_row("fixed"), real={"split": "trainer.py line 10, two micro-batches"})
    assert verdict(real, BAD, fixed).bugs_at_fix == []


def test_runner_says_why_a_row_cannot_run(peers: Path) -> None:
    assert "no definition loos" in judge_row(_row("fixed", name="loos"), peers, seconds=60).why
    assert "no git directory" in judge_row(_row("fixed"), peers / "some+thing", seconds=60).why


def test_repository_is_looked_up_under_every_name(tmp_path: Path) -> None:
    assert repository(tmp_path, "some/thing") is None
    for place in ("thing", "some/thing", "some+thing", "some+thing/repo"):
        (tmp_path / place).mkdir(parents=True)
        assert repository(tmp_path, "some/thing") == tmp_path / place

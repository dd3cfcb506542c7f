"""A folder is ready only if its runner reproduced and its test failed; else it says what is missing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sentinel.buggy import BUGGY, RIGHT, found, in_process, keep_mask, mean_loss, tree

from trimtab.cli.check import Asked, run_check
from trimtab.errors import AdapterError
from trimtab.sentinel import Subject
from trimtab.sentinel.findings import Target, rows, write_finding
from trimtab.sentinel.findings.attempt import sides
from trimtab.sentinel.findings.folder import Written
from trimtab.sentinel.findings.trial import RunnerTrial, TestTrial, try_runner, try_test
from trimtab.sentinel.invariants.declare import Violation
from trimtab.sentinel.loading import Tree


def written(base: Path, subject: Subject, *laws: str, fixed: Tree | None = None) -> tuple[Written, dict[str, Any], str]:
    where = Tree.folder(base / "checkout")
    made = write_finding(
        base / "findings", [(found(subject, law), subject) for law in laws], Target("pkg", "", where), fixed=fixed
    )
    return made, json.loads((made.place / "payload.json").read_text()), (made.place / "report.md").read_text()


def test_a_runner_that_cannot_run_makes_a_folder_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_process(monkeypatch, runner=lambda *_: RunnerTrial(2, "could not run", "", 0.0, None))
    made, payload, report = written(tmp_path, keep_mask(tree(tmp_path / "checkout")), "decision_granularity")
    assert not made.is_ready
    assert payload["ready"] is False
    assert payload["missing"] == ["the runner ended with code 2 (could not run)"]
    assert (payload["status"], payload["quiet_training_signal_bug"]) == ("not reproduced", None)
    assert "not ready: the runner ended with code 2" in report
    assert "reproduced it" not in report
    assert not (made.place / "test_regression.py").exists()
    assert [row.status for row in rows(made.place.parent)] == ["not ready"]


@pytest.mark.parametrize(
    "outcome", ["passed", "broke", *(pytest.param(o, marks=pytest.mark.slow) for o in ("was skipped", "did not run"))]
)
def test_only_a_failed_assertion_counts_as_a_failed_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    in_process(monkeypatch, test=lambda *_: TestTrial(outcome, "because", 0.0))
    made, payload, _ = written(tmp_path, keep_mask(tree(tmp_path / "checkout")), "decision_granularity")
    assert made.missing == (f"the regression test {outcome}: because, on code that has the bug",)
    assert payload["validation"]["regression_test"]["outcome"] == outcome


@pytest.mark.parametrize(("source", "is_ready"), [(RIGHT, True), (BUGGY, False)], ids=["repaired", "not repaired"])
def test_repaired_code_has_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, is_ready: bool
) -> None:
    in_process(monkeypatch)
    subject, fixed = keep_mask(tree(tmp_path / "checkout")), tree(tmp_path / "fixed", source)
    made, payload, report = written(tmp_path, subject, "decision_granularity", fixed=fixed)
    assert made.is_ready is is_ready
    told = payload["validation"]["fixed"]
    ended = (told["runner"]["status"], told["regression_test"]["outcome"])
    assert ended == (("fixed", "passed") if is_ready else ("reproduced", "failed"))
    assert f"| {'fixed (code 0) | passed' if is_ready else 'reproduced (code 1) | failed'} |" in report


def test_without_a_check_there_is_no_script_and_the_numbers_of_the_search_are_told(tmp_path: Path) -> None:
    where = tree(tmp_path / "checkout")
    made, payload, report = written(tmp_path, mean_loss(where, times=2.0), "nonfinite_isolation")
    assert {file.name for file in made.place.iterdir()} == {"recipe.json", "payload.json", "report.md"}
    assert made.missing[0].startswith("there is no runner and no regression test")
    assert payload["observed_with_perturbation"] == "nan"
    assert payload["difference"] == ["nan"]
    assert isinstance(payload["observed_baseline"], float)
    assert payload["status"] == "not reproduced"
    assert "There is none: there is no runner" in report


@pytest.mark.parametrize(
    ("seen", "owed", "told"),
    [([1.5, 2.0], [1.0, 2.0], [0.5, 0.0]), ("the same", "less", "the same is not less"), (None, 1.0, "it broke")],
)
def test_the_difference_is_never_empty(seen: object, owed: object, told: object) -> None:
    answer = sides(Violation("it broke", seen, owed))
    assert None not in answer.values()
    assert (answer["difference"] if seen is not None else answer["observed_with_perturbation"]) == told


def test_the_next_verdict_of_a_cause_is_tried_until_one_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process(monkeypatch)
    where = tree(tmp_path / "checkout")
    computed, direct = mean_loss(where, times=2.0), mean_loss(where)
    pairs = [(found(one, "nonfinite_isolation"), one) for one in (computed, direct)]
    pairs = [(verdict, replace(one, name=name)) for (verdict, one), name in zip(pairs, ("a", "b"), strict=True)]
    made = write_finding(tmp_path / "findings", pairs, Target("pkg", "", where))
    assert (made.is_ready, made.place.name) == (True, "pkg-b-nonfinite-isolation")
    assert [row.id for row in rows(tmp_path / "findings")] == ["pkg-b-nonfinite-isolation"]


@pytest.mark.slow
def test_a_script_that_does_not_end_is_ended_with_everything_it_started(tmp_path: Path) -> None:
    (tmp_path / "run_validation.sh").write_text("(sleep 2; touch $TARGET_REPO/late) &\nsleep 60\n")
    beats: list[int] = []
    ran = try_runner(tmp_path, tmp_path, lambda: beats.append(1), seconds=0.5)
    assert beats
    assert (ran.code, ran.status, ran.words) == (-9, "no payload", "no end within 0.5 s")
    (tmp_path / "run_validation.sh").write_text("sleep 2.5\nexit 1\n")
    ran = try_runner(tmp_path, tmp_path)
    assert not ran.is_reproduced  # the code alone is no proof
    assert not (tmp_path / "late").exists()


def test_fixed_needs_findings() -> None:
    with pytest.raises(AdapterError, match="Give that folder too"):
        run_check(Asked("losses.py", fixed="repaired"))


# --- with real processes ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("assert 1 == 2", "failed"),
        ("assert 1 == 1", "passed"),
        ("raise ImportError('no such module')", "broke"),
        ("__import__('pytest').skip('not here')", "was skipped"),
        ("pass\nimport absent_module", "broke"),
        ("pass\ndef", "broke"),
    ],
)
def test_pytest_is_read_right(tmp_path: Path, body: str, outcome: str) -> None:
    (tmp_path / "test_regression.py").write_text(f"def test_it():\n    {body}\n")
    assert try_test(tmp_path, tmp_path).outcome == outcome


@pytest.mark.slow
def test_a_folder_is_ready_after_its_scripts_were_really_run(tmp_path: Path) -> None:
    subject, fixed = keep_mask(tree(tmp_path / "checkout")), tree(tmp_path / "fixed", RIGHT)
    made, payload, _ = written(tmp_path, subject, "decision_granularity", fixed=fixed)
    assert made.is_ready, made.missing
    assert payload["status"] == "reproduced"
    assert payload["validation"]["runner"]["code"] == 1
    assert payload["validation"]["fixed"]["regression_test"]["outcome"] == "passed"
    assert len((made.place / "run_validation.py").read_text().splitlines()) < 260


@pytest.mark.slow
def test_the_command_tells_how_many_bugs_have_a_ready_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = "def my_loss(logp_current, advantages, mask):\n    return (-advantages * logp_current MASK).RED\n"
    for name, mask, mean in (("code", "", "mean()"), ("fixed", "* mask", "sum() / mask.sum().clamp(min=1)")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "losses.py").write_text(source.replace("MASK", mask).replace("RED", mean))
    monkeypatch.chdir(tmp_path / "code")
    asked = Asked("losses.py", findings=Path("../findings"), fixed="../fixed", invariants=("mask_content",))
    assert run_check(asked) == 1
    said = capfd.readouterr().err
    assert "1 of 1 bugs have a folder that is ready" in " ".join(said.split())
    (row,) = rows(tmp_path / "findings")
    payload = json.loads((tmp_path / "findings" / row.folder / "payload.json").read_text())
    assert payload["validation"]["fixed"]["regression_test"]["outcome"] == "passed"
    assert payload["boundary"] == "losses.py:my_loss"

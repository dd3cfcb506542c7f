"""The script that plants bugs: it runs, a test kills what it plants, and what it cannot run it says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def mutate(*arguments: str) -> subprocess.CompletedProcess[str]:
    called = [sys.executable, "scripts/mutate.py", *arguments]
    return subprocess.run(called, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_planted_bugs_are_killed_by_the_tests_that_reach_them() -> None:
    ran = mutate("--only", "value_loss.py", "--mutants", "1", "--tests", "tests/golden/test_value_loss.py")
    assert "seed 0: 1 mutants, 0 equivalent, score 100.0%" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_no_module_of_a_script_hides_a_package_of_the_tests() -> None:
    """The script and the tests that it runs share one process, so a name can stand for one of them only."""
    packages = {one.name for one in (ROOT / "tests").iterdir() if one.is_dir()}
    assert {"mutants", "signal"} <= packages
    assert not {one.stem for one in (ROOT / "scripts").glob("*.py")} & packages


def test_the_mutants_of_a_file_are_listed() -> None:
    ran = mutate("--only", "value_loss.py", "--mutants", "0", "--list")
    for shown in ("value_loss.py:", "    - ", "    + "):
        assert shown in ran.stdout, ran.stdout + ran.stderr

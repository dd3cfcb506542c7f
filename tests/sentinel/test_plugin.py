"""`pytest --trimtab`: one test a check, with the counter-example in the failure."""

import subprocess
import sys
from pathlib import Path

import pytest

LOSSES = """
import os, time
from trimtab.sentinel import subject

@subject(role="policy_loss", combine="sum", promises=("split", "permutation", "twins_agree", "nonfinite_isolation"))
def my_loss(log_probs, advantages, mask):
    return (-advantages * log_probs * mask).sum() / mask.shape[1]

@subject(role="policy_loss", promises=("permutation", "sample_isolation"))
def my_end(log_probs, advantages, mask):
    print("in the child")
    os._exit(7)

@subject(role="policy_loss", promises=("permutation",))
def my_nap(log_probs, advantages, mask):
    time.sleep(600)
"""


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_each_check_is_a_test_and_a_finding_shows_its_smallest_case(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(LOSSES)
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n")
    done = pytest_in(
        tmp_path, "--trimtab", "losses.py", "--trimtab-examples", "1", "--trimtab-time-limit", "5", "-rsf", "."
    )
    told = done.stdout
    # split; both checks of the function that dies, and the one of the function that hangs
    assert "4 failed, 3 passed, 1 skipped, 1 warning" in told, told
    assert "my_loss breaks split (high)" in told
    assert "  smallest case, one sequence per row (p prompt, a action, o observation):\n    0: a" in told
    assert "could not exercise: its binding names no second implementation" in told
    assert "TrimtabWarning" in told
    assert told.count("could not run: its process ended with code 7: in the child; it was not checked") == 2
    assert told.count("this says nothing about permutation") == 3  # the check it was at
    assert "could not run: no answer within 5 s: it may hang on some case" in told


@pytest.mark.slow
def test_a_target_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "--trimtab", "nowhere.py")
    assert done.returncode == 4
    assert "--trimtab nowhere.py: nowhere.py: no such file" in done.stderr


def test_a_session_that_does_not_ask_imports_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n\ndef test_it():\n    assert 'trimtab' not in sys.modules\n    assert 'torch' not in sys.modules\n"
    )
    done = pytest_in(tmp_path, "-p", "no:jaxtyping")
    assert "1 passed" in done.stdout, done.stdout

"""`pytest --trimtab`: one test a check, with the counter-example in the failure."""

import subprocess
import sys
from pathlib import Path

LOSSES = """
from trimtab.sentinel import subject

@subject(role="policy_loss", combine="sum", promises=("split", "nonfinite_isolation", "twins_agree"))
def my_loss(log_probs, advantages, mask):
    return (-advantages * log_probs * mask).sum()
"""


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_each_check_is_a_test_and_a_finding_shows_its_smallest_case(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(LOSSES)
    done = pytest_in(tmp_path, "--trimtab", "losses.py", "--trimtab-examples", "1", "-rs")
    assert "1 failed, 1 passed, 1 skipped" in done.stdout
    assert "my_loss breaks nonfinite_isolation (high)" in done.stdout
    assert "could not exercise: its binding names no second implementation" in done.stdout


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

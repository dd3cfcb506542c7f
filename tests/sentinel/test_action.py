"""The GitHub action: one check, every format from its report, and the exit code of the check."""

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

ACTION = Path(__file__).parents[2] / "action.yml"
FAKE = """\
#!/bin/sh
echo "$@" >> calls
case "$*" in
  *--render*) echo "rendered"; exit 9 ;;
  *) [ "$TRIMTAB_SAYS" = 2 ] || echo "{}" > trimtab.json; exit "$TRIMTAB_SAYS" ;;
esac
"""


def script() -> str:
    """The last step of the action."""
    return textwrap.dedent(re.split(r"\n {6}run: \|\n", ACTION.read_text(encoding="utf-8"))[-1])


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_action_checks_once_and_renders_the_rest_from_the_report(tmp_path: Path, code: int) -> None:
    fake = tmp_path / "bin" / "trimtab"
    fake.parent.mkdir()
    fake.write_text(FAKE)
    fake.chmod(0o755)
    environment = {
        "PATH": f"{fake.parent}:{os.environ['PATH']}", "TARGET": "my pkg", "TARGET_PATH": "", "CHANGED": "a..b",
        "BASELINE": "", "SEED": "3", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "TRIMTAB_SAYS": str(code),
    }  # fmt: skip
    # The shell of a composite action ends at the first command that fails.
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script()]
    done = subprocess.run(words, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == "check my pkg --seed 3 --changed a..b --format json --out trimtab.json"
    rendered = ["sarif --out trimtab.sarif", "markdown"] if code != 2 else []
    assert calls[1:] == [f"check --render trimtab.json --format {one}" for one in rendered]
    said = (tmp_path / "summary").read_text()
    assert said == ("rendered\n" if code != 2 else "Trimtab could not check `my pkg`; the log of this step says why.\n")

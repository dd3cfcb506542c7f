"""Runs the scripts of a finding as a maintainer would: the only place that finds out whether they do what they say.

Each runs in a process of its own session, on a copy of the folder, with limits of time and memory.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimtab.sentinel.examination.limits import Limits
from trimtab.sentinel.findings.decode import Data

SECONDS = 100.0
"""Time limit of one script."""
BEAT = 2.0
"""Seconds between two signs of life while a script runs."""
MAX_WORDS = 4000
"""Bytes that are kept of what a script printed last."""


Alive = Callable[[], None]


def silent() -> None:
    """Nobody waits for a sign of life."""


@dataclass(frozen=True)
class RunnerTrial:
    """How run_validation.sh ended on some code: its exit code, and the payload that it wrote."""

    code: int
    status: str
    words: str
    seconds: float
    payload: Data | None = None

    @property
    def is_reproduced(self) -> bool:
        return self.code == 1 and self.status == "reproduced"

    @property
    def is_fixed(self) -> bool:
        return self.code == 0 and self.status == "fixed"

    @property
    def why(self) -> str:
        reason = (self.payload or {}).get("reason") or ("" if self.payload else self.words)
        return f"the runner ended with code {self.code} ({self.status})" + (f": {reason}" if reason else "")

    def as_data(self) -> Data:
        return {name: value for name, value in asdict(self).items() if name not in ("payload", "words")}


@dataclass(frozen=True)
class TestTrial:
    """How test_regression.py ended on some code: failed, passed, skipped, broke (another error) or did not run."""

    __test__ = False

    outcome: str
    words: str
    seconds: float

    @property
    def why(self) -> str:
        return f"the regression test {self.outcome}" + (f": {self.words}" if self.words else "")

    def as_data(self) -> Data:
        return asdict(self)


def try_runner(folder: Path, root: Path, alive: Alive = silent, *, seconds: float = SECONDS) -> RunnerTrial:
    """Run `run_validation.sh` of a folder against the code below `root`. `alive` is called while it runs."""
    started = time.monotonic()
    with _copy(folder) as copy:
        output = copy / "trial-output.json"
        settings = {"TARGET_REPO": str(root), "OUTPUT_JSON": str(output), "PYTHON": sys.executable}
        code, words = _run(["sh", str(copy / "run_validation.sh")], settings, copy, seconds, alive)
        payload = _read(output)
    status = str((payload or {}).get("status", "no payload"))
    return RunnerTrial(code, status, words, round(time.monotonic() - started, 1), payload)


def try_test(folder: Path, root: Path, alive: Alive = silent, *, seconds: float = SECONDS) -> TestTrial:
    """Run `test_regression.py` of a folder with pytest against the code below `root`."""
    started = time.monotonic()
    with _copy(folder) as copy:
        told = copy / "trial.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--noconftest"]
        words += ["--rootdir", str(copy), f"--junit-xml={told}", str(copy / "test_regression.py")]
        settings = {"TARGET_REPO": str(root), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        code, said = _run(words, settings, copy, seconds, alive)
        outcome, why = _outcome(told, code, said)
    return TestTrial(outcome, why, round(time.monotonic() - started, 1))


def _outcome(told: Path, code: int, said: str) -> tuple[str, str]:
    """One word and a reason. Only a failed assertion is a failed test: any other error says nothing about the bug."""
    try:
        case = next(ET.parse(told).iter("testcase"), None)
    except (OSError, ET.ParseError):
        case = None
    if case is None:
        return "did not run", f"pytest ended with code {code}: {said}"
    for tag, outcome in (("failure", "failed"), ("error", "broke"), ("skipped", "was skipped")):
        found = case.find(tag)
        if found is not None:
            message = found.get("message", "")
            is_other = tag == "failure" and not message.startswith(("AssertionError", "assert "))
            return ("broke" if is_other else outcome), "" if outcome == "failed" and not is_other else _line(message)
    return "passed", ""


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


@contextlib.contextmanager
def _copy(folder: Path) -> Generator[Path]:
    with tempfile.TemporaryDirectory(prefix="trimtab-trial-", ignore_cleanup_errors=True) as scratch:
        yield Path(shutil.copytree(folder, Path(scratch, "finding"), ignore=shutil.ignore_patterns("__pycache__")))


def _run(words: list[str], settings: Mapping[str, str], folder: Path, seconds: float, alive: Alive) -> tuple[int, str]:
    """The exit code and the last line that was printed. Everything that the script started is ended with it."""
    limit = Limits(processes=1).share >> 10
    guarded = ["sh", "-c", 'ulimit -c 0; ulimit -d "$0" 2>/dev/null; exec "$@"', str(limit), *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **settings}
    said = folder / "trial-words.txt"
    with said.open("wb") as out:
        process = subprocess.Popen(
            guarded, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            code = _waited(process, seconds, alive)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code is None:
        return -signal.SIGKILL, f"no end within {seconds:g} s"
    with said.open("rb") as file:
        file.seek(max(0, said.stat().st_size - MAX_WORDS))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return code, _line(lines[-1]) if lines else ""


def _waited(process: "subprocess.Popen[bytes]", seconds: float, alive: Alive) -> int | None:
    """The exit code; None if the process did not end in time."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        alive()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(min(left, BEAT))
    return None


def _read(file: Path) -> Data | None:
    try:
        found: Any = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None

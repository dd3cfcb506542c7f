"""Running tests against a mutant: the only place that knows which tests reach a line, and how one is run.

The parent imports what is slow to import and never Trimtab; each mutant runs in a fork of it, which reads the mutated
text in place of one file of Trimtab. Nothing on disk changes, and no compiled file is read or written for the mutant.
"""

import gc
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from mutant_kinds import Mutant

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "trimtab" / "signal"
PRELOADED = (
    "numpy", "torch", "torch.testing", "torch.distributed", "torch.distributed.tensor", "pydantic",
    "hypothesis.strategies", "rich.console", "typer", "jaxtyping", "beartype", "pytest", "sympy",
    "_hypothesis_pytestplugin", "unittest.mock",
)  # fmt: skip
QUIET = (
    "-q", "-x", "--no-header", "--tb=no", "-W", "ignore", "--assert=plain",
    *(word for plugin in ("cacheprovider", "xdist", "anyio", "unraisableexception") for word in ("-p", f"no:{plugin}")),
)  # fmt: skip
"""A thousand short runs: no report, no rewritten assertions, and no plugin that the tests do not use."""
SLOWEST = 600.0
"""Seconds that one file of tests may take on a very busy machine."""
QUICK = 20
NOT_FOUND, NO_TESTS = 4, 5
"""Exit codes of pytest where a test does not exist or its file could not be imported, and where none was chosen."""
BROKEN = 70
"""Exit code of a fork that raised outside of pytest."""


@dataclass(frozen=True)
class Reach:
    """Which tests run which lines, and how long each test takes."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    lines: dict[tuple[str, int], set[str]] = field(default_factory=dict[tuple[str, int], set[str]])
    """Of file name and line: tests by name; the name of a test's file where the line runs while that is imported."""

    def of(self, mutant: Mutant) -> list[str]:
        """The tests that run the mutant's line, fastest first. A line that runs in no test by name (at import, in a
        default argument) belongs to every test, first to those that run anything of its file."""
        last = mutant.line + mutant.old.count("\n")
        lines = {(mutant.file.name, line) for line in range(mutant.line, last + 1)}
        near = {test for line in lines for test in self.lines.get(line, ()) if "::" in test}
        every = {test for (file, _), tests in self.lines.items() if file == mutant.file.name for test in tests}
        if near:
            return self._sorted(near)
        own = {test for test in every if "::" in test}
        return [*self._sorted(own), *self._sorted(set(self.seconds) - own)]

    def _sorted(self, tests: set[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds.get(test, 0.0), test))


# ------------------------------------------------------------------------------------------------------ which tests run


class _Contexts:
    """A pytest plugin that names every test to the coverage measurement, and takes its time."""

    def __init__(self, coverage: Any) -> None:
        self.coverage, self.seconds = coverage, dict[str, float]()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def reach_of(tests: list[str], cache: Path) -> Reach:
    """Which tests run which lines; each file of tests is measured once per state of itself and of the sources."""
    reach = Reach()
    cache.mkdir(parents=True, exist_ok=True)
    ours = [*(ROOT / "src").rglob("*.py"), *(one for one in (ROOT / "tests").rglob("*.py") if one.stem[:5] != "test_")]
    sources = _digest(sorted(ours))
    files = [
        file for one in tests for file in ([ROOT / one] if one.endswith(".py") else (ROOT / one).rglob("test_*.py"))
    ]
    for file in sorted(set(files)):
        name = file.relative_to(ROOT).as_posix()
        stored = cache / f"{file.stem}-{_digest([file])}-{sources}.json"
        code = 0 if stored.exists() else _forked(lambda name=name, stored=stored: _measure(name, stored), SLOWEST)
        if code != 0:
            raise SystemExit(f"mutate: {name} does not pass without a mutant (exit {code}). Repair it first.")
        measured = json.loads(stored.read_text(encoding="utf-8"))
        reach.seconds.update(measured["seconds"])
        for source, line, named in measured["lines"]:
            reach.lines.setdefault((source, line), set()).update(named)
    return reach


def _digest(files: list[Path]) -> str:
    state = hashlib.sha256()
    for file in files:
        state.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return state.hexdigest()[:12]


def _measure(name: str, stored: Path) -> int:
    import coverage
    import pytest

    measured = coverage.Coverage(data_file=None, include=[f"{SOURCE}/*.py"], config_file=False)
    contexts = _Contexts(measured)
    measured.start()
    code = int(pytest.main([*QUIET, name], plugins=[contexts]))
    measured.stop()
    data = measured.get_data()
    lines = [
        (Path(file).name, line, sorted({test or name for test in tests}))
        for file in data.measured_files()
        for line, tests in data.contexts_by_lineno(file).items()
    ]
    if code in (0, 5):  # 5: every test of the file is a slow one
        _ = stored.write_text(json.dumps({"seconds": contexts.seconds, "lines": lines}), encoding="utf-8")
    return 0 if code == 5 else code


# ---------------------------------------------------------------------------------------------------- running a mutant


def preload() -> None:
    """Import what is slow and not ours, so that a fork has it already."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in PRELOADED:
        importlib.import_module(name)
    importlib.import_module("torch").set_num_threads(1)
    gc.freeze()  # a fork never looks at what was there before it


def plant(file: Path, source: bytes) -> None:
    """Let every import of this file read other text. Without its date, Python uses no compiled file for it."""
    read, stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def get_data(self: SourceFileLoader, path: str) -> bytes:
        return source if Path(path) == file else read(self, path)

    def path_stats(self: SourceFileLoader, path: str) -> Any:
        if Path(path) == file:
            raise OSError("a mutant has no date")
        return stats(self, path)

    SourceFileLoader.get_data, SourceFileLoader.path_stats = get_data, path_stats  # type: ignore[method-assign]


@dataclass
class Outcome:
    """What became of a mutant: killed, timed out or survived; by which test, after how many seconds."""

    mutant: Mutant
    result: str = ""
    by: str = ""
    seconds: float = 0.0


class _FirstFailure:
    """A pytest plugin that writes down the test that failed first."""

    def __init__(self, said: Path) -> None:
        self.said = said

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            _ = self.said.write_text(report.nodeid, encoding="utf-8")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            _ = self.said.write_text(f"{report.nodeid} (not imported)", encoding="utf-8")


@dataclass
class _Running:
    outcome: Outcome
    tests: list[str]
    pid: int
    started: float
    limit: float
    said: Path
    then: list[list[str]]
    """Tests to run next if these pass, each lot in a fork of its own."""


def run_all(mutants: list[Mutant], reach: Reach, workers: int, limit: float) -> Iterator[Outcome]:
    """Every mutant with the tests that reach it, until one fails."""
    waiting = list(reversed(mutants))
    running: list[_Running] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    mutant = waiting.pop()
                    tests = reach.of(mutant)
                    # Most mutants die at once: a few quick tests first, so that not every file is imported in vain.
                    lots = [lot for lot in (tests[:QUICK], tests[QUICK:]) if lot]
                    running.append(_start(Outcome(mutant), lots, reach, limit, Path(folder)))
                time.sleep(0.02)
                for one in list(running):
                    result = _look(one)
                    if result is None:
                        continue
                    running.remove(one)
                    if result == "survived" and one.then:
                        running.append(_start(one.outcome, one.then, reach, limit, Path(folder)))
                        continue
                    one.outcome.result = result
                    yield one.outcome
        finally:
            for one in running:
                _end(one.pid)


def _start(outcome: Outcome, lots: list[list[str]], reach: Reach, limit: float, folder: Path) -> _Running:
    tests, *then = lots
    mutant, said = outcome.mutant, folder / f"{id(outcome)}"
    expected = sum(reach.seconds.get(test, 0.0) for test in tests)
    pid = _fork(lambda: _run(mutant, tests, said))
    return _Running(outcome, tests, pid, time.monotonic(), limit + 10 * expected, said, then)


def _run(mutant: Mutant, tests: list[str], said: Path) -> int:
    import pytest

    plant(mutant.file, mutant.source)
    return int(pytest.main([*QUIET, *tests], plugins=[_FirstFailure(said)]))


def _look(one: _Running) -> str | None:
    """killed, timed out or survived; None while it runs."""
    pid, status = os.waitpid(one.pid, os.WNOHANG)
    spent = time.monotonic() - one.started
    if pid == 0 and spent < one.limit:
        return None
    _kill_group(one.pid)
    one.outcome.seconds += spent
    failed = one.said.exists()
    one.outcome.by = one.said.read_text(encoding="utf-8") if failed else ""
    one.said.unlink(missing_ok=True)
    if pid == 0:
        _end(one.pid)
        return "timed out"
    code = os.waitstatus_to_exitcode(status)
    if code == BROKEN:
        raise SystemExit(f"mutate: {one.outcome.mutant.where}: the tests could not be started at all.")
    if code == NOT_FOUND and not failed:  # the mutant changes how tests are named: run them by file
        files = list(dict.fromkeys(test.partition("::")[0] for test in one.tests))
        one.then = [files, *one.then] if files != one.tests else one.then
        return "survived"
    return "survived" if code in (0, NO_TESTS) else "killed"


def _forked(work: Callable[[], int], limit: float) -> int:
    pid, until = _fork(work), time.monotonic() + limit
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    _end(pid)
    return -1


def _fork(work: Callable[[], int]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = BROKEN
    try:
        os.setsid()
        os.chdir(ROOT)
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        code = work()
    finally:
        os._exit(code)


def _kill_group(pid: int) -> None:
    """What a test of this fork left running; the fork leads a group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _end(pid: int) -> None:
    _kill_group(pid)
    with suppress(ChildProcessError):
        _ = os.waitpid(pid, 0)

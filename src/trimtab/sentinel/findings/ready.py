"""Whether a folder is ready for maintainers: the only place that decides it, from what was run.

Ready: the runner reproduced the finding, the regression test failed, and on repaired code, where it is given, both
say that it is gone.
"""

from dataclasses import dataclass, field
from pathlib import Path

from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.trial import Alive, RunnerTrial, TestTrial, silent, try_runner, try_test


@dataclass(frozen=True)
class Fixed:
    """Repaired code: where it is, and what to call it."""

    root: Path
    name: str


@dataclass(frozen=True)
class Readiness:
    """What was run, and what is missing. Nothing missing: ready."""

    missing: list[str]
    runner: RunnerTrial | None = None
    test: TestTrial | None = None
    fixed: Data = field(default_factory=dict[str, object])

    @property
    def is_ready(self) -> bool:
        return not self.missing

    @property
    def words(self) -> str:
        return "ready" if self.is_ready else f"not ready: {'; '.join(self.missing)}"

    def as_data(self) -> Data:
        told: Data = {
            "runner": self.runner.as_data() if self.runner else "there is none",
            "regression_test": self.test.as_data() if self.test else "there is none",
        }
        return {
            "ready": self.is_ready,
            "missing": self.missing,
            "validation": told | ({"fixed": self.fixed} if self.fixed else {}),
        }


def without_scripts(why: str) -> Readiness:
    """A folder without runner and test."""
    return Readiness([f"there is no runner and no regression test: {why}"])


def tried(folder: Path, root: Path, ran: RunnerTrial, fixed: Fixed | None = None, alive: Alive = silent) -> Readiness:
    """Run the test of a folder whose runner reproduced, and both scripts on repaired code."""
    test = try_test(folder, root, alive)
    missing = [] if test.outcome == "failed" else [f"{test.why}, on code that has the bug"]
    told: Data = {}
    if fixed is not None:
        told, more = _on_repaired(folder, fixed, alive)
        missing += more
    return Readiness(missing, ran, test, told)


def _on_repaired(folder: Path, fixed: Fixed, alive: Alive) -> tuple[Data, list[str]]:
    ran, test = try_runner(folder, fixed.root, alive), try_test(folder, fixed.root, alive)
    missing = [] if ran.is_fixed else [f"on the repaired code, {ran.why}"]
    missing += [] if test.outcome == "passed" else [f"on the repaired code, {test.why}"]
    told: Data = {"code": fixed.name, "runner": ran.as_data(), "regression_test": test.as_data()}
    return told | ({"payload": ran.payload} if ran.payload else {}), missing

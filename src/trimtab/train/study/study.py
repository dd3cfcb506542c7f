"""The only place that runs a study: arms times seeds as processes, a few at once, each in a run folder of its own.

A study may be stopped and started again at any time: finished runs are read, half-done ones go on from their
checkpoint, and one that failed does not stop the others. One folder belongs to one protocol, by its hash.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimtab.config.study import Arm, Protocol, load_study, toml_text
from trimtab.errors import ConfigError
from trimtab.train.interrupt import raise_on_signals
from trimtab.train.record.disk import make_folder, write_json, write_whole, writing
from trimtab.train.study.progress import Silent, StudyProgress
from trimtab.train.study.table import Checked, Row, check_expectations, read_cell, read_summary, table

PATIENCE = 0.1
"""Seconds between two looks at the running processes."""
LAST_WORDS = 400
"""Characters kept of what a failed run said last."""


@dataclass(frozen=True)
class StudyResult:
    """The result of a study; `study.json`, `study.md` and `study.html` in `folder` say the same."""

    folder: Path
    protocol: Protocol
    rows: tuple[Row, ...]
    expectations: tuple[Checked, ...]
    seconds: float
    interrupted: bool
    stopped_by: str = ""
    """The signal that interrupted it."""

    @property
    def is_whole(self) -> bool:
        """Every arm has a number for every seed."""
        return all(row.is_whole for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        study, protocol = self.protocol.study, self.protocol
        return {
            "title": study.title,
            "question": study.question,
            "chosen": study.chosen,
            "metric": study.metric,
            "seeds": list(study.seeds),
            "protocol": {"file": protocol.path.name, "sha256": protocol.sha256, "base_sha256": protocol.base_sha256},
            "arms": [
                {**asdict(row), "cells": [asdict(cell) for cell in row.cells], "num_values": row.num_values}
                for row in self.rows
            ],
            "expectations": [
                {**one.expectation.model_dump(), "says": str(one.expectation), "mean": one.mean, "met": one.met}
                for one in self.expectations
            ],
            "seconds": self.seconds,
            "interrupted": self.interrupted,
        }


class RunProcess(typing.Protocol):
    """A run under way, here or elsewhere: what a study asks of a process."""

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


Launch = Callable[[Path, Path, int, bool, Path], RunProcess]
"""Starts a run from a run file, in a folder, with a seed, whether it was begun, and the file for what it says."""


@dataclass
class Child:
    """A run under way: its process, and the file that holds what it says."""

    arm: Arm
    seed: int
    process: RunProcess
    log: Path


def run_study(
    path: Path,
    *,
    out: Path | None = None,
    jobs: int | None = None,
    progress: StudyProgress | None = None,
    launch: "Launch | None" = None,
) -> StudyResult:
    """Run what of a study is not done yet, then write its table, figure and page.

    `out` is by default `runs/study-NAME`. Without `jobs`, as many runs at once as the protocol says. `launch` starts
    them elsewhere.
    """
    from trimtab.report.study import write_study

    began = time.perf_counter()
    protocol = load_study(path)
    folder = out or Path("runs") / f"study-{path.stem}"
    told = progress or Silent()
    with _claim(folder, protocol), told, raise_on_signals() as request:
        told.opened(protocol, folder)
        why, interrupted = _run_all(protocol, folder, jobs or protocol.study.jobs, told, launch or launch_here)
        cells = [
            read_cell(arm.name, seed, _place(folder, arm, seed), protocol.study.metric, why.get((arm.name, seed), ""))
            for arm in protocol.arms
            for seed in protocol.study.seeds
        ]
        rows = table(protocol, cells)
        seconds = time.perf_counter() - began
        result = StudyResult(
            folder, protocol, rows, check_expectations(protocol, rows), seconds, interrupted, request.signal
        )
        write_json(folder / "study.json", result.to_json())
        _ = write_study(folder)
        told.finished(result.to_json(), folder)
    return result


def _run_all(
    protocol: Protocol, folder: Path, jobs: int, told: StudyProgress, launch: Launch
) -> tuple[dict[tuple[str, int], str], bool]:
    """Run everything, a few at once. Returns why runs failed, and whether somebody asked to stop."""
    # Seed by seed, so that a study that is stopped half-way has compared all its arms on some seeds.
    waiting = [(arm, seed) for seed in protocol.study.seeds for arm in protocol.arms]
    running: list[Child] = []
    why: dict[tuple[str, int], str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                child = _start_run(*waiting.pop(0), protocol, folder, told, launch)
                running += [child] if child else []
            time.sleep(PATIENCE if running else 0)
            for child in [one for one in running if one.process.poll() is not None]:
                running.remove(child)
                _end_run(child, protocol, folder, why, told)
    except KeyboardInterrupt:  # Ctrl-C, and SIGTERM and SIGHUP by `raise_on_signals`
        _stop_runs(running)
        return why, True
    finally:
        for child in running:
            if child.process.poll() is None:
                child.process.kill()
    return why, False


def _start_run(
    arm: Arm, seed: int, protocol: Protocol, folder: Path, told: StudyProgress, launch: Launch
) -> Child | None:
    """Read a run that is done; go on with one that was begun, from its checkpoint if it has one; begin any other."""
    place = _place(folder, arm, seed)
    cell = read_cell(arm.name, seed, place, protocol.study.metric)
    if cell.status != "missing":
        told.ended(cell, known=True)
        return None
    is_begun = (place / "manifest.json").is_file()
    if not is_begun and place.exists():
        shutil.rmtree(place)  # killed before it was a run
    make_folder(place.parent)
    run_file = folder / arm.name / "run.toml"
    write_whole(run_file, toml_text(arm.table))
    log = folder / arm.name / f"seed{seed}.log"
    told.began(arm.name, seed, resumed=is_begun)
    return Child(arm, seed, launch(run_file, place, seed, is_begun, log), log)


def launch_here(run_file: Path, place: Path, seed: int, is_begun: bool, log: Path) -> RunProcess:
    """Start a run as a process of this machine."""
    command = run_command(run_file, place, seed, is_begun=is_begun)
    with writing(log), log.open("ab") as file:
        # A session of its own: Ctrl-C reaches this process alone, which then asks each run once to stop.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=_environment(), start_new_session=True
        )


def run_command(run_file: Path, place: Path, seed: int, *, is_begun: bool) -> list[str]:
    """The command of one run: it begins, or goes on from the last checkpoint that is whole."""
    again = ["--resume", str(place), "--last-good", "--start-over"]
    how = again if is_begun else [str(run_file), "--run-dir", str(place), "--seed", str(seed)]
    return [sys.executable, "-m", "trimtab.cli", "train", *how, "--quiet"]


def _end_run(
    child: Child, protocol: Protocol, folder: Path, why: dict[tuple[str, int], str], told: StudyProgress
) -> None:
    place = _place(folder, child.arm, child.seed)
    outcome = read_summary(place).get("outcome")
    reason = f"exit code {child.process.returncode}" if child.process.returncode else f"outcome {outcome}"
    said = child.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = f"{reason}; {said[-1].strip()[-LAST_WORDS:]}" if said else reason
    cell = read_cell(child.arm.name, child.seed, place, protocol.study.metric, last)
    if cell.value is None:
        why[child.arm.name, child.seed] = last
    told.ended(cell)


def _stop_runs(running: list[Child]) -> None:
    """Ask every run to finish its step and write a checkpoint; a second signal leaves here and kills them."""
    for child in running:
        child.process.send_signal(signal.SIGINT)
    for child in running:
        _ = child.process.wait()


def _environment() -> dict[str, str]:
    """One thread per run, whatever library counts them: runs side by side must not share cores by chance."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _place(folder: Path, arm: Arm, seed: int) -> Path:
    return folder / arm.name / f"seed{seed}"


@contextmanager
def _claim(folder: Path, protocol: Protocol) -> Generator[None]:
    """Hold the folder for this process and this protocol; another protocol's runs are never mixed in."""
    make_folder(folder)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"study: {folder} is in use by another process, so two would run the same arms. Wait for it, or "
                "give another folder with --out."
            ) from error
        _check_protocol(folder, protocol)
        yield


def _check_protocol(folder: Path, protocol: Protocol) -> None:
    kept = folder / "protocol.sha256"
    name = "\n".join([protocol.sha256, *([protocol.base_sha256] if protocol.base_sha256 else [])])
    held = sorted(path.name for path in folder.iterdir() if path.name != ".lock")
    if kept.is_file() and kept.read_text(encoding="utf-8").strip() == name:
        return
    if kept.is_file():
        before = kept.read_text(encoding="utf-8").split()
        raise ConfigError(
            f"study: {folder} holds runs of a protocol with sha256 {before[0][:16] if before else '?'}…, and "
            f"{protocol.path} has {protocol.sha256[:16]}…, so it was changed after they ran. Give another folder with "
            "--out, or take the change back."
        )
    if held:
        raise ConfigError(
            f"study: {folder} already holds {', '.join(held[:4])} and no protocol, so it is not the folder of a study. "
            "Give another one with --out."
        )
    write_whole(folder / "protocol.toml", protocol.path.read_bytes())
    write_whole(kept, name + "\n")

"""The parent of an examination: it starts child processes, watches their time, and combines their results in a report.

If a child dies or stops responding, only its current function is lost: that function "could not run", and a new child
continues with the rest.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch

import trimtab
from trimtab.errors import AdapterError
from trimtab.sentinel.examination.job import Job
from trimtab.sentinel.invariants.declare import INVARIANTS
from trimtab.sentinel.reports.data import KIND, VERSION, Report

LOAD_SECONDS = 120.0
"""Time limit for the first message of a child. Before it, the child imports torch and the target; no function runs."""

Event = dict[str, Any]
Watch = Callable[[Event], None]


@dataclass(frozen=True)
class Limits:
    """Limits of a child: seconds between two messages after loading, memory, and how many children run at once."""

    seconds: float = 120.0
    gibibytes: float = 16.0
    processes: int = field(default_factory=lambda: min(os.cpu_count() or 1, 4))


def run_job(job: Job, *, limits: Limits | None = None, command: str = "", watch: Watch = lambda _: None) -> Report:
    """Check every subject of a job in child processes, and report. `watch` gets every event immediately."""
    limits = limits or Limits()
    started = time.monotonic()
    events: queue.Queue[Event] = queue.Queue()
    shares = limits.processes
    threads = [
        threading.Thread(target=_share, args=(job, limits, (k, shares), events), daemon=True) for k in range(shares)
    ]
    for thread in threads:
        thread.start()
    heard: list[Event] = []
    left = shares
    while left:
        event = events.get()
        left -= event["event"] == "over"
        heard.append(event)
        watch(event)
    failed = [e["reason"] for e in heard if e["event"] == "failed"]
    if failed:
        raise AdapterError(failed[0])
    return _report(job, heard, command, time.monotonic() - started)


def _share(job: Job, limits: Limits, share: tuple[int, int], events: "queue.Queue[Event]") -> None:
    """Run one child after the other until this share is done."""
    done: list[int] = []
    try:
        for _ in range(1000):
            at, why = _child(job, limits, share, done, events)
            if at is None:
                if why:
                    events.put({"event": "failed", "reason": why})
                return
            number, label = at
            events.put({"event": "verdict", "number": number, "verdict": _unrun(job, label, why)})
            done.append(number)
    finally:
        events.put({"event": "over"})


def _child(
    job: Job, limits: Limits, share: tuple[int, int], done: list[int], events: "queue.Queue[Event]"
) -> tuple[tuple[int, str] | None, str]:
    """Run one child. If it did not finish, return where it stopped and why."""
    asked = {"job": job.as_data(), "share": share, "skip": done, "memory": limits.gibibytes}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _path()}
    scratch = tempfile.TemporaryDirectory(prefix="trimtab-")
    process = subprocess.Popen(
        [sys.executable, "-m", "trimtab.sentinel.examination.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, encoding="utf-8", env=environment,
        # Importing a framework may write logs into the current folder. Your own target is found from here.
        cwd=scratch.name if job.root is not None else None,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.close()
    lines: queue.Queue[str | None] = queue.Queue()
    said: list[str | None] = []
    for stream, sink in ((process.stdout, lines.put), (process.stderr, said.append)):
        threading.Thread(target=_pump, args=(stream, sink), daemon=True).start()
    at: tuple[int, str] | None = None
    patience = max(LOAD_SECONDS, limits.seconds)
    try:
        while True:
            line = lines.get(timeout=patience)
            patience = limits.seconds
            if line is None:
                break
            event = cast("Event", json.loads(line))
            if event["event"] == "end":
                return None, ""
            if event["event"] == "failed":
                return None, event["reason"]
            if event["event"] == "start":
                at = (event["number"], event["label"])
            if event["event"] in ("subject", "unbound"):
                done.append(event["number"])
                at = None
            events.put(event)
    except queue.Empty:
        what = "it may hang on some case" if at else "the target may hang while it is loaded"
        return at, f"no answer within {patience:g} s: {what}"
    finally:
        process.kill()
        process.wait()
        scratch.cleanup()
    last = [line for line in said if line is not None and line.strip()][-1:]
    return at, f"its process ended with code {process.returncode}: {last[0].strip() if last else 'no error message'}"


def _pump(stream: Any, sink: Callable[[str | None], None]) -> None:
    for line in stream:
        sink(line)
    sink(None)


def _path() -> str:
    """The child gets the current folder and the import path of this process."""
    return os.pathsep.join([p or os.getcwd() for p in sys.path])


def _unrun(job: Job, label: str, why: str) -> dict[str, Any]:
    return {
        "id": f"{job.target}-{label}", "subject": label, "invariant": next(iter(INVARIANTS)), "status": "could not run",
        "exercised": 0, "seconds": 0.0, "reason": why, "severity": "none", "violation": None, "case": None,
    }  # fmt: skip


def _report(job: Job, heard: list[Event], command: str, seconds: float) -> Report:
    told = sorted((e for e in heard if "number" in e), key=lambda e: int(e["number"]))
    lost = {e["verdict"]["subject"]: e for e in told if e["event"] == "verdict"}
    subjects = [e["subject"] for e in told if e["event"] == "subject"]
    known = {s["label"] for s in subjects}
    subjects += [_silent(label) for label in lost if label not in known]
    boundaries: dict[str, Any] = {}
    for event in told:
        if event["event"] == "subject" and event["boundary"] is not None:
            _merge(boundaries, event["boundary"])
    return cast(
        "Report",
        {
            "kind": KIND, "version": VERSION,
            "target": {"name": job.target, "version": job.version, "commit": job.commit, "path": job.root},
            "trimtab": trimtab.__version__, "torch": torch.__version__, "python": sys.version.split()[0],
            "seed": job.seed, "examples": job.examples, "command": command, "seconds": round(seconds, 1),
            "boundaries": list(boundaries.values()), "subjects": subjects,
            "could_not_bind": [e["unbound"] for e in told if e["event"] == "unbound"],
            "verdicts": [e["verdict"] for e in told if e["event"] == "verdict"],
        },
    )  # fmt: skip


def _silent(label: str) -> Mapping[str, Any]:
    name = label.split("(")[0]
    return {
        "label": label, "name": name, "role": None, "boundary": None, "options": {}, "conventions": {}, "waived": {},
    }  # fmt: skip


def _merge(boundaries: dict[str, Any], one: dict[str, Any]) -> None:
    """For several subjects of one function: the lines that any of them ran."""
    held = boundaries.setdefault(one["boundary"], one)
    if held is not one:
        executed = set(held["executed"]) | set(one["executed"])
        missed = (set(held["missed"]) | set(one["missed"])) - executed
        held |= {"executed": sorted(executed), "missed": sorted(missed)}
        held["stubs_used"] = sorted({*held["stubs_used"], *one["stubs_used"]})

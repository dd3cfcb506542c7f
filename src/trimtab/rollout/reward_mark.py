"""The only place that finds what a reward's worker has started, and ends it. Standard library alone: workers run it.

A process can leave its parent, its group and its session, but not the environment it began with: a mark in it stays.
Linux alone shows that. A process that was given an environment without the mark is not found.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

MARK = "TRIMTAB_REWARD_WORKER"
"""Environment variable by which a worker and all that it starts are known."""
ROUNDS = 10
"""Looks at most: something that forks faster than it is killed is left to the system."""


def find_marked(mark: str) -> list[int]:
    """Processes with this mark, this one left out."""
    found: list[int] = []
    wanted = f"{MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(place.name) != os.getpid() and wanted in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


def end_marked(mark: str | None = None) -> None:
    """Kill all processes with this mark, or with that of this process; again until none is left."""
    mark = mark or os.environ.get(MARK)
    if not mark:
        return
    for _ in range(ROUNDS):
        found = find_marked(mark)
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

"""The only place that finds the processes that a reward's worker has started, and ends them.

It needs the standard library only, because workers run it as a file. A process can leave its parent, its group and its
session, but it keeps the environment it began with, and a mark is in there. Only Linux shows the environment of other
processes. A process that was given an environment without the mark is not found.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

MARK = "TRIMTAB_REWARD_WORKER"
"""Environment variable by which a worker and all that it starts are known."""
ROUNDS = 10
"""How often to look, at most. A process that forks faster than it is killed is left to the system."""


def find_marked(mark: str) -> list[int]:
    """Processes with this mark, without this one."""
    found: list[int] = []
    wanted = f"{MARK}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(place.name) != os.getpid() and wanted in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


def end_marked(mark: str | None = None) -> None:
    """Kill all processes with this mark (by default this process's own), again and again until none is left."""
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

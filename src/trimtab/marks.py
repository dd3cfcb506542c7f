"""The only place that finds the processes that a child of ours has started, and ends them.

It needs the standard library only, because it is also run as a file. A process can leave its parent, its group and its
session, but it keeps the environment it began with, and a mark is in there. Only Linux shows the environment of other
processes. A process that was given an environment without the mark is not found.

`python -I marks.py NAME MARK FOLDER` waits until its standard input closes, which happens also when its parent is
killed. Then it ends all processes with that mark, and removes their scratch folder.
"""

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

REWARD_WORKER = "TRIMTAB_REWARD_WORKER"
"""Environment variable by which a reward's worker and all that it starts are known."""
EXAMINED = "TRIMTAB_EXAMINED"
"""The same for one child of an examination."""
EXAMINATION = "TRIMTAB_EXAMINATION"
"""The same for all children of one examination."""
CLUSTER = "TRIMTAB_CLUSTER"
"""The same for all processes of a Ray cluster that a run has started for itself."""
SERVER = "TRIMTAB_SERVER"
"""The same for a server that a sampler on a cluster has started."""
ROUNDS = 10
"""How often to look, at most. A process that forks faster than it is killed is left to the system."""


def find_marked(name: str, mark: str) -> list[int]:
    """Processes with this mark, without this one."""
    found: list[int] = []
    wanted = f"{name}={mark}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(place.name) != os.getpid() and wanted in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


def end_marked(name: str, mark: str | None = None) -> None:
    """Kill all processes with this mark (by default this process's own), again and again until none is left."""
    mark = mark or os.environ.get(name)
    if not mark:
        return
    for _ in range(ROUNDS):
        found = find_marked(name, mark)
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def end_holders(folder: str, parent: int) -> None:
    """Kill all processes that have a file in this folder open, but for the one that all this belongs to.

    Processes of Ray write their title over their environment, and with it, now and then, over the mark.
    """
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            held = any(os.readlink(one).startswith(f"{folder}/") for one in (place / "fd").iterdir())
            if held and int(place.name) not in (os.getpid(), parent):
                os.kill(int(place.name), signal.SIGKILL)


if __name__ == "__main__":
    started_by = os.getppid()
    _ = sys.stdin.buffer.read()
    end_marked(sys.argv[1], sys.argv[2])
    if sys.argv[1] == CLUSTER:
        end_holders(sys.argv[3], started_by)
    shutil.rmtree(sys.argv[3], ignore_errors=True)

"""The only place that says what every process on a node has: a scratch folder, and words that reach the run folder.

The folder, and servers that were started from here, are gone when the process is, however it ended.
"""

import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import uuid
from importlib import metadata
from pathlib import Path

from trimtab import marks

MOST_WORDS = 1 << 16
"""Bytes of output that are handed on at once; the rest follows with the next message."""
ORPHANED = 'exec 3<&0; "$@" <&3 3<&- &'
"""A shell's way to leave a process that keeps this standard input and has no parent."""
COMPARED = ("trimtab", "torch", "transformers")


class Scratch:
    """A folder that a small process removes when this one is gone, with everything that carries the mark."""

    def __init__(self) -> None:
        self.folder: Path = Path(tempfile.mkdtemp(prefix="trimtab-node-"))
        tempfile.tempdir = str(self.folder)  # whatever this process leaves behind lies in it
        self.mark: str = uuid.uuid4().hex
        own = {name: value for name, value in os.environ.items() if name != marks.CLUSTER}  # it outlives the cluster
        theirs, self._open = os.pipe()
        warden = [sys.executable, "-I", "-S", str(marks.__file__), marks.SERVER, self.mark, str(self.folder)]
        # Not a child of ours, because Ray ends the children of a process that it ends.
        _ = subprocess.run(
            ["sh", "-c", ORPHANED, "sh", *warden],
            stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=own,
            check=True,
        )  # fmt: skip
        os.close(theirs)

    def close(self) -> None:
        """Remove it now. May be called again."""
        if self._open >= 0:
            os.close(self._open)
            self._open = -1


class Words:
    """What this process and its children print, from now on: in a file, and handed out in parts."""

    def __init__(self, folder: Path) -> None:
        self._path: Path = folder / "words.log"
        self._read: int = 0
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _ = os.dup2(handle, 1)
        _ = os.dup2(handle, 2)
        os.close(handle)

    def fresh(self) -> str:
        """What was printed since the last call."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            _ = file.seek(self._read)
            said = file.read(MOST_WORDS)
            self._read += len(said)
            return said.decode(errors="replace")
        return ""


def here() -> dict[str, str]:
    """This process for people, and the versions that must be the same on every node."""
    from trimtab.train.cluster.session import import_ray

    context = import_ray().get_runtime_context()
    versions = {name: metadata.version(name) for name in COMPARED}
    return {
        "place": f"node {context.get_node_id()[:8]} ({platform.node()}), pid {os.getpid()}",
        "node": context.get_node_id(),
        "pid": str(os.getpid()),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def own_versions() -> str:
    """Versions of this process, as `here` says them."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in COMPARED)

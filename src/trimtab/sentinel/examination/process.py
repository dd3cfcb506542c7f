"""The only place that handles a child process of an examination from outside: starts it, listens, ends it.

Nothing here blocks. A child leads a session of its own and carries a mark. When it is ended, its whole session is ended
too and, on Linux, every process with the mark.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import trimtab
from trimtab import marks
from trimtab.processor import LIMIT

MAX_EVENT = 1 << 26
"""Bytes of one event, at most."""
MAX_WORDS = 4000
"""Bytes that are kept of what the child and its target printed last."""

Event = dict[str, Any]


class Child:
    """One child, its orders, its events and its last words."""

    def __init__(self, warden: "Warden", folder: str | None) -> None:
        theirs_in, self.orders = os.pipe()
        self.events, theirs_out = os.pipe()
        self.words, theirs_words = os.pipe()
        self._mark: str = uuid.uuid4().hex
        self._scratch: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory(
            dir=warden.scratch, ignore_cleanup_errors=True
        )
        work, temporary = (Path(self._scratch.name, name) for name in ("work", "tmp"))
        work.mkdir()
        temporary.mkdir()
        own = {marks.EXAMINED: self._mark, marks.EXAMINATION: warden.mark, "TMPDIR": str(temporary)}
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                # -P: do not import from the current folder, which the target can write into.
                [sys.executable, "-P", "-m", "trimtab.sentinel.examination.child", str(theirs_out)],
                stdin=theirs_in, stdout=theirs_words, stderr=theirs_words, pass_fds=(theirs_out,), cwd=work,
                start_new_session=True,
                env={LIMIT[0]: LIMIT[1], **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _path(folder), **own},
            )  # fmt: skip
        finally:
            for fd in (theirs_in, theirs_out, theirs_words):
                os.close(fd)
        for fd in (self.orders, self.events, self.words):
            os.set_blocking(fd, False)
        self._outbox: bytes = b""
        self._inbox: bytes = b""
        self._said: bytes = b""
        self._closed: set[int] = set()
        self._is_over: bool = False

    @property
    def readable(self) -> list[int]:
        """The pipes that can still bring something."""
        return [fd for fd in (self.events, self.words) if fd not in self._closed]

    @property
    def is_sending(self) -> bool:
        return bool(self._outbox)

    def send(self, message: Mapping[str, Any]) -> None:
        self._outbox += json.dumps(message).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._outbox:
                self._outbox = self._outbox[os.write(self.orders, self._outbox[: 1 << 16]) :]

    def pump(self) -> list[Event]:
        """Write what the pipe takes, and read what the pipes hold. What is no event is left out."""
        self._write()
        self._said = (self._said + self._read(self.words))[-MAX_WORDS:]
        self._inbox += self._read(self.events)
        *lines, self._inbox = self._inbox.split(b"\n")
        self._inbox = self._inbox[:MAX_EVENT]
        return [event for line in lines if (event := _event(line)) is not None]

    def has_ended(self) -> bool:
        """Look without reaping the process, where the system can do that."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def death(self) -> str:
        """How the process ended, with the last line that it printed."""
        self.end()
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        last = self._said.decode(errors="replace").strip().rpartition("\n")[2].strip()[-300:]
        return f"its process ended with {how}: {last or 'no error message'}"

    def end(self) -> None:
        """Kill the process and everything it started, and leave nothing behind. May be called again."""
        if self._is_over:
            return
        self._is_over = True
        # Before it is reaped: until then, its number (also the number of its group) belongs to nobody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        _ = self._process.wait()
        marks.end_marked(marks.EXAMINED, self._mark)  # what left the group: a session of its own, an orphan
        for fd in (self.orders, self.events, self.words):
            os.close(fd)
        self._scratch.cleanup()

    def _read(self, fd: int) -> bytes:
        """What a pipe holds, up to a limit, so that a child that never stops printing cannot keep us here."""
        parts: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(16):
                part = os.read(fd, 1 << 16) if fd not in self._closed else b""
                if not part:
                    self._closed.add(fd)
                    break
                parts.append(part)
        return b"".join(parts)


class Warden:
    """A small process that ends all children of an examination when its parent is gone, even if it was killed."""

    def __init__(self) -> None:
        self.mark: str = uuid.uuid4().hex
        self.scratch: str = tempfile.mkdtemp(prefix="trimtab-")
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-I", "-S", str(marks.__file__), marks.EXAMINATION, self.mark, self.scratch],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            _ = self._process.communicate()


def _event(line: bytes) -> Event | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return cast("Event", found) if isinstance(found, dict) and "event" in found else None


def _path(folder: str | None) -> str:
    """The import path of this process. Folders of yours come last: no file in them replaces an installed package."""
    here = {os.getcwd(), folder}
    every = [os.path.abspath(one) for one in sys.path]
    ours = str(Path(trimtab.__file__).parents[1])
    first = [one for one in every if one == ours or one not in here]
    return os.pathsep.join(dict.fromkeys([*first, *every, *([folder] if folder else [])]))

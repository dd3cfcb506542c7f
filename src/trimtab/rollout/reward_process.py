"""The only place that handles a reward's child process from outside: start it, talk to it, notice its death, end it.

Nothing here blocks: `pump` moves what can be moved now. A child leads a session of its own and carries a mark.
When it is ended, its whole session is ended too and, on Linux, every process with the mark.
"""

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from trimtab.marks import REWARD_WORKER, end_marked
from trimtab.rollout import reward_worker

MAX_REPLY = 1 << 26
"""Bytes of a reply, at most. A status and a short message per answer never need that many."""
MAX_WORDS = 2000
"""Bytes that are kept of what the child printed last."""

Message = dict[str, Any]


class Broken(Exception):
    """The child wrote something that is not a reply."""


class Child:
    """One worker. `deadline` is the time at which its current work must be done."""

    def __init__(self, job: Mapping[str, Any], load_seconds: float) -> None:
        theirs_in, self.requests = os.pipe()
        self.results, theirs_out = os.pipe()
        self.output, theirs_words = os.pipe()
        self._mark: str = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            # -P: do not import from the worker's own folder; the user's module may be called `task`, too.
            [sys.executable, "-P", reward_worker.__file__, str(theirs_in), str(theirs_out)],
            stdin=subprocess.DEVNULL, stdout=theirs_words, stderr=theirs_words,
            pass_fds=(theirs_in, theirs_out), start_new_session=True,
            env={**_environment(), REWARD_WORKER: self._mark},
        )  # fmt: skip
        for fd in (theirs_in, theirs_out, theirs_words):
            os.close(fd)
        for fd in (self.requests, self.results, self.output):
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
        self._memory: int = int(job["memory_bytes"])
        self._outbox: memoryview = memoryview(b"")
        self._inbox: bytearray = bytearray()
        self._words: bytes = b""
        self._closed: set[int] = set()
        self._is_over: bool = False
        self.is_ready: bool = False
        self.deadline: float = 0.0
        self.send(job, load_seconds)

    @property
    def is_sending(self) -> bool:
        return bool(self._outbox)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def readable(self) -> list[int]:
        """The pipes that can still bring something; a closed one would wake the waiting parent forever."""
        return [fd for fd in (self.results, self.output) if fd not in self._closed]

    def send(self, message: Mapping[str, Any], seconds: float) -> None:
        body = json.dumps(message, default=str).encode()
        self._outbox = memoryview(struct.pack(">I", len(body)) + body)
        self.deadline = time.monotonic() + seconds
        self.pump()

    def pump(self) -> None:
        """Write what the pipes take, and read what they hold. `find_death` notices a closed end, not this."""
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            while self._outbox:
                self._outbox = self._outbox[os.write(self.requests, self._outbox[: 1 << 16]) :]
        self._inbox += self._read(self.results)
        self._words = (self._words + self._read(self.output))[-MAX_WORDS:]

    def take_reply(self) -> Message | None:
        """The next whole message, if there is one."""
        if len(self._inbox) < 4:
            return None
        (size,) = struct.unpack(">I", self._inbox[:4])
        if size > MAX_REPLY:
            raise Broken(f"wrote a reply of {size} bytes, and at most {MAX_REPLY} are allowed")
        if len(self._inbox) < 4 + size:
            return None
        body = bytes(self._inbox[4 : 4 + size])
        del self._inbox[: 4 + size]
        try:
            message = json.loads(body)
        except ValueError as error:
            raise Broken("wrote something that is no reply") from error
        if not isinstance(message, dict):
            raise Broken("wrote something that is no reply")
        return cast(Message, message)

    def find_death(self) -> str | None:
        """How the process ended; None while it lives. One that holds too much shared memory is ended here."""
        excess = 0 if _has_ended(self._process) else self._excess()
        if not excess and not _has_ended(self._process):
            return None
        self.pump()
        self.end()
        if excess:
            return f"its process held {excess >> 20} MiB of shared memory, and may hold {self._memory >> 20} MiB"
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
        last = self._words.decode(errors="replace").strip().rpartition("\n")[2][-200:]
        return f"its process ended with {how}" + (f" ({last})" if last else "")

    def _excess(self) -> int:
        """Bytes of shared memory that the process has touched; 0 if they are within the limit.

        A limit on data does not count these, and a limit on addresses would stop every GPU library.
        """
        try:
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:  # not Linux, or gone
            return 0
        held = next((line.split()[1] for line in status.splitlines() if line.startswith("RssShmem:")), "0")
        return int(held) << 10 if int(held) << 10 > self._memory else 0

    def end(self) -> None:
        """Kill the process and everything it forked, and leave no zombie. May be called again."""
        if not self._is_over:
            self._is_over = True
            # Before it is reaped: until then, its number (also the number of its group) belongs to nobody else.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            _ = self._process.wait()
            end_marked(REWARD_WORKER, self._mark)  # what left the group: a session of its own, an orphan
            for fd in (self.requests, self.results, self.output):
                os.close(fd)

    def _read(self, fd: int) -> bytes:
        """What a pipe holds, up to a limit, so that a child that never stops printing cannot keep us here."""
        parts: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                part = os.read(fd, 1 << 16) if fd not in self._closed else b""
                if not part:
                    self._closed.add(fd)
                    break
                parts.append(part)
        return b"".join(parts)


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Look without reaping the process, where the system can do that."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _environment() -> dict[str, str]:
    """The child can import what this process can. It has one thread, and the same hash order in every run."""
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    return {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **os.environ, "PYTHONPATH": path}

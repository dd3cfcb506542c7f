"""The only place that runs a sampler in a process of its own: a `Worker` on the other side of two pipes.

One thread listens, another sends: parameters first, where a newer version replaces one that is not sent yet, then
orders. Nobody sends while holding a lock: the child may be waiting until its own message is read.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, cast

from trimtab.rollout.publication import Publication
from trimtab.rollout.wire import receive, send
from trimtab.train.runtimes.message import load_message, read_said
from trimtab.train.runtimes.worker import Gone, Hear

SHOWN_LINES = 12
"""Lines of a dead sampler's last output that are shown."""


class Child:
    """One life of a sampler process."""

    def __init__(self, opening: Mapping[str, object], hear: Hear) -> None:
        self._hear: Hear = hear
        self._outbox: Publication | None = None
        self._orders: deque[dict[str, object]] = deque([dict(opening)])
        self._is_closing: bool = False
        self._changed: threading.Condition = threading.Condition()
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._process: subprocess.Popen[bytes] = _start(self._words)
        self._threads: list[threading.Thread] = [
            threading.Thread(target=target, daemon=True) for target in (self._listen, self._send)
        ]
        for thread in self._threads:
            thread.start()

    def order(self, tickets: Sequence[int]) -> None:
        self._put({"do": "collect", "tickets": list(tickets)})

    def publish(self, publication: Publication) -> None:
        with self._changed:
            self._outbox = publication
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Ask it to end, and kill it if it does not."""
        self._is_closing = True
        self._put({"do": "close"})
        try:
            _ = self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _ = self._process.wait()
        self._threads[0].join(seconds)
        self._words.close()

    def _put(self, head: dict[str, object]) -> None:
        with self._changed:
            self._orders.append(head)
            self._changed.notify_all()

    def _send(self) -> None:
        """Send until the child is closed. The listener reports a lost one."""
        try:
            head: dict[str, object] = {}
            while head.get("do") != "close":
                head, publication = self._next_order()
                head, tensors = (head, None) if publication is None else load_message(publication)
                send(cast(BinaryIO, self._process.stdin), head, tensors)
        except (OSError, ValueError):
            return

    def _next_order(self) -> tuple[dict[str, object], Publication | None]:
        with self._changed:
            while self._outbox is None and not self._orders:
                _ = self._changed.wait()
            is_open = self._orders and "settings" in self._orders[0]
            if self._outbox is None or is_open or self._is_closing:
                return (self._orders.pop() if self._is_closing else self._orders.popleft()), None
            publication, self._outbox = self._outbox, None
            return {}, publication

    def _listen(self) -> None:
        """Hand on the child's messages until it closes its pipe."""
        while (message := receive(cast(BinaryIO, self._process.stdout))) is not None:
            self._hear(read_said(*message))
        if not self._is_closing:
            self._hear(Gone(f"the sampler ended with exit code {self._process.wait()}", self._last_words()))

    def _last_words(self) -> str:
        _ = self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        said = "\n".join(lines[-SHOWN_LINES:]) or "(it printed nothing)"
        return f"The last that it printed:\n{said}"


def _start(words: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start the child with this Python and this package. What it prints goes to a file."""
    package = Path(__file__).resolve().parents[3]
    path = os.pathsep.join(part for part in (str(package), os.environ.get("PYTHONPATH", "")) if part)
    return subprocess.Popen(
        [sys.executable, "-m", "trimtab.train.runtimes.sampler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=words,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for the learner, which then closes the sampler in order
    )

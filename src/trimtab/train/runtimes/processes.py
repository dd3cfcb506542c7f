"""The only place that runs the sampler in a process of its own, so that sampling and learning overlap.

One child, one pipe each way. One thread listens, another sends. It sends parameters, where a newer version replaces one
that is not sent yet, and the tickets that the buffer admits for the version that the child has confirmed. Nobody sends
while holding the lock: the child may be waiting until its own message is read.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from trimtab.errors import EngineError
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.join import join
from trimtab.rollout.publication import Publication
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.wire import receive, send
from trimtab.train.runtimes.inline import FOR_EVER, Arrived, Delivered, Wait, in_batches

POLL_SECONDS = 0.2
"""How often a waiting learner looks at signals and at the time."""
NOTICE_SECONDS = 60.0
"""After this long without a batch a notice is printed, and again each time it has passed."""
PATIENCE = "TRIMTAB_SAMPLER_SECONDS"
"""Environment variable: how long the sampler may be silent before the run gives up on it."""
PATIENCE_SECONDS = 3600.0
"""Its default. One order is a batch of prompts. On a CPU, with a large model, that can take many minutes."""
CLOSE_SECONDS = 5.0
"""How long the child may take to finish what it is sampling when the run is over."""
SHOWN_LINES = 12
"""Lines of a dead sampler's last output that are shown."""


class Processes:
    """A sampler process, and the buffer between it and the learner."""

    def __init__(self, opening: Mapping[str, object], buffer: Buffer) -> None:
        self._buffer: Buffer = buffer
        self._arrived: list[Rollouts] = []
        self._error: str = ""
        self._engine_version: int = -1
        self._decode: str = ""
        self._learner_version: int = -1
        self._published: dict[int, float] = {}
        self._outbox: Publication | None = None
        self._orders: deque[dict[str, object]] = deque([dict(opening)])
        self._sample_seconds: float = 0.0
        self._lag: tuple[float, int] = (0.0, 0)
        self._again: list[int] = sorted(buffer.waiting)
        self._closing: bool = False
        self._sampling: deque[list[int]] = deque()
        self._heard: float = time.monotonic()
        self._changed: threading.Condition = threading.Condition()
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._child: subprocess.Popen[bytes] = _start(self._words)
        for target in (self._listen, self._send):
            threading.Thread(target=target, daemon=True).start()

    @property
    def buffer(self) -> Buffer:
        return self._buffer

    @property
    def decode(self) -> str:
        return self._decode

    def publish(self, publication: Publication) -> None:
        """Copy the parameters now, so that the learner may change its own; another thread hashes and sends the copy."""
        copied = publication.copy()
        with self._changed:
            self._outbox = copied
            self._learner_version = copied.version
            self._published[copied.version] = time.perf_counter()
            self._changed.notify_all()

    def batch(self, arrived: Arrived, wait: Wait = FOR_EVER) -> Delivered | None:
        began = time.perf_counter()
        notices = 1
        while True:
            fresh = self._take_arrived()
            fresh = None if fresh is None else arrived(fresh)
            with self._changed:
                if fresh is not None:
                    self._buffer.put(fresh)
                self._admit()
                taken = self._buffer.take()
                waited = time.perf_counter() - began
                if taken is not None:
                    sampled, self._sample_seconds = self._sample_seconds, 0.0
                    return Delivered(*taken, sampled, waited, *self._lag, *self._buffer.size)
                if not self._arrived and not self._error:
                    _ = self._changed.wait(timeout=POLL_SECONDS)
            if wait.is_over():
                return None
            if waited > notices * NOTICE_SECONDS:
                notices += 1
                wait.say(f"no batch from the sampler for {waited:.0f} s; {self._doing()}")
            self._give_up_on_silence()

    def _doing(self) -> str:
        """What the sampler is doing, by its last messages."""
        with self._changed:
            silent = f"silent for {time.monotonic() - self._heard:.0f} s"
            if self._engine_version < 0:
                return f"it has not loaded the first parameters yet ({silent})"
            if not self._sampling:
                return f"it has version {self._engine_version} and nothing to sample ({silent})"
            first, last = self._sampling[0][0], self._sampling[0][-1]
            return f"it is sampling prompts {first} to {last} with version {self._engine_version} ({silent})"

    def _give_up_on_silence(self) -> None:
        limit = float(os.environ.get(PATIENCE) or PATIENCE_SECONDS)
        if time.monotonic() - self._heard > limit:
            raise EngineError(
                f"processes: the sampler has been silent for {limit:g} s, so it seems to hang; {self._doing()}. The "
                "run can be resumed from its last checkpoint. If one batch really takes that long, raise the limit: "
                f"{PATIENCE}={2 * limit:g} in the environment; or train.runtime=inline shows where it hangs."
            )

    def _take_arrived(self) -> Rollouts | None:
        """Take what arrived since the last call."""
        with self._changed:
            if self._error:
                raise EngineError(self._error)
            fresh, self._arrived = self._arrived, []
            return join(fresh) if fresh else None

    def ready(self) -> tuple[dict[str, object], Rollouts | None]:
        with self._changed:
            return self._buffer.state(), self._buffer.ready_rollouts()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._orders.append({"do": "close"})
            self._changed.notify_all()
        try:
            _ = self._child.wait(timeout=CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            _ = self._child.wait()
        self._words.close()

    def _admit(self) -> None:
        """Order what may be sampled with the version the child has. The caller holds the lock."""
        if self._engine_version < 0:
            return
        tickets = self._again + self._buffer.admit(self._engine_version)
        self._again = []
        for part in in_batches(tickets, self._buffer.groups_per_batch):
            self._orders.append({"do": "collect", "tickets": part})
            if not self._sampling:
                self._heard = time.monotonic()  # it had nothing to do before
            self._sampling.append(part)
        if tickets:
            self._changed.notify_all()

    def _send(self) -> None:
        """Send orders and parameters, parameters first, until the run closes. The listener reports a lost child."""
        try:
            head: dict[str, object] = {}
            while head.get("do") != "close":
                head, publication = self._next_order()
                tensors = None
                if publication is not None:
                    head |= {"version": publication.version, "digest": publication.digest}
                    tensors = publication.state
                send(cast(BinaryIO, self._child.stdin), head, tensors)
        except (OSError, ValueError):
            return

    def _next_order(self) -> tuple[dict[str, object], Publication | None]:
        with self._changed:
            while self._outbox is None and not self._orders:
                _ = self._changed.wait()
            is_open = self._orders and "settings" in self._orders[0]
            if self._outbox is None or is_open or self._closing:
                return self._orders.popleft(), None
            publication, self._outbox = self._outbox, None
            return {"do": "load"}, publication

    def _listen(self) -> None:
        """Take in the child's messages until it closes its pipe."""
        while (message := receive(cast(BinaryIO, self._child.stdout))) is not None:
            head, tensors = message
            rollouts = Rollouts.read(tensors, head["head"]) if head["say"] == "rollouts" else None
            with self._changed:
                self._hear(head, rollouts)
                self._changed.notify_all()
        with self._changed:
            if not self._closing and not self._error:
                self._error = self._last_words()
            self._changed.notify_all()

    def _hear(self, head: dict[str, Any], rollouts: Rollouts | None) -> None:
        self._heard = time.monotonic()
        if head["say"] == "loaded":
            self._engine_version = int(head["version"])
            self._decode = str(head.get("decode", ""))
            published = self._published.pop(self._engine_version, None)
            self._published = {v: at for v, at in self._published.items() if v > self._engine_version}
            if published is not None:
                self._lag = (time.perf_counter() - published, self._lag[1])
            self._admit()
        elif rollouts is not None:
            self._sample_seconds += float(head["seconds"])
            if self._sampling:
                _ = self._sampling.popleft()
            self._arrived.append(rollouts)
            self._lag = (self._lag[0], max(0, self._learner_version - rollouts.oldest_version))
        else:
            self._error = str(head["error"])

    def _last_words(self) -> str:
        code = self._child.wait()
        _ = self._words.seek(0)
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        said = "\n".join(lines[-SHOWN_LINES:]) or "(it printed nothing)"
        return (
            f"processes: the sampler ended with exit code {code}, so no batch can come. The run can be resumed from "
            "its last checkpoint; if it happens again, train.runtime=inline shows the error in place. "
            f"The last that it printed:\n{said}"
        )


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

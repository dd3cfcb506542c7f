"""The only place that says what a runtime is: parameters in, batches out, never too stale. It has the simplest one.

The loop does not know whether sampling happens here or in another process.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from trimtab.rollout.buffer import Buffer
from trimtab.rollout.collect import Collector
from trimtab.rollout.engine import AsyncEngine, Engine
from trimtab.rollout.publication import Publication
from trimtab.rollout.rollouts import Rollouts

Arrived = Callable[[Rollouts], Rollouts]
"""What the loop does with rollouts as they arrive, in its own thread: the probe looks at fresh ones."""


@dataclass(frozen=True)
class Wait:
    """How long to wait for a batch, and whom to tell about it."""

    is_over: Callable[[], bool] = lambda: False
    """Somebody asked to stop, or time is up: looked at several times per second."""
    say: Callable[[str], None] = lambda _text: None


@dataclass(frozen=True)
class Delivered:
    """One batch and how it came."""

    rollouts: Rollouts
    dropped: int
    """Groups sampled for it that taught nothing and were replaced."""
    sample_seconds: float
    """Time that it took to sample the groups that arrived since the last batch."""
    wait_seconds: float
    """How long the learner waited for it."""
    lag_seconds: float
    """From the last publication until the engine used it."""
    lag_versions: int
    """Versions that the engine was behind the learner when its newest groups arrived."""
    buffered: int
    """Groups that are ready beyond this batch."""
    buffered_bytes: int
    samplers: tuple[int, ...] = ()
    """The version that each sampler has proven, of those that have one."""


FOR_EVER = Wait()


class Runtime(Protocol):
    """Samples with what was published last."""

    @property
    def buffer(self) -> Buffer: ...

    @property
    def decode(self) -> str:
        """How the engine computes tokens, in its own words; empty where it does not say."""
        ...

    @property
    def placement(self) -> dict[str, str]:
        """Which part of the run is where; empty where all of it is in this process."""
        ...

    def publish(self, publication: Publication) -> None:
        """Hand new parameters to the engine; it may use them a little later, but no batch is ever too stale."""
        ...

    def batch(self, arrived: Arrived, wait: Wait = FOR_EVER) -> Delivered | None:
        """Wait for the next batch. None if the wait ends first."""
        ...

    def ready(self) -> tuple[dict[str, object], Rollouts | None]:
        """The buffer for a checkpoint: its counters, and what waits in it."""
        ...

    def close(self) -> None: ...


class Inline:
    """Samples in the loop's own thread, as soon as the buffer admits: every batch is exactly as stale as it may be."""

    def __init__(self, collector: Collector, buffer: Buffer) -> None:
        self._collector: Collector = collector
        self._buffer: Buffer = buffer
        self._again: list[int] = sorted(buffer.waiting)  # after a resume: admitted, but never delivered
        self._lag: float = 0.0

    @property
    def buffer(self) -> Buffer:
        return self._buffer

    @property
    def decode(self) -> str:
        return decode_of(self._collector.engine)

    @property
    def placement(self) -> dict[str, str]:
        return {}

    def publish(self, publication: Publication) -> None:
        began = time.perf_counter()
        self._collector.load(publication)
        self._lag = time.perf_counter() - began

    def batch(self, arrived: Arrived, wait: Wait = FOR_EVER) -> Delivered:
        """Sample now. There is nothing to wait for, so `wait` is not used: the loop looks at signals between steps."""
        del wait
        began = time.perf_counter()
        while True:
            tickets = self._again + self._buffer.admit(self._collector.engine.version)
            self._again = []
            for part in in_batches(tickets, self._buffer.groups_per_batch):
                self._buffer.put(arrived(self._collector.collect(part)))
            taken = self._buffer.take()
            if taken is not None:
                seconds = time.perf_counter() - began
                return Delivered(
                    *taken, seconds, 0.0, self._lag, 0, *self._buffer.size, (self._collector.engine.version,)
                )

    def ready(self) -> tuple[dict[str, object], Rollouts | None]:
        return self._buffer.state(), self._buffer.ready_rollouts()

    def close(self) -> None:
        self._collector.close()


def decode_of(engine: Engine | AsyncEngine) -> str:
    """How an engine computes tokens. Engines of other people need not say."""
    return str(getattr(engine, "decode", ""))


def in_batches(tickets: Sequence[int], size: int) -> list[list[int]]:
    """Tickets cut into what is sampled at once: a batch's worth, so that both runtimes sample in the same portions."""
    return [list(tickets[first : first + size]) for first in range(0, len(tickets), size)]

"""The only place that says what a worker is: tickets and parameters in, rollouts out, each when it is done.

The worker here samples in this process, in the event loop of its collector. A sampler process has one inside, and an
engine that is reached from the learner's own process has one there.
"""

import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from trimtab.errors import EngineGone, TrimtabError
from trimtab.rollout.collect import Collector
from trimtab.rollout.publication import Publication
from trimtab.rollout.rollouts import Rollouts


@dataclass(frozen=True)
class Loaded:
    """The worker proved that it uses this version."""

    version: int
    decode: str = ""


@dataclass(frozen=True)
class Sampled:
    """The groups of one order, whole."""

    rollouts: Rollouts
    seconds: float
    """Time spent on it that was not spent on an order before it."""


@dataclass(frozen=True)
class Failed:
    """Something is wrong that another try would not repair."""

    text: str


@dataclass(frozen=True)
class Gone:
    """The worker is dead or out of reach. Its tickets can be given to others."""

    text: str
    detail: str = ""
    """What it printed last, or where it failed; told when nothing helps any more."""


@dataclass(frozen=True)
class Noted:
    """Something that people should know. Nothing is lost, and it is no sign of life."""

    text: str


Said = Loaded | Sampled | Failed | Gone | Noted
Hear = Callable[[Said], None]
"""Called from a thread of the worker."""


class Worker(Protocol):
    """Samples what it is ordered to. It never blocks its caller."""

    def order(self, tickets: Sequence[int]) -> None:
        """Sample one group for each ticket, beside what was ordered before."""
        ...

    def publish(self, publication: Publication) -> None:
        """Use these parameters as soon as possible; a newer publication replaces one that was not used yet."""
        ...

    def close(self, seconds: float) -> None:
        """End it, within this time if it can."""
        ...


class Local:
    """A `Worker` in this process. New parameters stop the answers in flight; what is left of them is asked for anew."""

    def __init__(self, collector: Collector, hear: Hear) -> None:
        self._collector: Collector = collector
        self._hear: Hear = hear
        self._newest: int = -1
        self._told: float = 0.0
        self._is_closed: bool = False

    def order(self, tickets: Sequence[int]) -> None:
        self._start(self._sample(list(tickets)))

    def publish(self, publication: Publication) -> None:
        self._newest = publication.version
        self._start(self._load(publication))

    def close(self, seconds: float) -> None:
        del seconds  # the loop has a limit of its own
        self._is_closed = True
        self._collector.close()

    async def _sample(self, tickets: list[int]) -> None:
        began = time.perf_counter()
        rollouts = await self._collector.groups(tickets)
        now = time.perf_counter()
        seconds, self._told = now - max(began, self._told), now
        self._hear(Sampled(rollouts, seconds))

    async def _load(self, publication: Publication) -> None:
        if publication.version < self._newest:
            return
        version = await self._collector.load_beside(publication)
        self._hear(Loaded(version, str(getattr(self._collector.engine, "decode", ""))))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._collector.loop.start(work).add_done_callback(self._ended)

    def _ended(self, done: "Future[None]") -> None:
        error = None if done.cancelled() or self._is_closed else done.exception()
        if isinstance(error, EngineGone):
            self._hear(Gone(str(error)))
        elif isinstance(error, TrimtabError):
            self._hear(Failed(str(error)))
        elif error is not None:
            self._hear(Gone(f"the sampler raised {type(error).__name__}", "".join(traceback.format_exception(error))))

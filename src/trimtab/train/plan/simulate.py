"""The only place that runs the real runtime, pool and buffer under a virtual clock, with samplers that only take time.

Who is asked for what, with which version, and which groups make a batch is decided by the code that decides it in a run
(`runtimes/beside.py`, `rollout/pool.py`, `rollout/buffer.py`). Only durations are made up: waiting moves the clock to
the next event.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from trimtab.errors import EngineError
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather_groups
from trimtab.rollout.publication import Publication
from trimtab.rollout.rollouts import Rollouts
from trimtab.train.runtimes.beside import Beside
from trimtab.train.runtimes.schedule import Clock, Note, quiet
from trimtab.train.runtimes.worker import Hear, Loaded, Sampled


class Durations(Protocol):
    """How long things take, in seconds."""

    def sample(self, seat: int, tickets: Sequence[int], busy: float) -> float:
        """From an order to its groups; `busy` is how long the sampler is still at work on orders before."""
        ...

    def load(self, seat: int, version: int) -> float:
        """From sending parameters to the proof that they are in use."""
        ...

    def learn(self, step: int) -> float:
        """From taking a batch to publishing what was learned from it."""
        ...

    def rest(self, step: int) -> float:
        """From publishing to asking for the batch of this step: records, evaluation, checkpoints."""
        ...


@dataclass
class Virtual:
    """A clock that moves when somebody waits, and the events that are to come."""

    at: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(
        default_factory=list[tuple[float, int, Callable[[], None]]]
    )
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def now(self) -> float:
        return self.at

    def later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.at + seconds, next(self._numbers), event))

    def wait(self, timeout: float | None = None) -> object:
        """Move to the next event, however far it is. Nothing else can change while nobody computes."""
        if not self._events:
            raise EngineError(
                "plan: the learner waits for a batch and no sampler has anything to do, so the run would stand still. "
                "This is a bug in trimtab; please report it with the settings."
            )
        self.at, _, event = heapq.heappop(self._events)
        event()
        return True

    def pass_time(self, seconds: float) -> None:
        """Be busy for so long, while events happen."""
        end = self.at + seconds
        while self._events and self._events[0][0] <= end:
            _ = self.wait()
        self.at = end

    def notify_all(self) -> None:
        """Whoever waits looks after each event anyway."""

    def __enter__(self) -> "Virtual":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None:
        """One thread: nobody else can hold it."""


@dataclass(eq=False)
class Order:
    """Tickets at a sampler, and the version with which their first token was drawn."""

    tickets: tuple[int, ...]
    version: int = -1


@dataclass
class Pretend:
    """A worker that samples nothing and takes its time."""

    seat: int
    hear: Hear
    virtual: Virtual
    durations: Durations
    slots: int
    """Groups that are sampled at once; others wait at the sampler."""
    version: int = -1
    free_at: float = 0.0
    busy_seconds: float = 0.0
    running: int = 0
    waiting: "list[Order]" = field(default_factory=list["Order"])

    def order(self, tickets: Sequence[int]) -> None:
        """Groups come back whole. Their oldest token is of the version in use when the order is begun."""
        now = self.virtual.now()
        seconds = self.durations.sample(self.seat, tickets, max(0.0, self.free_at - now))
        self.busy_seconds += max(0.0, now + seconds - max(now, self.free_at))
        self.free_at = max(self.free_at, now + seconds)
        one = Order(tuple(tickets))
        self.waiting.append(one)
        self._begin()
        self.virtual.later(seconds, lambda: self._end(one))

    def _begin(self) -> None:
        while self.waiting and self.running < self.slots:
            one = self.waiting.pop(0)
            one.version = self.version
            self.running += len(one.tickets)

    def _end(self, one: "Order") -> None:
        if one in self.waiting:  # it took less time than those before it
            self.waiting.remove(one)
            one.version = self.version
        else:
            self.running -= len(one.tickets)
        self._begin()
        self.hear(Sampled(groups(one.tickets, one.version), 0.0))

    def publish(self, publication: Publication) -> None:
        self.virtual.later(self.durations.load(self.seat, publication.version), lambda: self._load(publication.version))

    def _load(self, version: int) -> None:
        self.version = version
        self.hear(Loaded(version))

    def close(self, seconds: float) -> None:
        """Nothing was started."""


def groups(tickets: Sequence[int], version: int) -> Rollouts:
    """The smallest rollouts with these tickets and this version: a prompt of one token and an answer of one."""
    one = Episode([0, 0], [False, True], torch.zeros(1), [version], [0], ended=True, reward=0.0, status="ok")
    return gather_groups(tickets, [""] * len(tickets), [one] * len(tickets))


@dataclass(frozen=True)
class Batch:
    """A batch as it was taken: when, after which wait, which tickets, and the version of its oldest token."""

    step: int
    at: float
    waited: float
    tickets: tuple[int, ...]
    oldest: int

    @property
    def staleness(self) -> int:
        """Updates between its oldest token and the step that trains it."""
        return self.step - self.oldest


@dataclass(frozen=True)
class Course:
    """How a run went, or would go."""

    batches: tuple[Batch, ...]
    seconds: float
    busy: tuple[float, ...]
    """Seconds that each sampler was at work."""

    @property
    def waited(self) -> float:
        """Seconds that the learner waited."""
        return sum(batch.waited for batch in self.batches)

    @property
    def staleness(self) -> float:
        """Of the oldest token, mean over batches."""
        return sum(batch.staleness for batch in self.batches) / max(1, len(self.batches))


def simulate(
    durations: Durations,
    *,
    steps: int,
    groups_per_batch: int,
    staleness: int,
    samplers: int,
    room: int,
    slots: int,
    note: Note = quiet,
) -> Course:
    """Run the loop of a run: take a batch, learn, publish."""
    virtual, workers = Virtual(), list[Pretend]()

    def start(seat: int, hear: Hear) -> Pretend:
        workers.append(Pretend(seat, hear, virtual, durations, slots))
        return workers[-1]

    clock = Clock(virtual.now, virtual)
    buffer = Buffer(groups_per_batch, staleness)
    runtime = Beside(start, buffer, workers=samplers, room=room, clock=clock, note=note)
    runtime.publish(Publication(0, {}))
    batches: list[Batch] = []
    for step in range(steps):
        virtual.pass_time(durations.rest(step))
        began = virtual.now()
        delivered = runtime.batch(lambda rollouts: rollouts)
        assert delivered is not None, "nobody asks a plan to stop"
        taken = delivered.rollouts
        now = virtual.now()
        batches.append(Batch(step, now, now - began, tuple(taken.tickets), taken.oldest_version))
        virtual.pass_time(durations.learn(step))
        runtime.publish(Publication(step + 1, {}))
    return Course(tuple(batches), virtual.now(), tuple(worker.busy_seconds for worker in workers))

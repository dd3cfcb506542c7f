"""The only place that learns while others sample: workers with engines, and the buffer between them and the learner.

It does not know where its workers run. Whatever they say arrives in their own threads, under one lock; the pool
decides who samples what. A worker that is lost is started again a few times, and its tickets go to whoever may have
them.
"""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from trimtab.errors import EngineError
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.join import join
from trimtab.rollout.pool import Member, Pool
from trimtab.rollout.publication import Publication
from trimtab.rollout.rollouts import Rollouts
from trimtab.train.runtimes.inline import FOR_EVER, Arrived, Delivered, Wait
from trimtab.train.runtimes.schedule import Changed, Clock, Note, quiet
from trimtab.train.runtimes.worker import Gone, Hear, Loaded, Noted, Said, Sampled, Worker

POLL_SECONDS = 0.2
"""How often a waiting learner looks at signals and at the time."""
NOTICE_SECONDS = 60.0
"""After this long without a batch a notice is printed, and again each time it has passed."""
PATIENCE = "TRIMTAB_SAMPLER_SECONDS"
"""Environment variable: how long a sampler may be silent before the run gives up on it."""
PATIENCE_SECONDS = 3600.0
"""Its default. One order is a batch of prompts. On a CPU, with a large model, that can take many minutes."""
CLOSE_SECONDS = 5.0
"""How long a worker may take to end when the run is over."""
ORDERS_PER_BATCH = 4
"""An order comes back whole, so smaller ones come back sooner, and each costs a message. Without staleness the batch is
waited for anyway, and one order keeps the rows together that `inline` has together."""
PLENTY = 0.5
"""A worker with more tickets than this share of its room is left alone. It gets the newest parameters when it has less,
so tokens are a little older, within the limit, and fewer answers are interrupted."""
RESTARTS = 3
"""How often a lost worker is started again, over all workers of a run. What fails more often is not an accident."""


@dataclass
class Post:
    """A worker at its place in the pool."""

    seat: int
    """Whose place it has: that of the first worker, the second, …; one that replaces it sits there too."""
    worker: Worker
    heard: float
    """When it last said something, or was given something to do after it had nothing."""
    sent: int = -1
    """The version that it was sent last."""


class Beside:
    """Workers that sample while the learner learns."""

    def __init__(
        self,
        start: Callable[[int, Hear], Worker],
        buffer: Buffer,
        *,
        workers: int,
        room: int,
        restarts: int | None = None,
        name: str = "processes",
        clock: Clock | None = None,
        note: Note = quiet,
    ) -> None:
        """`start` makes the worker of a seat; each takes `room` tickets at once. `name` is what people call it; `note`
        hears what happens when."""
        self._name: str = name
        self._allowed: int = RESTARTS if restarts is None else restarts
        self._clock: Clock = clock or Clock()
        self._note: Note = note
        self._start: Callable[[int, Hear], Worker] = start
        self._room: int = room
        self._pool: Pool = Pool(buffer)
        self._posts: dict[int, Post] = {}
        self._ending: list[threading.Thread] = []
        self._restarts: int = self._allowed
        self._newest: Publication | None = None
        self._published: dict[int, float] = {}
        self._arrived: list[Rollouts] = []
        self._notes: list[str] = []
        self._error: str = ""
        self._decode: str = ""
        self._sample_seconds: float = 0.0
        self._lag: tuple[float, int] = (0.0, 0)
        self._is_closing: bool = False
        self._changed: Changed = self._clock.changed
        with self._changed:
            for seat in range(workers):
                self._add(seat)

    @property
    def buffer(self) -> Buffer:
        return self._pool.buffer

    @property
    def decode(self) -> str:
        return self._decode

    @property
    def placement(self) -> dict[str, str]:
        with self._changed:
            found = {f"sampler {post.seat}": str(getattr(post.worker, "place", "")) for post in self._posts.values()}
        also = getattr(self._start, "placement", dict[str, str])
        return {**also(), **{role: place for role, place in found.items() if place}}

    def publish(self, publication: Publication) -> None:
        """Copy the parameters now, so that the learner may change its own; workers hash and send the copy."""
        copied = publication.copy()
        with self._changed:
            self._newest = copied
            self._published[copied.version] = self._clock.now()
            self._note({"at": self._clock.now(), "kind": "publish", "version": copied.version})
            self._offer()

    def batch(self, arrived: Arrived, wait: Wait = FOR_EVER) -> Delivered | None:
        began = self._clock.now()
        self._note({"at": began, "kind": "ask"})
        notices = 1
        while True:
            fresh = self._take_arrived(wait.say)
            fresh = None if fresh is None else arrived(fresh)
            with self._changed:
                if fresh is not None:
                    self.buffer.put(fresh)
                self._dispatch()
                taken = self.buffer.take()
                waited = self._clock.now() - began
                if taken is not None:
                    self._tell("batch", taken[0])
                    sampled, self._sample_seconds = self._sample_seconds, 0.0
                    return Delivered(*taken, sampled, waited, *self._lag, *self.buffer.size, self._versions())
                if not self._arrived and not self._error:
                    _ = self._changed.wait(timeout=POLL_SECONDS)
            if wait.is_over():
                return None
            if waited > notices * NOTICE_SECONDS:
                notices += 1
                wait.say(f"no batch from the sampler for {waited:.0f} s; {self._doing()}")
            self._give_up_on_silence()

    def ready(self) -> tuple[dict[str, object], Rollouts | None]:
        with self._changed:
            return self.buffer.state(), self.buffer.ready_rollouts()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            workers, ending = [post.worker for post in self._posts.values()], list(self._ending)
        for worker in workers:
            worker.close(CLOSE_SECONDS)
        for thread in ending:
            thread.join(CLOSE_SECONDS)
        getattr(self._start, "close", lambda: None)()

    def _versions(self) -> tuple[int, ...]:
        """What the workers sample with. The caller holds the lock."""
        return tuple(member.version for member in self._pool.members.values() if member.version >= 0)

    def _take_arrived(self, say: Callable[[str], None]) -> Rollouts | None:
        """Take what arrived since the last call, and tell what happened meanwhile."""
        with self._changed:
            notes, self._notes = self._notes, []
            fresh, self._arrived = self._arrived, []
            error = self._error
        for note in notes:
            say(note)
        if error:
            raise EngineError(error)
        return join(fresh) if fresh else None

    def _add(self, seat: int) -> None:
        """Start a worker. It is given tickets when it has proven what it samples with. The caller holds the lock."""
        number = self._pool.join(self._room)
        worker = self._start(seat, partial(self._hear, number))
        self._posts[number] = Post(seat, worker, self._clock.now())
        self._offer()

    def _offer(self) -> None:
        """Send the newest parameters to every worker that does not have plenty to do. The caller holds the lock.

        New parameters stop the answers in flight, and all that they have read and written is read again.
        """
        if self._newest is None:
            return
        for number, post in self._posts.items():
            member = self._pool.members[number]
            if post.sent < self._newest.version and len(member.tickets) <= PLENTY * member.room:
                if not self._owes(member):
                    post.heard = self._clock.now()  # it had nothing to do before
                post.sent = version = self._newest.version
                self._note({"at": self._clock.now(), "kind": "send", "seat": post.seat, "version": version})
                post.worker.publish(self._newest)

    def _dispatch(self) -> None:
        """Order what may be sampled with the versions that the workers have proven. The caller holds the lock."""
        for number, tickets in self._pool.dispatch().items():
            post = self._posts[number]
            if set(tickets) == self._pool.members[number].tickets:
                post.heard = self._clock.now()  # it had nothing to do before
            parts = ORDERS_PER_BATCH if self.buffer.staleness else 1
            size = -(-self.buffer.groups_per_batch // parts)
            for first in range(0, len(tickets), size):
                part = tickets[first : first + size]
                self._note({"at": self._clock.now(), "kind": "order", "seat": post.seat, "tickets": part})
                post.worker.order(part)

    def _owes(self, member: Member) -> bool:
        return bool(member.tickets) or member.version < self._posts[member.number].sent

    def _hear(self, number: int, said: Said) -> None:
        """Take in what a worker says. A lost one is not heard any more."""
        with self._changed:
            post = self._posts.get(number)
            if post is None or self._is_closing:
                return
            if isinstance(said, Noted):
                self._notes.append(said.text)
                self._changed.notify_all()
                return
            post.heard = self._clock.now()
            if isinstance(said, Loaded):
                self._hear_version(number, said)
            elif isinstance(said, Sampled):
                self._hear_groups(number, said)
            elif isinstance(said, Gone):
                self._lose(number, said)
            else:
                self._error = said.text
            if not self._error:
                self._dispatch()
                self._offer()
            self._changed.notify_all()

    def _tell(self, kind: str, rollouts: Rollouts, seat: int = -1) -> None:
        """Note groups that arrived or were taken."""
        tokens = rollouts.num_tokens
        held = {"seat": seat, "version": rollouts.oldest_version, "tickets": rollouts.tickets, "tokens": tokens}
        self._note({"at": self._clock.now(), "kind": kind, **held})

    def _hear_version(self, number: int, said: Loaded) -> None:
        seat = self._posts[number].seat
        self._note({"at": self._clock.now(), "kind": "loaded", "seat": seat, "version": said.version})
        self._pool.prove(number, said.version)
        self._decode = said.decode
        published = self._published.get(said.version)
        self._published = {version: at for version, at in self._published.items() if version >= said.version}
        if published is not None:
            self._lag = (self._clock.now() - published, self._lag[1])

    def _hear_groups(self, number: int, said: Sampled) -> None:
        self._sample_seconds += said.seconds
        self._tell("sampled", said.rollouts, self._posts[number].seat)
        kept = self._pool.accept(number, said.rollouts)
        if kept is not None:
            self._arrived.append(kept)
            newest = 0 if self._newest is None else self._newest.version
            self._lag = (self._lag[0], max(0, newest - kept.oldest_version))
        if self._pool.members[number].version < 0:
            self._lose(number, Gone("the sampler sent tokens of older parameters than it had proven to use"))

    def _lose(self, number: int, said: Gone) -> None:
        """Take a worker out. Another one is started in its place while that may help."""
        lost = self._pool.leave(number)
        post = self._posts.pop(number)
        # Not here: it may be its own thread that says so.
        self._ending.append(threading.Thread(target=post.worker.close, args=(CLOSE_SECONDS,), daemon=True))
        self._ending[-1].start()
        if self._restarts:
            self._restarts -= 1
            self._add(post.seat)
            self._notes.append(f"warning: {said.text}; it is started again, and {len(lost)} prompts are sampled anew")
        elif self._posts:
            self._notes.append(f"warning: {said.text}; {len(self._posts)} are left, and sample its {len(lost)} prompts")
        else:
            self._error = (
                f"{self._name}: {said.text}, so no batch can come; {self._allowed} restarts did not help. The run can "
                "be resumed from its last checkpoint; if it happens again, train.runtime=inline shows the error in "
                f"place. {said.detail}"
            )

    def _quietest(self) -> tuple[Member, float]:
        """Of the workers that owe something, or else of all, the one that has said nothing for longest."""
        members = [self._pool.members[number] for number in self._posts]
        owing = [member for member in members if self._owes(member)] or members
        member = min(owing, key=lambda one: self._posts[one.number].heard)
        return member, self._clock.now() - self._posts[member.number].heard

    def _doing(self) -> str:
        """What the sampler that keeps the learner waiting is doing, by its last messages."""
        with self._changed:
            if not self._posts:
                return "no sampler is left"
            member, silent_seconds = self._quietest()
            silent = f"silent for {silent_seconds:.0f} s"
            if member.version < 0:
                return f"it has not loaded the first parameters yet ({silent})"
            if not member.tickets:
                return f"it has version {member.version} and nothing to sample ({silent})"
            first, last = min(member.tickets), max(member.tickets)
            return f"it is sampling prompts {first} to {last} with version {member.version} ({silent})"

    def _give_up_on_silence(self) -> None:
        limit = float(os.environ.get(PATIENCE) or PATIENCE_SECONDS)
        with self._changed:
            if not self._posts or self._quietest()[1] <= limit:
                return
        raise EngineError(
            f"{self._name}: the sampler has been silent for {limit:g} s, so it seems to hang; {self._doing()}. The "
            "run can be resumed from its last checkpoint. If one batch really takes that long, raise the limit: "
            f"{PATIENCE}={2 * limit:g} in the environment; or train.runtime=inline shows where it hangs."
        )

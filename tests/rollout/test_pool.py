"""Engines that are slow, die, come back with old parameters or answer twice change no batch.

A state machine drives the real buffer and the real pool. Engines are sets of tickets that a rule answers, in any order;
there is no clock. What a batch must hold is computed beside it from the tickets alone.
"""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from mutants.edit import edited

from trimtab.rollout.buffer import Buffer
from trimtab.rollout.episode import Episode
from trimtab.rollout.join import gather, join
from trimtab.rollout.pool import Pool
from trimtab.rollout.rollouts import Rollouts

MOST = 4
"""Engines at once."""


def is_constant(ticket: int) -> bool:
    """A fact of the prompt, so that every order of events has the same right batches."""
    return (ticket * 2654435761) % 5 < 2


def group(ticket: int, versions: list[int]) -> Rollouts:
    """Two answers, each drawn with these versions, token after token."""
    rewards = (1.0, 1.0) if is_constant(ticket) else (0.0, 1.0)
    count = len(versions)
    return gather(
        ticket,
        "",
        [
            Episode([7, *range(count)], [False] + [True] * count, torch.zeros(count), versions, [0] * count, ended=True,
                    reward=reward, status="ok")
            for reward in rewards
        ],
    )  # fmt: skip


def right_batches(size: int, refills: int, count: int) -> list[tuple[list[int], int]]:
    """The batches of a run, with how many groups each dropped: the tickets in order, and nothing else."""
    batches: list[tuple[list[int], int]] = []
    ticket = 0
    for _ in range(count):
        kept, dropped = list[int](), 0
        while len(kept) < size:
            if is_constant(ticket) and dropped < refills * size:
                dropped += 1
            else:
                kept.append(ticket)
            ticket += 1
        batches.append((kept, dropped))
    return batches


class Machine(RuleBasedStateMachine):
    """Learner, buffer, pool and engines."""

    @initialize(
        size=st.integers(1, 3), staleness=st.integers(0, 2), refills=st.integers(0, 2), engines=st.integers(1, 3)
    )
    def begin(self, size: int, staleness: int, refills: int, engines: int) -> None:
        self.size, self.staleness, self.refills = size, staleness, refills
        self.pool = Pool(Buffer(size, staleness, refills))
        self.version = 0
        self.taken: list[tuple[list[int], int]] = []
        self.asked: dict[int, dict[int, int]] = {}
        """For every engine that lives, the tickets it was given and its version then."""
        self.said: list[tuple[int, Rollouts]] = []
        for _ in range(engines):
            self.start(engines)
        self.load_all()

    @rule()
    def load_all(self) -> None:
        """Every engine gets the newest version."""
        for number in self.asked:
            self.pool.prove(number, self.version)
        self.give_out()

    @rule()
    def answer_all(self) -> None:
        """Whatever is being sampled comes back, the last engine's first, and the learner takes what it can."""
        for number, given in sorted(self.asked.items(), reverse=True):
            if given:
                self.arrive(number, join([group(ticket, [version]) for ticket, version in given.items()]))
        self.learn()

    @rule(room=st.integers(1, 4))
    def start(self, room: int) -> None:
        if len(self.asked) < MOST:
            self.asked[self.pool.join(room)] = {}

    @rule(data=st.data(), back=st.integers(0, 3))
    def load(self, data: Any, back: int) -> None:
        """An engine proves a version: the newest, or an older one after it was away."""
        if self.asked:
            number = data.draw(st.sampled_from(sorted(self.asked)))
            self.pool.prove(number, max(0, self.version - back))
            self.give_out()

    @rule(data=st.data())
    def die(self, data: Any) -> None:
        if self.asked:
            number = data.draw(st.sampled_from(sorted(self.asked)))
            lost = self.pool.leave(number)
            assert set(lost) == set(self.asked.pop(number))
            self.give_out()

    @rule(data=st.data())
    def answer(self, data: Any) -> None:
        """Some tickets of one engine come back together. Parameters may have changed in the middle of an answer."""
        busy = [number for number, given in sorted(self.asked.items()) if given]
        if busy:
            number = data.draw(st.sampled_from(busy))
            chosen = data.draw(st.lists(st.sampled_from(sorted(self.asked[number])), min_size=1, unique=True))
            now = max(self.pool.members[number].version, 0)
            parts = [
                group(ticket, [self.asked[number][ticket], max(now, self.asked[number][ticket])]) for ticket in chosen
            ]
            self.arrive(number, join(parts))

    @rule(data=st.data(), back=st.integers(1, 3))
    def answer_with_old_parameters(self, data: Any, back: int) -> None:
        """An engine whose parameters are not those it claimed; its stamps are honest."""
        busy = [number for number, given in sorted(self.asked.items()) if given]
        if busy and self.version:
            number = data.draw(st.sampled_from(busy))
            ticket = data.draw(st.sampled_from(sorted(self.asked[number])))
            self.arrive(number, group(ticket, [self.version, max(0, self.asked[number][ticket] - back)]))

    @rule(data=st.data())
    @precondition(lambda self: self.said)
    def answer_twice(self, data: Any) -> None:
        """What was said before is said again, perhaps by an engine that is dead."""
        self.arrive(*data.draw(st.sampled_from(self.said[-6:])))

    @rule()
    def learn(self) -> None:
        """The learner takes a batch if there is one: it is right, and no token in it is too old."""
        taken = self.pool.buffer.take()
        if taken is not None:
            assert self.version - taken[0].oldest_version <= self.staleness
            self.taken.append((taken[0].tickets, taken[1]))
            assert self.taken[-1] == right_batches(self.size, self.refills, len(self.taken))[-1]
            self.version += 1
            self.give_out()

    @rule()
    def resume(self) -> None:
        """A checkpoint, a crash, a resume: what was in flight is sampled again by engines that have proven nothing."""
        buffer = Buffer(self.size, self.staleness, self.refills)
        buffer.restore(self.pool.buffer.state(), self.pool.buffer.ready_rollouts())
        rooms = [member.room for member in self.pool.members.values()]
        self.pool, self.asked, self.said = Pool(buffer), {}, []
        for room in rooms:
            self.start(room)

    def give_out(self) -> None:
        for number, tickets in self.pool.dispatch().items():
            version, buffer = self.pool.members[number].version, self.pool.buffer
            assert version >= 0
            for ticket in tickets:  # admission, computed anew
                ahead = sum(other < ticket for other in {*buffer.waiting, *buffer.ready})
                assert len(self.taken) + ahead // self.size <= version + self.staleness
            self.asked[number] |= dict.fromkeys(tickets, version)

    def arrive(self, number: int, rollouts: Rollouts) -> None:
        self.said.append((number, rollouts))
        kept = self.pool.accept(number, rollouts)
        for ticket in rollouts.tickets:
            _ = self.asked.get(number, {}).pop(ticket, None)
        if kept is not None:
            self.pool.buffer.put(kept)
        self.give_out()

    @invariant()
    def every_ticket_is_in_one_place(self) -> None:
        if not hasattr(self, "pool"):
            return
        buffer = self.pool.buffer
        held = [ticket for member in self.pool.members.values() for ticket in member.tickets]
        assert sorted([*held, *self.pool.again]) == sorted(buffer.waiting)
        assert all(len(member.tickets) <= member.room for member in self.pool.members.values())
        trained = [ticket for tickets, _ in self.taken for ticket in tickets]
        dropped = sum(count for _, count in self.taken) + sum(buffer.dropped.values())
        assert trained == sorted(set(trained))
        assert len(trained) + dropped + len(buffer.waiting) + len(buffer.ready) == buffer.next_ticket

    def teardown(self) -> None:
        """Nothing is lost: with one good engine, the next batches come."""
        if not hasattr(self, "pool"):
            return
        for number in list(self.asked):
            _ = self.pool.leave(number)
        self.asked = {}
        good = self.pool.join(64)
        self.asked[good] = {}
        until = len(self.taken) + 2
        for _ in range(200):
            self.pool.prove(good, self.version)
            self.give_out()
            if self.asked[good]:
                ticket = max(self.asked[good])  # the newest first: the worst order
                self.arrive(good, group(ticket, [self.asked[good][ticket]]))
            self.learn()
            if len(self.taken) >= until:
                return
        raise AssertionError("two more batches never came")


QUICK = settings(
    stateful_step_count=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
HUNT = settings(QUICK, max_examples=100, phases=(Phase.generate,))
"""Without shrinking: a planted fault only has to be found."""


@pytest.mark.parametrize("examples", [120, pytest.param(300, marks=pytest.mark.slow)])
def test_no_order_of_events_changes_a_batch_or_loses_a_ticket(examples: int) -> None:
    run_state_machine_as_test(Machine, settings=settings(QUICK, max_examples=examples))


FAULTS = [
    (Pool, "leave", "[*self.again, *lost]", "[*self.again]"),  # tickets of a dead engine are lost
    (Pool, "_ticket_for", "self.buffer.may_sample(self.again[0], member.version)", "True"),  # not admitted again
    (Pool, "accept", "(member.tickets if member is not None else set[int]())", "set(rollouts.tickets)"),  # twice
    (Pool, "accept", "member.tickets -= expected", "pass"),  # answered, and still counted as being sampled
    (Pool, "accept", "[*self.again, *stale]", "[*self.again]"),  # refused, and never sampled anew
    (Pool, "accept", "expected - stale", "expected"),  # the oldest token does not count
    (Pool, "_stale", "rollouts.oldest_version", "int(rollouts.version.max())"),  # the newest token counts
    (Pool, "dispatch", "member.version >= 0", "True"),  # an engine that proved nothing
    (Pool, "dispatch", "len(member.tickets) < min(member.room, share)", "True"),  # more than it has room for
    (Pool, "__post_init__", "*self.buffer.waiting", "*()"),  # what was in flight at a checkpoint
    (Buffer, "admit", "self.staleness + 1", "self.staleness + 2"),
    (Buffer, "may_sample", "version + self.staleness", "version + self.staleness + 1"),
    (Buffer, "_drop_from", "first <= ticket < end", "first <= ticket"),  # dropped by arrival
    (Buffer, "_drop_from", "< end)", "< end)[::-1]"),
    (Buffer, "take", "any(ticket in self.waiting for ticket in order)", "False"),
]  # fmt: skip
LATE = (
    ("_stale", "rollouts.oldest_version"),
    ("dispatch", "member.version >= 0"),
    ("may_sample", "version + self.staleness"),
)
"""Faults that take the most examples to be found; others break the same limit of staleness, and are found at once."""


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [pytest.param(*fault, marks=pytest.mark.slow if fault[1:3] in LATE else ()) for fault in FAULTS],
)
def test_a_planted_fault_is_found(owner: type, name: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, edited(vars(owner)[name], old, new))
    with pytest.raises(Exception):  # noqa: B017 - an assertion, a refusal, or a group of them
        run_state_machine_as_test(Machine, settings=HUNT)


@pytest.mark.parametrize("staleness", [0, 1])
def test_the_first_to_prove_a_version_leaves_the_others_their_share(staleness: int) -> None:
    pool = Pool(Buffer(8, staleness))
    first, second = pool.join(100), pool.join(100)
    pool.prove(first, 0)
    pool.prove(second, 0)
    both = pool.dispatch()
    assert [len(both[number]) for number in (first, second)] == [4 * (staleness + 1)] * 2
    for number, tickets in both.items():
        for ticket in tickets:
            pool.buffer.put(pool.accept(number, group(ticket, [0])))  # type: ignore[arg-type]
    assert pool.buffer.take() is not None
    pool.prove(first, 1)
    assert len(pool.dispatch()[first]) == (4 if staleness == 0 else 8)  # all of a batch only where there are two
    pool.prove(second, 1)
    assert [len(tickets) for tickets in pool.dispatch().values()] == ([4] if staleness == 0 else [])

"""The only place that decides which engine samples which ticket, and which groups of an engine are taken.

Every life of an engine is a member with a number of its own. A member may sample a ticket only with a version that it
has proven. One that dies leaves its tickets to the others; what it says afterwards is not heard. Nothing here waits,
sends or knows the clock: a runtime tells it what happened and asks what to do.
"""

from dataclasses import dataclass, field

from trimtab.rollout.buffer import Buffer
from trimtab.rollout.join import join
from trimtab.rollout.rollouts import Rollouts


@dataclass
class Member:
    """One life of one engine."""

    number: int
    room: int
    """Tickets that it takes at once; those that it cannot start yet wait at the engine, so that it is never idle."""
    version: int = -1
    """The version that it has proven; -1 before the first."""
    tickets: set[int] = field(default_factory=set[int])
    """What it is sampling."""


@dataclass
class Pool:
    """Engines that share the tickets of one buffer.

    Two members, versions 3 and 4, staleness 1: tickets of batch 5 go to the second only. If it dies, they wait until
    the first has proven version 4, although they were admitted before.
    """

    buffer: Buffer
    members: dict[int, Member] = field(default_factory=dict[int, Member])
    again: list[int] = field(default_factory=list[int])
    """Admitted tickets that nobody samples: lost with an engine, too stale, or restored with a checkpoint."""
    ignored: int = 0
    """Groups that arrived from somebody who was not asked for them, or not any more."""
    too_stale: int = 0
    """Groups with a token older than their batch allows. They are sampled anew."""
    _next: int = 0

    def __post_init__(self) -> None:
        self.again = sorted({*self.again, *self.buffer.waiting})

    def join(self, room: int) -> int:
        """A new member that has proven nothing. Returns its number."""
        self._next += 1
        self.members[self._next] = Member(self._next, room)
        return self._next

    def prove(self, number: int, version: int) -> None:
        """A member proved the version that it uses from now on; it may be an older one than before."""
        if number in self.members:
            self.members[number].version = version

    def leave(self, number: int) -> list[int]:
        """Take a member out. Its tickets, which are returned, will be given to others."""
        member = self.members.pop(number, None)
        lost = sorted(member.tickets) if member is not None else []
        self.again = sorted([*self.again, *lost])
        return lost

    def dispatch(self) -> dict[int, list[int]]:
        """Give out what may be sampled now: for each member that gets some, its tickets in their order.

        Whoever has most room left is next, of equals the one with the newest version. The oldest ticket that its
        version allows comes first. Nobody holds more than an equal share of all that can be in flight: otherwise the
        first to prove a version would take the whole batch, and the others, who prove it a moment later, none.
        """
        orders: dict[int, list[int]] = {}
        open_ones = [member for member in self.members.values() if member.version >= 0]
        share = -(-self.buffer.groups_per_batch * (self.buffer.staleness + 1) // max(1, len(open_ones)))
        while open_ones:
            member = min(open_ones, key=lambda one: (len(one.tickets) / one.room, -one.version, one.number))
            ticket = self._ticket_for(member) if len(member.tickets) < min(member.room, share) else None
            if ticket is None:
                open_ones.remove(member)
                continue
            member.tickets.add(ticket)
            orders.setdefault(member.number, []).append(ticket)
        return {number: sorted(tickets) for number, tickets in orders.items()}

    def _ticket_for(self, member: Member) -> int | None:
        """The oldest ticket that nobody samples. If its batch is too new for the member, so are those of all others."""
        if not self.again:
            return next(iter(self.buffer.admit(member.version, 1)), None)
        return self.again.pop(0) if self.buffer.may_sample(self.again[0], member.version) else None

    def accept(self, number: int, rollouts: Rollouts) -> Rollouts | None:
        """The groups that this member was asked for and that are fresh enough; the others are not heard, or asked anew.

        The oldest token of a group counts. A member that sends a group too stale did not use what it had proven: it
        gets nothing more until it proves a version again.
        """
        member = self.members.get(number)
        expected = set(rollouts.tickets) & (member.tickets if member is not None else set[int]())
        self.ignored += len(rollouts.tickets) - len(expected)
        if member is None or not expected:
            return None
        member.tickets -= expected
        stale = self._stale(rollouts, expected)
        self.too_stale += len(stale)
        member.version = -1 if stale else member.version
        self.again = sorted([*self.again, *stale])
        return _only(rollouts, expected - stale)

    def _stale(self, rollouts: Rollouts, expected: set[int]) -> set[int]:
        oldest = rollouts.oldest_version
        if all(self.buffer.may_sample(ticket, oldest) for ticket in expected):
            return set()
        oldest_of = {group.tickets[0]: group.oldest_version for group in rollouts.groups() if group.num_tokens}
        return {t for t in expected if t in oldest_of and not self.buffer.may_sample(t, oldest_of[t])}


def _only(rollouts: Rollouts, tickets: set[int]) -> Rollouts | None:
    """The groups with these tickets; each once, even if it came twice."""
    if rollouts.tickets == sorted(tickets):
        return rollouts
    kept = [group for group in rollouts.groups() if group.tickets[0] in tickets]
    return join(kept) if kept else None

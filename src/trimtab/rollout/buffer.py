"""The only place that decides which prompts may be sampled, and which groups make the next batch.

A ticket is a prompt's number in the run; batch b is made of the next `groups_per_batch` groups in the order of their
tickets. A group that would land in batch b may be sampled with version v only if b <= v + staleness: the learner starts
batch b with version b, so no batch is ever staler than the limit, and finished work never has to be thrown away.
The order matters: if a group overtook an older one, the older one would become staler than the limit. What a batch
drops is decided in the same order, when every earlier group is here. So batches do not depend on who arrives first.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trimtab.errors import EngineError
from trimtab.rollout.join import join
from trimtab.rollout.rollouts import Rollouts


@dataclass
class Buffer:
    """Groups between sampler and learner.

    Two groups per batch, staleness 1, version 0: tickets 0..3 are admitted (batches 0 and 1). When batch 0 is trained
    and version 1 is in use, tickets 4 and 5 are admitted too. With `refills` 1, a batch may drop up to two groups that
    teach nothing.
    """

    groups_per_batch: int
    staleness: int
    refills: int = 0
    teaches_nothing: Callable[[Rollouts], bool] = lambda group: group.is_constant
    """Whether a group may be replaced. The recipe decides which of its episodes vote."""
    next_ticket: int = 0
    batches_taken: int = 0
    waiting: set[int] = field(default_factory=set[int])
    """Admitted tickets whose groups are not here yet."""
    ready: dict[int, Rollouts] = field(default_factory=dict[int, Rollouts])
    """For each ticket that is here, what it arrived in: its group, alone or with others that are all here."""
    dropped: dict[int, int] = field(default_factory=dict[int, int])
    """Groups dropped so far for each batch that is not yet taken."""

    def admit(self, version: int, most: int | None = None) -> list[int]:
        """New tickets that may now be sampled with this version, `most` of them at most; each is given out once."""
        room = (version + self.staleness + 1 - self.batches_taken) * self.groups_per_batch
        count = max(0, room - len(self.waiting) - len(self.ready))
        count = count if most is None else min(count, most)
        tickets = list(range(self.next_ticket, self.next_ticket + count))
        self.next_ticket += count
        self.waiting.update(tickets)
        return tickets

    def may_sample(self, ticket: int, version: int) -> bool:
        """Whether an admitted ticket may be sampled with this version: again, or by another engine."""
        return self._batch_of(ticket) <= version + self.staleness

    def put(self, rollouts: Rollouts) -> None:
        """Take groups that have arrived. One that teaches nothing is dropped while its batch may still refill."""
        undecided = min(self.waiting, default=self.next_ticket)
        for portion in rollouts.groups() if self.refills else [rollouts]:
            for ticket in portion.tickets:
                self._expect(ticket)
            self.ready |= dict.fromkeys(portion.tickets, portion)
        if self.refills:
            self._drop_from(undecided)

    def _drop_from(self, first: int) -> None:
        """Decide about every ready ticket from `first` on that has no one left to wait for, in their order."""
        end = min(self.waiting, default=self.next_ticket)
        for ticket in sorted(ticket for ticket in self.ready if first <= ticket < end):
            if self._drops(self.ready[ticket]):
                del self.ready[ticket]

    def _expect(self, ticket: int) -> None:
        if ticket not in self.waiting:
            raise EngineError(
                f"Buffer.put: ticket {ticket} is not expected, so a group would train twice. "
                "Put each admitted ticket once."
            )
        self.waiting.remove(ticket)

    def _drops(self, group: Rollouts) -> bool:
        """Drop a group that teaches nothing, while its batch may still refill."""
        if not self.refills or not self.teaches_nothing(group):
            return False
        batch = self._batch_of(group.tickets[0])
        if self.dropped.get(batch, 0) >= self.refills * self.groups_per_batch:
            return False
        self.dropped[batch] = self.dropped.get(batch, 0) + 1
        return True

    def take(self) -> tuple[Rollouts, int] | None:
        """The next batch and how many groups were dropped for it; None while one of its groups has not arrived."""
        order = sorted([*self.waiting, *self.ready])[: self.groups_per_batch]
        if len(order) < self.groups_per_batch or any(ticket in self.waiting for ticket in order):
            return None
        taken = self._together(order)
        for ticket in order:
            del self.ready[ticket]
        dropped = self.dropped.pop(self.batches_taken, 0)
        self.batches_taken += 1
        return taken, dropped

    def _together(self, order: list[int]) -> Rollouts:
        """The groups of these tickets, in this order. What arrived together and leaves together is not taken apart."""
        portions = list({id(portion): portion for portion in map(self.ready.__getitem__, order)}.values())
        if [ticket for portion in portions for ticket in portion.tickets] != order:
            groups = {group.tickets[0]: group for portion in portions for group in portion.groups()}
            self.ready |= groups
            portions = [groups[ticket] for ticket in order]
        return join(portions)

    def _batch_of(self, ticket: int) -> int:
        ahead = sum(other < ticket for other in (*self.waiting, *self.ready))
        return self.batches_taken + ahead // self.groups_per_batch

    @property
    def size(self) -> tuple[int, int]:
        """Groups that are ready, and their bytes. Admission bounds both: what is admitted and not taken yet."""
        portions = {id(portion): portion for portion in self.ready.values()}
        return len(self.ready), sum(portion.num_bytes for portion in portions.values())

    def ready_rollouts(self) -> Rollouts | None:
        """The groups that are ready, in the order of their tickets; None where there are none."""
        return self._together(sorted(self.ready)) if self.ready else None

    def state(self) -> dict[str, Any]:
        """All but the ready groups, as JSON."""
        return {
            "next_ticket": self.next_ticket,
            "batches_taken": self.batches_taken,
            "waiting": sorted(self.waiting),
            "dropped": {str(batch): count for batch, count in self.dropped.items()},
        }

    def restore(self, state: dict[str, Any], ready: Rollouts | None) -> None:
        """Continue from `state`. Tickets whose groups had not arrived must be sampled again."""
        self.next_ticket, self.batches_taken = int(state["next_ticket"]), int(state["batches_taken"])
        self.waiting = set(state["waiting"])
        self.dropped = {int(batch): int(count) for batch, count in state["dropped"].items()}
        self.ready = {group.tickets[0]: group for group in ready.groups()} if ready is not None else {}

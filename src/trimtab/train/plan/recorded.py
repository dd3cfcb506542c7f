"""The only place that plays a recorded run again: its durations, through the real code, against what happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from trimtab.errors import ConfigError
from trimtab.train.plan.simulate import Batch, Course
from trimtab.train.runtimes.schedule import Event


@dataclass(frozen=True)
class Recorded:
    """`Durations` of a run, by what they were for, and its batches."""

    orders: dict[int, float]
    """Seconds from an order to its groups, by the order's first ticket."""
    loads: dict[tuple[int, int], float]
    """Seconds from sending a version to a sampler to its proof, by seat and version."""
    steps: tuple[float, ...]
    """Seconds from each batch to the publication that follows it."""
    rests: tuple[float, ...]
    """Seconds from each publication to the request for the next batch."""
    batches: tuple[Batch, ...]
    samplers: int
    sampled_tokens: int
    """Of all groups that arrived, those that no batch took included."""
    learned_tokens: int
    """Of the batches that were learned from."""
    groups: int
    """Groups that arrived."""
    busy: float
    """Seconds in which samplers had an order, over all of them."""

    def sample(self, seat: int, tickets: Sequence[int], busy: float) -> float:
        del seat, busy
        return self.orders.get(tickets[0], median(self.orders.values()))

    def load(self, seat: int, version: int) -> float:
        return self.loads.get((seat, version), median(self.loads.values()))

    def learn(self, step: int) -> float:
        return self.steps[step] if step < len(self.steps) else 0.0

    def rest(self, step: int) -> float:
        return self.rests[step] if step < len(self.rests) else 0.0

    @property
    def seconds(self) -> float:
        """From the first publication to the last batch."""
        return self.batches[-1].at

    @property
    def tokens_per_group(self) -> float:
        return self.sampled_tokens / self.groups

    @property
    def step_seconds(self) -> float:
        """From batch to batch, mean; the start, with its first load, is left out."""
        return (self.batches[-1].at - self.batches[0].at) / (len(self.batches) - 1)

    @property
    def engine_rate(self) -> float:
        """Tokens per second of one sampler while it had an order."""
        return self.sampled_tokens / self.busy

    @property
    def learner_rate(self) -> float:
        """Tokens per second of the learner while it did not wait, with everything that it does between two batches."""
        return self.learned_tokens / (sum(self.steps) + sum(self.rests))


def recorded(events: Sequence[Event]) -> Recorded:
    """What a schedule says. Of a run that was resumed, what happened before that is read."""
    events = _first_start(events)
    batches = [event for event in events if event.kind == "batch"]
    published = [event for event in events if event.kind == "publish"]
    if len(batches) < 2 or len(published) < 2 or published[0].version != 0:
        raise ConfigError(
            f"plan: the schedule holds {len(batches)} batches from version "
            f"{published[0].version if published else '–'} on, so there is no whole course to replay. Record a run "
            "from its first step to its last."
        )
    origin = published[0].at
    asked = [event.at for event in events if event.kind == "ask"]
    found = _batches(batches, asked, origin)
    rests = tuple(at - after.at for at, after in zip(asked, published, strict=False))
    steps = tuple(after.at - batch.at for batch, after in zip(batches, published[1:], strict=False))
    ordered = {event.tickets[0]: event for event in events if event.kind == "order"}
    sampled = [event for event in events if event.kind == "sampled" and event.tickets[0] in ordered]
    orders = {event.tickets[0]: event.at - ordered[event.tickets[0]].at for event in sampled}
    loads = _loads(events)
    seats = {event.seat for event in events if event.kind == "order"}
    busy = _covered([(ordered[event.tickets[0]].at, event.at, event.seat) for event in sampled])
    arrived, learned = sum(event.tokens for event in sampled), sum(event.tokens for event in batches[: len(steps)])
    count = sum(len(event.tickets) for event in sampled)
    return Recorded(orders, loads, steps, rests, found, len(seats), arrived, learned, count, busy)


def _first_start(events: Sequence[Event]) -> list[Event]:
    """Events up to where the numbers of published versions begin again. Threads write them nearly in their order."""
    newest, first = -1, list[Event]()
    for event in events:
        if event.kind == "publish":
            if first and event.version != newest + 1:
                break
            newest = event.version
        first.append(event)
    return sorted(first, key=lambda event: event.at)


def _batches(batches: Sequence[Event], asked: Sequence[float], origin: float) -> tuple[Batch, ...]:
    return tuple(
        Batch(step, event.at - origin, event.at - began, event.tickets, event.version)
        for step, (event, began) in enumerate(zip(batches, asked, strict=False))
    )


def _loads(events: Sequence[Event]) -> dict[tuple[int, int], float]:
    sent = {(event.seat, event.version): event.at for event in events if event.kind == "send"}
    loaded = {(event.seat, event.version): event.at for event in events if event.kind == "loaded"}
    return {key: at - sent[key] for key, at in loaded.items() if key in sent}


def _covered(spans: Sequence[tuple[float, float, int]]) -> float:
    """Seconds in which a seat had at least one order, over all seats."""
    total = 0.0
    for seat in {seat for *_, seat in spans}:
        end = float("-inf")
        for first, last, owner in sorted(spans):
            if owner == seat:
                total += max(0.0, last - max(first, end))
                end = max(end, last)
    return total


@dataclass(frozen=True)
class Agreement:
    """A replayed course beside the recorded one."""

    batches: int
    same_order: int
    """Batches with the same tickets in the same order."""
    same_staleness: int
    """Batches whose oldest token has the same version."""
    seconds: float
    recorded_seconds: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.recorded_seconds


def compare(course: Course, run: Recorded) -> Agreement:
    """How far a course agrees with what happened."""
    pairs = list(zip(course.batches, run.batches, strict=True))
    return Agreement(
        len(pairs),
        sum(one.tickets == other.tickets for one, other in pairs),
        sum(one.oldest == other.oldest for one, other in pairs),
        course.batches[-1].at,
        run.seconds,
    )

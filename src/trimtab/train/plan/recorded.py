"""The only place that plays a recorded run again: its durations, through the real code, against what happened."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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
        """Tokens per second of the learner while it did not wait."""
        return self.learned_tokens / sum(self.steps)


def recorded(events: Sequence[Event]) -> Recorded:
    """What a schedule says. A run that was resumed has several starts, whose clocks differ; the last one is read."""
    starts = [place for place, (one, two) in enumerate(pairwise(events), start=1) if two.at < one.at - 1e-6]
    events = events[starts[-1] :] if starts else events
    batches = [event for event in events if event.kind == "batch"]
    published = [event for event in events if event.kind == "publish"]
    if len(batches) < 2 or len(published) < 2 or published[0].version != 0:
        raise ConfigError(
            f"plan: the schedule holds {len(batches)} batches from version "
            f"{published[0].version if published else '–'} on, so there is no whole course to replay. Record a run "
            "from its first step to its last."
        )
    origin = published[0].at
    found = _batches(batches, published, origin)
    steps = tuple(after.at - batch.at for batch, after in zip(batches, published[1:], strict=False))
    ordered = {event.tickets[0]: event for event in events if event.kind == "order"}
    sampled = [event for event in events if event.kind == "sampled" and event.tickets[0] in ordered]
    orders = {event.tickets[0]: event.at - ordered[event.tickets[0]].at for event in sampled}
    loads = _loads(events)
    seats = {event.seat for event in events if event.kind == "order"}
    busy = _covered([(ordered[event.tickets[0]].at, event.at, event.seat) for event in sampled])
    arrived, learned = sum(event.tokens for event in sampled), sum(event.tokens for event in batches[: len(steps)])
    count = sum(len(event.tickets) for event in sampled)
    return Recorded(orders, loads, steps, found, len(seats), arrived, learned, count, busy)


def _batches(batches: Sequence[Event], published: Sequence[Event], origin: float) -> tuple[Batch, ...]:
    began = [event.at for event in published]
    return tuple(
        Batch(step, event.at - origin, event.at - began[step], event.tickets, event.version)
        for step, event in enumerate(batches)
    )


def _loads(events: Sequence[Event]) -> dict[tuple[int, int], float]:
    """A version is sent when the sampler has little to do, which is not written down; the simulation decides that.

    Known is the time of the proof. What lies before it, back to the publication or to the last event of that sampler,
    whichever is later, is the time that loading took at most.
    """
    published = {event.version: event.at for event in events if event.kind == "publish"}
    heard: dict[int, float] = {}
    found: dict[tuple[int, int], float] = {}
    for event in events:
        if event.kind == "loaded":
            since = max(published.get(event.version, event.at), heard.get(event.seat, 0.0))
            found[event.seat, event.version] = event.at - since
        if event.kind in ("loaded", "sampled"):
            heard[event.seat] = event.at
    return found


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

"""The only place that looks for the fastest way to run: how many samplers per learner, and which staleness.

Every candidate is a simulated run. Rates are tokens per second of one device; a learner on several devices is as many
times as fast, and answers are equally long. Both are kinder than reality, and the same for every candidate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.train.plan.simulate import Course, simulate

STEPS = 24
"""Simulated steps. Start and end weigh little then."""
STALENESS = (0, 1, 2, 4, 8)
NEAR = 1.03
"""A candidate within 3 % of the fastest is as fast; then fresher tokens and fewer samplers win."""


@dataclass(frozen=True)
class Rates:
    """`Durations` from rates, all in tokens that the policy wrote."""

    engine: float
    """Tokens per second of one sampler."""
    learner: float
    """Tokens per second of the learner, all its devices."""
    tokens_per_group: float
    groups_per_batch: int
    publish: float = 0.0
    """Seconds from publishing to the proof, at each sampler."""

    def sample(self, seat: int, tickets: Sequence[int], busy: float) -> float:
        del seat
        return busy + len(tickets) * self.tokens_per_group / self.engine

    def load(self, seat: int, version: int) -> float:
        del seat, version
        return self.publish

    def learn(self, step: int) -> float:
        del step
        return self.groups_per_batch * self.tokens_per_group / self.learner

    def rest(self, step: int) -> float:
        del step
        return 0.0


@dataclass(frozen=True)
class Workload:
    """What is to be run, whatever runs it."""

    groups_per_batch: int
    tokens_per_group: float
    engine: float
    """Tokens per second of one sampler device."""
    learner: float
    """Tokens per second of one learner device."""
    publish: float = 0.0
    ahead: int = 4
    """Batches that a sampler takes at once, at most."""


@dataclass(frozen=True)
class Candidate:
    """One way to run, and how it would go."""

    samplers: int
    learners: int
    staleness: int
    course: Course

    @property
    def step_seconds(self) -> float:
        """From batch to batch, mean."""
        batches = self.course.batches
        return (batches[-1].at - batches[0].at) / (len(batches) - 1)

    @property
    def learner_waits(self) -> float:
        """Share of the time in which the learner waits for a batch."""
        return self.course.waited / self.course.seconds

    @property
    def sampler_waits(self) -> float:
        """Share of the time in which a sampler has nothing to do, mean over samplers."""
        return max(0.0, 1 - sum(self.course.busy) / (len(self.course.busy) * self.course.seconds))


def candidate(work: Workload, samplers: int, learners: int, staleness: int) -> Candidate:
    """Simulate one way to run."""
    rates = Rates(work.engine, work.learner * learners, work.tokens_per_group, work.groups_per_batch, work.publish)
    course = simulate(
        rates,
        steps=STEPS,
        groups_per_batch=work.groups_per_batch,
        staleness=staleness,
        samplers=samplers,
        room=work.ahead * work.groups_per_batch,
        slots=work.groups_per_batch,
    )
    return Candidate(samplers, learners, staleness, course)


def candidates(work: Workload, devices: int, staleness: Sequence[int] = STALENESS) -> list[Candidate]:
    """Every split of the devices, with every staleness."""
    return [
        candidate(work, samplers, devices - samplers, limit) for samplers in range(1, devices) for limit in staleness
    ]


def choose(found: Sequence[Candidate]) -> Candidate:
    """The fastest; of those that are as fast, the one with the freshest tokens, then with the fewest samplers."""
    fastest = min(one.step_seconds for one in found)
    near = [one for one in found if one.step_seconds <= NEAR * fastest]
    return min(near, key=lambda one: (one.staleness, one.samplers))

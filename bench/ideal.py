"""The cost model of `bench.episodes`: what steps of an engine cost, and what the best order of the answers would take.

A step costs a price of its own, and one per row and per column that the row sees. A step in which prompts enter costs
a price more, and one per token that is read. One in which answers end costs a price more for giving them out; lockstep
pays it less often, because its answers end together. All prices are this engine's, measured here, and the model is held
against the time that lockstep really took. Answers with equal beginnings are one row, as in the engine; if the model
counted them one by one, lockstep would look slower than it is, because its answers begin together. Nothing is padded,
nothing is copied, and nobody waits for anything but a place.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from trimtab.config.train import TrainSettings
from trimtab.rollout.embedded import Embedded
from trimtab.rollout.engine import Request, Sampling
from trimtab.rollout.publication import Publication
from trimtab.train.policy import Policy, frozen_copy, published
from trimtab.train.runtimes.beside import PLENTY
from trimtab.train.setup import engine_slots, worker_room

Ids = tuple[int, ...]
NEVER = -1
"""An end token that is never drawn: answers whose steps are timed all run to their limit."""
NARROW, WIDE = 8, 104
"""Tokens of the prompts of narrow and of wide rows."""
TOKENS = 10
TRIALS = 12


@dataclass(frozen=True)
class Cost:
    """Seconds: of a step, of each row in it, of each column that a row sees; of prompts that enter, and of a token; of
    giving out answers that end."""

    step: float
    row: float
    column: float
    entry: float
    token: float
    end: float

    def of(self, rows: Iterable[Ids], entering: Iterable[Ids], *, ends: bool) -> float:
        """A step of these rows, beside prompts that enter. Equal ones are computed once. `ends`: some answer does."""
        rows, prompts = set(rows), set(entering)
        seen, read = sum(map(len, rows)), sum(map(len, prompts))
        prompts_cost = self.entry + self.token * read if prompts else 0.0
        return self.step + self.row * len(rows) + self.column * seen + prompts_cost + self.end * ends


@dataclass(frozen=True)
class Work:
    """One episode: all its tokens, and where each turn of the policy begins and ends."""

    ids: Ids
    turns: tuple[tuple[int, int], ...]

    @property
    def num_tokens(self) -> int:
        return sum(end - begin for begin, end in self.turns)


def measured_cost(policy: Policy, settings: TrainSettings) -> Cost:
    """Lines through medians. Every trial times every kind of step, so that a busy moment makes none of them dearer."""
    engine = Embedded(frozen_copy(policy.model), pad_id=policy.pad_id, eos_ids=[NEVER], format=settings.engine.format)
    publication = Publication(0, published(policy.model))
    engine.load(publication.state, 0, publication.digest)
    slots, tokens = engine_slots(settings), len(policy.tokenizer)
    rows = (slots // 8, slots // 2, slots)
    found: dict[tuple[str, int], list[float]] = {}
    for trial in range(TRIALS):
        for count in rows:
            found.setdefault(("rows", count), []).extend(_steps(engine, _prompts(count, NARROW, tokens), trial))
        found.setdefault(("wide", slots), []).extend(_steps(engine, _prompts(slots, WIDE, tokens), trial))
        for width in (NARROW, 4 * NARROW):
            beside = _prompts(slots // 2, NARROW, tokens)
            found.setdefault(("entry", width), []).append(_entry(engine, beside, width, tokens, trial))
        beside = _prompts(slots // 2 + TOKENS - 2, NARROW, tokens)
        limits = [*range(2, TOKENS), *[2 * TOKENS] * (slots // 2)]
        found.setdefault(("end", len(beside)), []).extend(_steps(engine, beside, trial, limits))
    times = {kind: median(seconds) for kind, seconds in found.items()}
    slope, start = _line({count: times["rows", count] for count in rows})
    column = max((times["wide", slots] - times["rows", slots]) / ((WIDE - NARROW) * slots), 0.0)
    token, first = _line({ENTERING * width: times["entry", width] for width in (NARROW, 4 * NARROW)})
    entry = first - times["rows", slots // 2]
    end = times["end", slots // 2 + TOKENS - 2] - start - slope * (slots // 2 + TOKENS - 2)
    row = max(slope - (NARROW + TOKENS // 2) * column, 0.0)
    return Cost(max(start, 0.0), row, column, max(entry, 0.0), token, max(end, 0.0))


ENTERING = 4
"""Prompts that enter beside others when that is timed."""


def _prompts(count: int, width: int, tokens: int) -> list[Ids]:
    """Prompts of which no two are equal: their first tokens are their numbers."""
    rest = tuple(3 + place % 12 for place in range(width - 2))
    return [(3 + key // 12 % (tokens - 3), 3 + key % 12, *rest) for key in range(count)]


def _steps(engine: Embedded, prompts: Sequence[Ids], trial: int, limits: Sequence[int] = ()) -> list[float]:
    """Seconds of the steps of these rows between their first and their last. With limits, each ends at its own."""
    for key, (ids, limit) in enumerate(zip(prompts, limits or [TOKENS] * len(prompts), strict=True)):
        engine.submit(key, Request(ids, 1000 * trial + key), Sampling(limit, 1.0))
    _ = engine.step()
    found: list[float] = []
    for _ in range(TOKENS - 2):
        began = time.process_time()
        _ = engine.step()
        found.append(time.process_time() - began)
    _ = engine.abort()
    return found


def _entry(engine: Embedded, beside: Sequence[Ids], width: int, tokens: int, trial: int) -> float:
    """Seconds of a step in which some prompts of this width enter beside others."""
    entering = _prompts(len(beside) + ENTERING, width, tokens)[len(beside) :]
    for key, ids in enumerate(beside):
        engine.submit(key, Request(ids, 1000 * trial + key), Sampling(TOKENS, 1.0))
    for _ in range(2):
        _ = engine.step()
    for key, ids in enumerate(entering, start=len(beside)):
        engine.submit(key, Request(ids, 1000 * trial + key), Sampling(TOKENS, 1.0))
    began = time.process_time()
    _ = engine.step()
    seconds = time.process_time() - began
    _ = engine.abort()
    return seconds


def _line(points: dict[int, float]) -> tuple[float, float]:
    """Slope and start of the least-squares line."""
    x, y = mean(points), mean(points.values())
    slope = sum((one - x) * (value - y) for one, value in points.items()) / sum((one - x) ** 2 for one in points)
    return slope, y - slope * x


def lockstep_seconds(batches: Sequence[Sequence[Work]], cost: Cost) -> float:
    """What the model says of a batch at a time, turn by turn."""
    total = 0.0
    for batch in batches:
        for turn in range(max(len(one.turns) for one in batch)):
            going = [(one.ids, *one.turns[turn]) for one in batch if len(one.turns) > turn]
            ends = {end - begin - 1 for _, begin, end in going}
            total += cost.of((), [ids[:begin] for ids, begin, _ in going], ends=0 in ends)
            for step in range(1, max(ends) + 1):
                rows = [ids[: begin + step] for ids, begin, end in going if begin + step < end]
                total += cost.of(rows, (), ends=step in ends)
    return total


@dataclass
class _Turn:
    """A turn that waits for a place or has one: of which episode, and the token that is drawn next."""

    order: tuple[int, int, int]
    """Batch, number of the episode in it, turn."""
    one: Work
    next: int
    is_read: bool = False
    """Whether the engine holds what comes before that token."""


@dataclass
class _Ideal:
    """Answers in an order that no engine could improve on but by knowing their lengths."""

    batches: Sequence[Sequence[Work]]
    cost: Cost
    slots: int
    staleness: int
    room: int
    """Prompts that a sampler gets at once; with fewer than a share of them it takes new parameters, as the real one."""
    group: int
    free: int
    """Prompts enter when this many places are free."""
    waiting: list[_Turn] = field(default_factory=list[_Turn])
    running: list[_Turn] = field(default_factory=list[_Turn])
    version: int = 0
    trained: int = 0

    def seconds(self, warm: int) -> float:
        """Of all batches after the first few. What is sampled ahead at the end was sampled ahead at the beginning."""
        last = len(self.batches) - self.staleness - 1
        left = [[one.num_tokens for one in batch] for batch in self.batches]
        begins = [(number, place) for number, batch in enumerate(self.batches) for place in range(len(batch))]
        total = counted = 0.0
        while self.trained < last:
            while begins and begins[0][0] <= self.version + self.staleness:
                number, place = begins.pop(0)
                one = self.batches[number][place]
                self.waiting.append(_Turn((number, place, 0), one, one.turns[0][0]))
            total += self._step(left)
            while self.trained < len(left) and not any(left[self.trained]):
                self.trained += 1
                counted = total if self.trained == warm else counted
            if self.trained > self.version and self._owed(left) <= PLENTY * self.room:
                self.version = self.trained
                for turn in self.running:  # all that was read and written is read again
                    turn.is_read = False
        return total - counted

    def _owed(self, left: Sequence[Sequence[int]]) -> int:
        """Prompts that may be sampled with the version in use and have an answer that is not complete."""
        allowed = left[: self.version + self.staleness + 1]
        groups = [batch[first : first + self.group] for batch in allowed for first in range(0, len(batch), self.group)]
        return sum(any(group) for group in groups)

    def _step(self, left: list[list[int]]) -> float:
        """Draw one token of every answer that has a place."""
        if not self.running or self.slots - len(self.running) >= self.free:
            self.waiting.sort(key=lambda turn: turn.order)
            room = self.slots - len(self.running)
            self.running += self.waiting[:room]
            self.waiting = self.waiting[room:]
        seconds = self.cost.of(
            [turn.one.ids[: turn.next] for turn in self.running if turn.is_read],
            [turn.one.ids[: turn.next] for turn in self.running if not turn.is_read],
            ends=any(turn.next + 1 == turn.one.turns[turn.order[2]][1] for turn in self.running),
        )
        stays: list[_Turn] = []
        for turn in self.running:
            (batch, place, number), one = turn.order, turn.one
            left[batch][place] -= 1
            turn.next, turn.is_read = turn.next + 1, True
            if turn.next < one.turns[number][1]:
                stays.append(turn)
            elif number + 1 < len(one.turns):
                self.waiting.append(_Turn((batch, place, number + 1), one, one.turns[number + 1][0]))
        self.running = stays
        return seconds


def ideal_seconds(batches: Sequence[Sequence[Work]], cost: Cost, settings: TrainSettings, warm: int) -> float:
    """The same work with places that refill, within the staleness limit, by the best of several rules of when."""
    slots = engine_slots(settings)
    rules = sorted({max(1, slots // share) for share in (slots, 16, 8, 4)})
    whole = [*batches, *batches[: settings.staleness + 1]]
    room, group = worker_room(settings), settings.samples_per_prompt
    return min(_Ideal(whole, cost, slots, settings.staleness, room, group, rule).seconds(warm) for rule in rules)

"""The parent of an examination: it hands units to child processes, watches their time, and keeps what they tell.

Whichever child is free takes the next unit; when none is left, it takes half of what waits in another child.
If a child dies or stops responding, only its current function is lost: that function "could not run", and a new child
continues with the rest.
"""

import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from trimtab.errors import AdapterError, unknown_name
from trimtab.sentinel.examination.job import Job, is_called, may_hold
from trimtab.sentinel.examination.limits import Limits
from trimtab.sentinel.examination.process import Child, Event, Warden
from trimtab.sentinel.examination.record import report_data, unrun_data
from trimtab.sentinel.invariants.declare import INVARIANTS
from trimtab.sentinel.reports.data import Report

LOAD_SECONDS = 120.0
"""Time limit for the first message of a child. Before it, the child imports torch and the target; no function runs."""
LOADS = 3
"""How often in a row a child may fail before its first message, when another one has loaded the target before."""
TICK = 0.1
"""Seconds between two looks at the children, at most."""

Watch = Callable[[Event], None]
Spread = Callable[[Job, Limits, list[int]], Iterator[list[Event]]]
"""Checks units elsewhere; what it hears comes back in portions."""


@dataclass
class Work:
    """A unit to check, and what is already done or lost of it."""

    unit: int
    only_bind: bool = False
    invariants: tuple[str, ...] = ()
    skip: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    only: list[tuple[int, int]] | None = None
    """The subjects to check, where another child checks the others."""

    def as_data(self) -> dict[str, Any]:
        return {
            "unit": self.unit, "skip": sorted(self.skip), "only": self.only, "only_bind": self.only_bind,
            "invariants": self.invariants,
        }  # fmt: skip


@dataclass
class Slot:
    """A child, what it works on, and where it is."""

    child: Child
    deadline: float
    is_loaded: bool = False
    work: Work | None = None
    at: Event | None = None
    """The part or subject that it told last, and has not finished."""
    verdicts: int = 0
    """Verdicts on that subject."""
    waiting: int = 0
    """Subjects of its unit that it has not begun."""
    is_asked: bool = False
    """Whether it was asked to leave some of them to another child."""


class Examination:
    """One job and its children. `with Examination(job) as it: it.run(it.chosen())`; then `it.heard`."""

    def __init__(self, job: Job, limits: Limits | None = None, watch: Watch = lambda _: None) -> None:
        self.job, self.limits, self.watch = job, limits or Limits(), watch
        self.heard: list[Event] = []
        self.units: list[tuple[str, bool]] = []
        self._is_listed = False
        self._slots: list[Slot] = []
        self._queue: deque[Work] = deque()
        self._lost: dict[int, set[tuple[int, int]]] = {}
        self._failures = 0
        self._warden: Warden | None = None

    def __enter__(self) -> "Examination":
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self._slots:
            slot.child.end()
        self._slots.clear()
        if self._warden is not None:
            self._warden.end()

    def chosen(self) -> list[int]:
        """The units to look into: all, or those that can hold the functions that were asked for."""
        self._list()
        asked = self.job.subjects
        if not asked:
            return list(range(len(self.units)))
        held = {one: [n for n, (name, _) in enumerate(self.units) if may_hold(name, one)] for one in asked}
        chosen = {number for numbers in held.values() for number in numbers}
        if not all(held.values()):  # some units make subjects with other names
            chosen |= {number for number, (_, is_exact) in enumerate(self.units) if not is_exact}
        if not chosen:
            self._refuse(next(one for one in asked if not held[one]))
        return sorted(chosen)

    def run(self, units: Iterable[int], *, only_bind: bool = False, invariants: tuple[str, ...] = ()) -> None:
        """Check these units, or only bind their functions, until each is done or lost."""
        for unit in units:
            self._queue.append(Work(unit, only_bind, invariants, set(self._lost.get(unit, ()))))
        while self._queue or any(slot.work for slot in self._slots):
            self._staff()
            self._step()

    def take(self, portions: Iterable[list[Event]]) -> None:
        """Take in what others have heard that check units of this job."""
        for portion in portions:
            for event in portion:
                self._keep(event)

    def missing(self) -> None:
        """Refuse a name of a function that nothing turned out to have."""
        found = [name for event in self.heard if event["event"] in ("found", "passed") for name in event["names"]]
        found += [event["verdict"]["subject"] for event in self.heard if event["event"] == "verdict"]
        for asked in self.job.subjects:
            if not any(is_called(name, asked) for name in found):
                self._refuse(asked, found)

    def _refuse(self, asked: str, found: Iterable[str] = ()) -> None:
        names = sorted({*found, *(name for name, is_exact in self.units if is_exact)} or {n for n, _ in self.units})
        raise AdapterError(unknown_name(f"functions of {self.job.target}", asked, names))

    def _list(self) -> None:
        """The units, from the first child. If it cannot load the target, there is nothing to report."""
        if not self._is_listed:
            for _ in range(self.limits.processes if self.job.root is not None else 1):
                self._start()
        while not self._is_listed:
            self._step()

    def _staff(self) -> None:
        """Start children while there is more work than hands. The first one has to list the units."""
        if not self._is_listed:
            self._list()
        free = sum(slot.work is None for slot in self._slots)
        while len(self._slots) < self.limits.processes and free < len(self._queue):
            self._start()
            free += 1

    def _start(self) -> None:
        if self._warden is None:
            self._warden = Warden()
        child = Child(self._warden, self.job.folder)
        slot = Slot(child, time.monotonic() + max(LOAD_SECONDS, self.limits.seconds))
        self._slots.append(slot)
        child.send({"job": self.job.as_data(), "memory": self.limits.share})

    def _step(self) -> None:
        """Hear the children, give work to the free ones, and replace the dead ones."""
        for slot in self._slots:
            if slot.is_loaded and slot.work is None and self._queue:
                slot.work, slot.at, slot.verdicts, slot.waiting = self._queue.popleft(), None, 0, 0
                slot.child.send(slot.work.as_data())
                slot.deadline = time.monotonic() + self.limits.seconds
        self._share()
        self._wait()
        for slot in list(self._slots):
            has_ended = slot.child.has_ended()  # before the last words are read
            for event in slot.child.pump():
                if slot in self._slots:
                    self._hear(slot, event)
            if slot not in self._slots:
                continue
            if has_ended:
                self._replace(slot, slot.child.death())
            elif (slot.work is not None or not slot.is_loaded) and time.monotonic() > slot.deadline:
                seconds = self.limits.seconds if slot.is_loaded else max(LOAD_SECONDS, self.limits.seconds)
                what = "it may hang on some case" if slot.is_loaded else "the target may hang while it is loaded"
                self._replace(slot, f"no answer within {seconds:g} s: {what}")

    def _share(self) -> None:
        """Where a child has nothing to do, ask the one with the most waiting subjects to leave it some.

        Folders of findings are written per unit, by one child.
        """
        is_free = any(slot.is_loaded and slot.work is None for slot in self._slots)
        if not is_free or self.job.findings is not None or any(slot.is_asked for slot in self._slots):
            return
        busiest = max(self._slots, key=lambda slot: slot.waiting)
        if busiest.waiting:
            busiest.is_asked = True
            busiest.child.send({"leave": True})

    def _wait(self) -> None:
        waiting = select.poll()
        for slot in self._slots:
            for fd in slot.child.readable:
                waiting.register(fd, select.POLLIN)
            if slot.child.is_sending:
                waiting.register(slot.child.orders, select.POLLOUT)
        _ = waiting.poll(TICK * 1000)

    def _hear(self, slot: Slot, event: Event) -> None:
        slot.deadline = time.monotonic() + self.limits.seconds
        kind = event["event"]
        if kind == "units":
            units = [(str(name), bool(is_exact)) for name, is_exact in event["units"]]
            if self._is_listed and units != self.units:
                self._replace(slot, "the target holds other functions each time it is loaded")
                return
            self.units, self._is_listed, slot.is_loaded, self._failures = units, True, True, 0
        elif kind == "failed":
            self._replace(slot, event["reason"])
            return
        elif kind == "done":
            slot.work, slot.at, slot.waiting = None, None, 0
            return
        elif kind == "waiting":
            slot.waiting = event["count"]
            return
        elif kind == "left":
            self._take_over(slot, [(part, index) for part, index in event["places"]])
            return
        elif kind == "at":
            slot.at, slot.verdicts = event, 0
            slot.waiting -= event["number"][2] >= 0
        elif kind == "verdict":
            slot.verdicts += 1
        if kind in ("subject", "unbound", "part"):
            slot.at = None
            if slot.work is not None:
                slot.work.skip.add((event["number"][1], event["number"][2]))
        self._keep(event)

    def _take_over(self, slot: Slot, places: list[tuple[int, int]]) -> None:
        """Queue what a child left, for another one."""
        slot.is_asked, slot.waiting = False, 0
        if places and slot.work is not None:
            slot.work.skip.update(places)
            self._queue.append(replace(slot.work, skip=set(), only=places))

    def _keep(self, event: Event) -> None:
        self.heard.append(event)
        self.watch(event)

    def _replace(self, slot: Slot, why: str) -> None:
        """Take a child away, and book what it was at. The rest of its unit goes back to the queue."""
        slot.child.end()
        self._slots.remove(slot)
        if not self._is_listed:
            raise AdapterError(why)
        if not slot.is_loaded:
            self._failures += 1
            if self._failures >= LOADS:
                while self._queue:
                    self._lose(self._queue.popleft(), None, 0, f"the target could not be loaded again: {why}")
        elif slot.work is not None:
            self._lose(slot.work, slot.at, slot.verdicts, why)

    def _lose(self, work: Work, at: Event | None, verdicts: int, why: str) -> None:
        number = at["number"] if at else [work.unit, -1, -1]
        label = at["label"] if at else self.units[work.unit][0]
        asked: list[str] = at["invariants"] if at else list(self.job.invariants or INVARIANTS)
        invariant = asked[min(verdicts, len(asked) - 1)]
        lost = unrun_data(self.job.target, label, invariant, why)
        self._keep({"event": "verdict", "number": number, "verdict": lost})
        place = (number[1], number[2])
        work.skip.add(place)
        self._lost.setdefault(work.unit, set()).add(place)
        if at is not None:
            self._queue.appendleft(work)


def run_job(
    job: Job,
    *,
    limits: Limits | None = None,
    command: str = "",
    watch: Watch = lambda _: None,
    spread: Spread | None = None,
) -> Report:
    """Check every function of a job in child processes, and report. `watch` gets every event immediately.

    With `spread`, children of this process only list the units.
    """
    started = time.monotonic()
    with Examination(job, limits, watch) as examination:
        if job.lines is None or job.lines:
            chosen = examination.chosen()
            if spread is None:
                examination.run(chosen)
            else:
                examination.take(spread(job, examination.limits, chosen))
            examination.missing()
    return report_data(job, examination.heard, command, time.monotonic() - started)

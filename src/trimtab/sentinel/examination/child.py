"""The child process of an examination: it lists the units of a target, and checks those that it is handed.

`python -m trimtab.sentinel.examination.child FD` reads JSON lines from standard input: a job first, then one line per
unit to check. It writes one JSON event per line to the file with number FD. What the target prints goes elsewhere.
Memory is limited before the target is loaded. When standard input closes, the parent is gone: the child ends itself and
everything it started, also while the target runs.
"""

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch

from trimtab.errors import TrimtabError
from trimtab.marks import EXAMINED, end_marked
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.callers import callers_of
from trimtab.sentinel.examination.job import Job, is_untouched, is_wanted, names_of, units
from trimtab.sentinel.examination.record import boundary_data, subject_data, verdict_data
from trimtab.sentinel.invariants.declare import INVARIANTS
from trimtab.sentinel.loading import CouldNotLoad
from trimtab.sentinel.reports.data import SubjectData, VerdictData, finite
from trimtab.sentinel.reports.outcome import FINDINGS
from trimtab.sentinel.search import Verdict, hold, ready
from trimtab.sentinel.targets.target import Part, Unbound, Unit

Ask = Mapping[str, Any]
"""{"unit": 3, "skip": [[0, -1], [1, 0]], "only": None, "only_bind": False, "invariants": []}; a skipped -1 is the whole
part, and `only` lists the subjects to check, where others are checked elsewhere. {"leave": true}: another child has
nothing to do, so leave it some of the subjects that wait."""
Place = tuple[int, int]
"""A part of the unit, and a subject of the part."""


class Wire:
    """The only writer of events. A process that the target forked writes none."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._out, self._pid = os.fdopen(fd, "w", encoding="utf-8"), os.getpid()
        self._lock = threading.Lock()

    def tell(self, event: str, **fields: Any) -> None:
        if os.getpid() != self._pid:
            os._exit(0)
        line = json.dumps(finite({"event": event, **fields}), allow_nan=False) + "\n"
        with self._lock:
            self._out.write(line)
            self._out.flush()


class Turns:
    """The subjects of a part that wait for their turn. Each is taken by this child or left to another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Place] = []

    def open(self, places: list[Place]) -> None:
        with self._lock:
            self._waiting = places

    def take(self, place: Place) -> bool:
        with self._lock:
            is_ours = place in self._waiting
            if is_ours:
                self._waiting.remove(place)
            return is_ours

    def leave(self) -> list[Place]:
        """Half of what waits, from the end."""
        with self._lock:
            kept = len(self._waiting) // 2
            left, self._waiting = self._waiting[kept:], self._waiting[:kept]
            return left


def main() -> None:
    wire = Wire(int(sys.argv[1]))
    asks: queue.SimpleQueue[Ask] = queue.SimpleQueue()
    turns = Turns()
    threading.Thread(target=_listen, args=(asks, turns, wire), daemon=True).start()
    asked = asks.get()
    limit_memory(asked["memory"])
    torch.set_num_threads(1)
    job = Job.from_data(asked["job"])
    try:
        found = units(job)
    except Exception as error:  # importing a target may raise anything
        is_ours = isinstance(error, TrimtabError | CouldNotLoad)
        why = str(error) if is_ours else f"{job.target} cannot be loaded: {type(error).__name__}: {error}"
        wire.tell("failed", reason=why)
        return
    wire.tell("units", units=[[unit.name, unit.is_exact] for unit in found])
    while True:
        ask = asks.get()
        Worker(job, ask, wire, turns).work(found[ask["unit"]])
        wire.tell("done")


def _listen(asks: "queue.SimpleQueue[Ask]", turns: Turns, wire: Wire) -> None:
    """Take orders, in a thread of its own, so that the end of the parent is noticed while a function runs."""
    requests = os.fdopen(os.dup(0), "rb")
    # The target gets an empty standard input, and cannot take an order away.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for line in requests:
        order = json.loads(line)
        if "leave" in order:
            wire.tell("left", places=turns.leave())
        else:
            asks.put(order)
    end_marked(EXAMINED)
    os.killpg(0, signal.SIGKILL)


class Worker:
    """Checks one unit, and tells where it is before anything of the target is called."""

    def __init__(self, job: Job, ask: Ask, wire: Wire, turns: Turns) -> None:
        self.job, self.wire, self.turns = job, wire, turns
        self.unit, self.only_bind = int(ask["unit"]), bool(ask["only_bind"])
        self.skip = {tuple(place) for place in ask["skip"]}
        self.only = None if ask["only"] is None else {tuple(place) for place in ask["only"]}
        self.invariants = tuple(ask["invariants"]) or job.invariants
        # Of this unit: what shows a finding. They are written down when all of them are known, one folder per cause.
        self.shown: list[tuple[Verdict, Subject, VerdictData, SubjectData]] = []

    def work(self, unit: Unit) -> None:
        try:
            for place, part in enumerate(unit.parts()):
                if (place, -1) not in self.skip and is_untouched(self.job, part):
                    self.wire.tell("passed", names=[part.name])
                elif (place, -1) not in self.skip:
                    self._part(place, part)
                    self.wire.tell("part", number=[self.unit, place, -1])
        except Exception as error:  # importing a module of a package may raise anything
            failed = _failed(unit.name, error)
            if is_wanted(self.job, unit.name, failed):
                self.wire.tell("found", names=[unit.name])
                self._unbound([self.unit, -1, -1], failed)
        if self.shown:
            from trimtab.sentinel.findings.by_cause import write_down

            for told in write_down(self.job, self.shown, lambda: self.wire.tell("writing")):
                self.wire.tell("finding", **told)

    def _part(self, place: int, part: Part) -> None:
        self.wire.tell("at", number=[self.unit, place, -1], label=part.name, invariants=self.asked(None))
        try:
            # A list: where binding fails, it fails before anything is checked.
            subjects = list(part.make())
        except Exception as error:  # a binding that does not fit may raise anything
            subjects = [_failed(part.name, error)]
        mine = [at for index in range(len(subjects)) if (at := (place, index)) not in self.skip]
        mine = [at for at in mine if self.only is None or at in self.only]
        self.turns.open(mine)
        self.wire.tell("waiting", count=len(mine))
        for index, found in enumerate(subjects):
            number = [self.unit, place, index]
            if not is_wanted(self.job, part.name, found):
                self.wire.tell("passed", names=names_of(part.name, found))
            elif self.turns.take((place, index)):
                self.wire.tell("found", names=names_of(part.name, found))
                self._subject(number, found) if isinstance(found, Subject) else self._unbound(number, found)

    def asked(self, promises: tuple[str, ...] | None) -> list[str]:
        return list(self.invariants or promises or INVARIANTS)

    def _unbound(self, number: list[int], found: Unbound) -> None:
        told = {"subject": found.binding, "looked_for": found.looked_for, "reason": found.reason}
        is_asked = found.is_asked or bool(self.job.subjects)
        self.wire.tell("unbound", number=number, unbound=told, is_asked=is_asked)

    def _subject(self, number: list[int], subject: Subject) -> None:
        self.wire.tell("at", number=number, label=subject.label, invariants=self.asked(subject.promises))
        if self.only_bind:
            return
        subject, why = ready(subject, list(directed()))
        is_found = False
        asked, effort = self.invariants or None, self.job.examples
        for verdict in hold(subject, why, only=asked, seed=self.job.seed, examples=effort):
            data = verdict_data(self.job.target, subject, verdict)
            self.wire.tell("verdict", number=number, verdict=data)
            is_found = is_found or verdict.status in FINDINGS
            if verdict.status in FINDINGS and self.job.findings is not None:
                self.shown.append((verdict, subject, data, subject_data(subject)))
        told = subject_data(subject)
        if is_found and (callers := self._callers(subject)):
            told["callers"] = callers
        self.wire.tell("subject", number=number, subject=told, boundary=boundary_data(subject))

    def _callers(self, subject: Subject) -> list[str]:
        """Who calls it, in a wheel or a checkout. The folder of somebody's own file may hold anything."""
        if self.job.root is None or subject.boundary is None:
            return []
        return callers_of(self.job.tree, subject.boundary.file, subject.boundary.spec.name)


def _failed(name: str, error: Exception) -> Unbound:
    return Unbound(name, name, f"{type(error).__name__}: {error}")


def limit_memory(size: int) -> None:
    """Limit memory (bytes), so that a runaway target ends only its own process. Some systems have no such limit."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


if __name__ == "__main__":
    main()

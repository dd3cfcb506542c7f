"""The only place that runs code that may hang, crash or lie: a few child processes, and a time limit for each answer.

A call is spread over the workers. A part that fails is tried again answer by answer: only the bad answer is marked.
"""

import itertools
import math
import selectors
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.errors import ConfigError
from trimtab.rollout.reward import Status, Verdict
from trimtab.rollout.reward_process import Broken, Child

LOAD_SECONDS = 120.0
"""How long a function's module may take to import."""
MEMORY_BYTES = 8 << 30
"""What one worker may allocate; beyond it Python raises MemoryError in the function. Shared memory is bounded by the
same, on Linux: a worker that holds more is ended. Each process that a function starts has the same limit for itself."""
WATCH_SECONDS = 0.05
"""How soon the death of a worker is noticed when a process that it forked keeps its pipes open."""
GIVE_UP = 8
"""Answers in a row that run out of time, after which the rest of the call is not tried."""

STATUS: dict[str, Status] = {"error": "error", "abstain": "abstain"}
"""Statuses that a worker may report besides ok."""

Columns = Mapping[str, Sequence[Any]]


@dataclass
class Call:
    """One call while it runs: what is left to try, and what came out."""

    columns: Columns
    verdicts: list[Verdict | None]
    waiting: deque[tuple[int, ...]]
    timeouts: int = 0
    """Single answers in a row that ran out of time."""
    is_slow: bool = False
    """Some part ran out of time."""


@dataclass
class Slot:
    """A place for one worker, and the answers it works on."""

    child: Child | None = None
    part: tuple[int, ...] = ()
    number: int = 0
    """The id of the message that the worker has to answer."""


@dataclass
class RewardPool:
    """Workers that hold one function. Opening it loads the function, so one that cannot be loaded is refused at once.

    `columns` of a call are the function's keyword arguments: one value for each answer.
    """

    target: str
    workers: int
    seconds: float
    column_names: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    memory_bytes: int = MEMORY_BYTES
    _slots: list[Slot] = field(default_factory=list[Slot])
    _largest: int = 1 << 30
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._slots.extend(Slot(self._start()) for _ in range(self.workers))
        try:
            while not all(slot.child is not None and slot.child.is_ready for slot in self._slots):
                self._wait()
                for slot in self._slots:
                    failure = self._check_load(slot)
                    if failure is not None:
                        raise ConfigError(f"reward: {failure}")
        except BaseException:
            self.close()
            raise

    def judge(self, columns: Columns, count: int) -> list[Verdict]:
        """One verdict for each of `count` answers, in order."""
        size = min(math.ceil(count / self.workers), self._largest) if count else 1
        parts = deque(tuple(range(start, min(start + size, count))) for start in range(0, count, size))
        call = Call(columns, [None] * count, parts)
        try:
            while any(verdict is None for verdict in call.verdicts):
                for slot in self._slots:
                    self._hand_out(slot, call)
                self._wait()
                for slot in self._slots:
                    self._check_part(slot, call)
        except BaseException:  # Ctrl-C: a late reply must not be taken for the reply to the next call
            for slot in self._slots:
                if slot.part:
                    self._drop(slot)
            raise
        verdicts = [verdict for verdict in call.verdicts if verdict is not None]
        if call.is_slow and not any(verdict.status == "timeout" for verdict in verdicts):
            self._largest = max(1, size // 4)  # each answer is fast enough: only so many at once are not
        return verdicts

    def close(self) -> None:
        """End every worker and all that they started."""
        for slot in self._slots:
            self._drop(slot)

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> Child:
        job = {"target": self.target, "options": dict(self.options), "columns": list(self.column_names)}
        return Child({**job, "memory_bytes": self.memory_bytes, "seconds": self.seconds}, LOAD_SECONDS)

    def _drop(self, slot: Slot) -> None:
        if slot.child is not None:
            slot.child.end()
        slot.child, slot.part = None, ()

    def _wait(self) -> None:
        """Wait until a child can be read or written, or until it is time to look at the clock again."""
        children = [slot.child for slot in self._slots if slot.child is not None]
        with selectors.DefaultSelector() as selector:
            for child in children:
                for fd in child.readable:
                    selector.register(fd, selectors.EVENT_READ)
                if child.is_sending:
                    selector.register(child.requests, selectors.EVENT_WRITE)
            _ = selector.select(WATCH_SECONDS)
        for child in children:
            child.pump()

    def _check_load(self, slot: Slot) -> str | None:
        """Why the function could not be loaded. None while it loads, and after it has."""
        child = slot.child
        if child is None or child.is_ready:
            return None
        try:
            reply = child.take_reply()
        except Broken as error:
            return f"{self.target}: {error} while it was loaded."
        if reply is not None:
            child.is_ready = "ready" in reply
            return None if child.is_ready else str(reply.get("failed"))
        death = child.find_death()
        if death is not None:
            return f"{self.target}: does not import: {death}."
        if time.monotonic() > child.deadline:
            return f"{self.target}: did not import within {LOAD_SECONDS:g} s."
        return None

    def _hand_out(self, slot: Slot, call: Call) -> None:
        """Give a free worker the next part; start one where there is none."""
        if slot.part or not call.waiting:
            return
        if slot.child is not None and slot.child.find_death() is not None:
            self._drop(slot)
        if slot.child is None:
            slot.child = self._start()
        if not slot.child.is_ready:
            return
        slot.part = call.waiting.popleft()
        chosen = {name: [values[index] for index in slot.part] for name, values in call.columns.items()}
        slot.number = next(self._numbers)
        message = {"id": slot.number, "count": len(slot.part), "arguments": chosen}
        slot.child.send(message, self.seconds)

    def _check_part(self, slot: Slot, call: Call) -> None:
        """Look at a worker's part: it is judged, it raised, it ran out of time, or the worker is dead."""
        if slot.child is None:
            return
        if not slot.part:
            failure = self._check_load(slot)
            if failure is not None:
                self._drop(slot)
                self._mark_waiting(call, Verdict.failed("error", failure))
            return
        try:
            reply = slot.child.take_reply()
            if reply is not None:
                self._apply_reply(slot, call, reply)
                return
        except Broken as error:
            self._mark_failed(slot, call, Verdict.failed("error", str(error)), is_lost=True)
            return
        death = slot.child.find_death()
        if death is not None:
            self._mark_failed(slot, call, Verdict.failed("error", death), is_lost=True)
        elif time.monotonic() > slot.child.deadline:
            self._mark_failed(
                slot, call, Verdict.failed("timeout", f"no reward within {self.seconds:g} s"), is_lost=True
            )

    def _apply_reply(self, slot: Slot, call: Call, reply: Mapping[str, Any]) -> None:
        if reply.get("id") != slot.number:
            raise Broken("wrote something that is no reply")
        if "raised" in reply:
            self._mark_failed(slot, call, Verdict.failed("error", str(reply["raised"])), is_lost=False)
            return
        if "wrong" in reply:  # not tried again: with one answer at a time the function could seem right
            verdicts = [Verdict.failed("error", str(reply["wrong"]))] * len(slot.part)
        else:
            verdicts = _verdicts(reply.get("judgements"), len(slot.part))
        for index, verdict in zip(slot.part, verdicts, strict=True):
            call.verdicts[index] = verdict
        call.timeouts = 0
        slot.part = ()

    def _mark_failed(self, slot: Slot, call: Call, verdict: Verdict, *, is_lost: bool) -> None:
        """Mark a single answer; split a larger part into single answers."""
        part = slot.part
        slot.part = ()
        if is_lost:
            self._drop(slot)
        if len(part) > 1:
            call.is_slow |= verdict.status == "timeout"
            call.waiting.extend((index,) for index in part)
            return
        for index in part:
            call.verdicts[index] = verdict
        call.timeouts = call.timeouts + 1 if verdict.status == "timeout" else 0
        if call.timeouts >= GIVE_UP:
            text = f"not tried: the {GIVE_UP} answers before it all ran out of time"
            self._mark_waiting(call, Verdict.failed("timeout", text))

    def _mark_waiting(self, call: Call, verdict: Verdict) -> None:
        """Mark all answers that no worker has."""
        for index in itertools.chain.from_iterable(call.waiting):
            call.verdicts[index] = verdict
        call.waiting.clear()


def _verdicts(judgements: Any, count: int) -> list[Verdict]:
    """The verdicts in a reply. They are checked, because the function could have written the reply itself."""
    try:
        found = [
            Verdict.of(float(reward)) if status == "ok" else Verdict.failed(STATUS[status], str(message))
            for status, reward, message in judgements
        ]
    except (TypeError, ValueError, KeyError) as error:
        raise Broken("wrote something that is no reply") from error
    if len(found) != count:
        raise Broken("wrote something that is no reply")
    return found

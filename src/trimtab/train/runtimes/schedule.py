"""The only place that writes down who was asked for what and when, and that reads it again: `schedule.jsonl`.

One line per event of a run whose samplers work beside the learner: parameters published, sent and loaded, prompts
ordered and sampled, batches taken. It is what `trimtab plan` replays.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from trimtab.errors import ConfigError

SCHEDULE_FILE = "schedule.jsonl"
Note = Callable[[Mapping[str, object]], None]


class Changed(Protocol):
    """A condition that somebody waits for: a real one, or one whose waiting moves a virtual clock."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> object: ...

    def wait(self, timeout: float | None = None) -> object: ...

    def notify_all(self) -> None: ...


@dataclass
class Clock:
    """What time it is, and how to wait for a change."""

    now: Callable[[], float] = time.perf_counter
    changed: Changed = field(default_factory=threading.Condition)


def quiet(event: Mapping[str, object]) -> None:
    """Nobody writes it down."""


def writer(folder: Path) -> Note:
    """Add events to the schedule of a run. One that cannot be written is left out: it is not worth a run."""
    path, lock = folder / SCHEDULE_FILE, threading.Lock()

    def note(event: Mapping[str, object]) -> None:
        with lock, open(path, "a", encoding="utf-8") as file:
            _ = file.write(json.dumps(event) + "\n")

    return note


@dataclass(frozen=True)
class Event:
    """One line. `seat` is the sampler's, `version` the parameters', of groups the oldest token's."""

    at: float
    kind: str
    seat: int = -1
    version: int = -1
    tickets: tuple[int, ...] = ()
    tokens: int = 0


def read_schedule(folder: Path) -> list[Event]:
    """The events of a run in their order, from its first batch of one start to its last."""
    path = folder / SCHEDULE_FILE
    if not path.is_file():
        raise ConfigError(
            f"plan: {folder} holds no {SCHEDULE_FILE}, so there is nothing to replay. Runs with samplers beside the "
            'learner write one: runtime = "processes".'
        )
    events: list[Event] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            held: dict[str, Any] = json.loads(line)
            held["tickets"] = tuple(held.get("tickets", ()))
            events.append(Event(**held))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"plan: {path}, line {number} cannot be read ({error}). Copy the file again.") from error
    return events

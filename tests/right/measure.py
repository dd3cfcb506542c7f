"""The sentinel on one version of one entry: the only place that calls it for the corpus."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from tests.right.entry import Entry, entries

from trimtab.sentinel import Subject, examine
from trimtab.sentinel.binding.discover import subjects_of

COLUMNS = ("unbound", "bound", "definition")
VERSIONS = ("right", "wrong")
BUDGET = 120
"""Seconds for all invariants of one subject."""


@dataclass
class Measured:
    """The verdicts on one subject, by status; `problem` says why there are none or not all."""

    verdicts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    what: dict[str, str] = field(default_factory=dict[str, str])
    """Invariant to its violation, for bugs."""
    problem: str = ""

    @property
    def bugs(self) -> list[str]:
        return self.verdicts.get("bug", [])

    @property
    def findings(self) -> list[str]:
        """What a person is told about: bugs, suspects and latent bugs."""
        return [name for status in ("bug", "suspect", "latent") for name in self.verdicts.get(status, [])]

    @property
    def exercised(self) -> int:
        """Invariants that held or were violated."""
        return sum(
            len(self.verdicts.get(status, []))
            for status in ("holds", "bug", "suspect", "latent", "hygiene", "convention")
        )

    def text(self) -> str:
        shown = [
            f"{status}: {', '.join(self.verdicts[status])}"
            for status in ("bug", "suspect", "latent", "hygiene", "convention", "could not run")
            if status in self.verdicts
        ]
        counts = [f"{len(self.verdicts.get(s, []))} {s}" for s in ("holds", "could not exercise")]
        problem = [f"[{self.problem[:100]}]"] if self.problem else []
        return " · ".join([*problem, *shown, *(counts if self.verdicts else [])])

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    dialect: str, name: str, version: str, column: str, *, budget: int = BUDGET, corpus: str = "corpus"
) -> Measured:
    """Examine one version of one entry. Nothing that it does or raises ends the run."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    entry = next(e for e in entries(corpus) if (e.dialect, e.name) == (dialect, name))
    measured = Measured()
    try:
        with limited(budget):
            subject = subject_of(entry, version, column)
            if isinstance(subject, str):
                measured.problem = f"not bound: {subject}"
                return measured
            for verdict in examine(subject):
                measured.verdicts.setdefault(verdict.status, []).append(verdict.invariant)
                if verdict.status in ("bug", "suspect", "latent") and verdict.violation is not None:
                    measured.what[verdict.invariant] = f"{verdict.severity}: {verdict.violation.what}"
                if verdict.status == "could not run":
                    measured.what[verdict.invariant] = verdict.reason
    except Exception as error:
        measured.problem = f"{type(error).__name__}: {error}"
    ran = set(measured.verdicts) - {"could not run"}
    if measured.verdicts and not ran:
        measured.problem = measured.problem or f"could not run: {next(iter(measured.what.values()))}"
        measured.verdicts = {}
    return measured


def subject_of(entry: Entry, version: str, column: str) -> Subject | str:
    """The subject of a column, or the reason why there is none."""
    if column == "unbound":
        return _discovered(entry, version)
    subject = entry.bound(entry.version(version))
    return subject if column == "bound" else replace(subject, definition=entry.definition)


def _discovered(entry: Entry, version: str) -> Subject | str:
    """What the sentinel makes of the module on its own."""
    for found in subjects_of(f"{entry.module(version)}:{entry.name.partition('.')[0]}"):
        told = found.name if isinstance(found, Subject) else found.binding
        if told == entry.name or told.startswith(f"{entry.name}."):
            return found if isinstance(found, Subject) else found.reason
    return "the module is searched, and it is not among what is found"


class OutOfTime(Exception):
    """The budget of one subject is spent."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise in this process's main thread when the seconds are over."""

    def stop(*_: Any) -> None:
        raise OutOfTime(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)

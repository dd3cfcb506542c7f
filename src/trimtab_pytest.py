"""The pytest plugin: `pytest --trimtab mypkg.losses` checks your functions against the invariants, one test per check.

It is a separate module, so that a session without `--trimtab` imports neither Trimtab nor torch. The functions run in a
child process. One that dies or hangs fails its own tests, and the session goes on.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trimtab.sentinel.examination.supervise import Examination

Number = tuple[int, int, int]


class TrimtabWarning(UserWarning):
    """A suspect, a latent bug, a convention or a matter of hygiene: worth reading, but not a failure."""


class Found(Exception):
    """A check that found something."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trimtab", "training-signal invariants")
    group.addoption(
        "--trimtab", action="append", default=[], metavar="TARGET",
        help="Check the functions of a module against the invariants: mypkg, mypkg.losses, mypkg.losses:my_loss, "
        "losses.py.",
    )  # fmt: skip
    group.addoption("--trimtab-seed", type=int, default=0, help="Seed of the search for counter-examples.")
    group.addoption("--trimtab-examples", type=int, default=12, help="Random cases per check.")
    group.addoption(
        "--trimtab-time-limit", type=float, default=120.0, metavar="SECONDS",
        help="Give a function up when it has not answered for this long.",
    )  # fmt: skip


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for target in config.getoption("--trimtab") or ():
        items.extend(_items(session, target))


def _items(session: pytest.Session, target: str) -> Iterator[pytest.Item]:
    from trimtab.errors import TrimtabError

    try:
        told = Told(session, target)
        listed = told.listed()
    except TrimtabError as error:
        raise pytest.UsageError(f"--trimtab {target}: {error}") from error
    if not listed:
        raise pytest.UsageError(f"--trimtab {target}: there is no function to check in it")
    for event in listed:
        number: Number = tuple(event["number"])
        if event["event"] == "at":
            for name in event["invariants"]:
                label = f"trimtab::{event['label']}::{name}"
                yield Check.from_parent(session, name=label, told=told, number=number, invariant=name)
        elif event["event"] == "unbound":
            label = f"trimtab::{event['unbound']['subject']}"
            yield Check.from_parent(session, name=label, told=told, skipped=event["unbound"]["reason"])
        else:
            lost = event["verdict"]
            yield Check.from_parent(session, name=f"trimtab::{lost['subject']}", told=told, failed=lost["reason"])


class Told:
    """One target: its functions, and the verdicts on those that were asked for. The child lives through the session."""

    def __init__(self, session: pytest.Session, target: str) -> None:
        from trimtab.sentinel import examine
        from trimtab.sentinel.examination.job import Job, locate
        from trimtab.sentinel.examination.limits import Limits
        from trimtab.sentinel.examination.supervise import Examination

        assert examine  # asking for it says what to install, before a child is started in vain
        chosen: dict[str, Any] = {name: session.config.getoption(f"--trimtab-{name}") for name in ("seed", "examples")}
        patience: Any = session.config.getoption("--trimtab-time-limit")
        job = Job(target, **locate(target)[0], **chosen)
        limits = Limits(processes=1, seconds=float(patience))
        self.session, self.examination = session, Examination(job, limits)
        session.config.add_cleanup(lambda: _close(self.examination))
        self._done: set[int] = set()

    def listed(self) -> list[dict[str, Any]]:
        """Every function that could be bound, could not, or was lost while it was bound; in source order."""
        self.examination.run(self.examination.chosen(), only_bind=True)
        kinds = ("at", "unbound", "verdict")
        heard = [event for event in self.examination.heard if event["event"] in kinds]
        bound = [event for event in heard if event["event"] != "at" or event["number"][2] >= 0]
        self.examination.heard.clear()
        return sorted(
            (event for event in bound if event.get("is_asked", True)), key=lambda event: tuple(event["number"])
        )

    def verdict(self, number: Number, invariant: str) -> Mapping[str, Any]:
        """The verdict on a function. The first one to ask has all checks of its unit run, those that were selected."""
        if number[0] not in self._done:
            self._done.add(number[0])
            own = [one for one in self.session.items if isinstance(one, Check) and one.told is self]
            asked = dict.fromkeys(one.invariant for one in own if one.number[0] == number[0])
            self.examination.run([number[0]], invariants=tuple(asked))
        verdicts = [e for e in self.examination.heard if e["event"] == "verdict"]
        for event in verdicts:
            if tuple(event["number"]) == number and event["verdict"]["invariant"] == invariant:
                return event["verdict"]
        # It was lost before this check: at another one, or while it was bound again.
        whole = ((number[0], number[1], -1), (number[0], -1, -1))
        lost = [e["verdict"] for e in verdicts if tuple(e["number"]) in (number, *whole)]
        return lost[-1] if lost else {"status": "could not run", "reason": "its process told no verdict"}


def _close(examination: Examination) -> None:
    examination.__exit__(None, None, None)


class Check(pytest.Item):
    """One invariant checked against one function."""

    def __init__(
        self, *, told: Told, number: Number = (-1, -1, -1), invariant: str = "", skipped: str = "", failed: str = "",
        **rest: Any,
    ) -> None:  # fmt: skip
        super().__init__(**rest)
        self.told, self.number, self.invariant = told, number, invariant
        self.skipped, self.failed = skipped, failed

    def runtest(self) -> None:
        if self.skipped:
            pytest.skip(f"could not bind: {self.skipped}")
        if self.failed:
            raise Found(f"could not run: {self.failed}")
        verdict = self.told.verdict(self.number, self.invariant)
        if verdict["status"] in ("waived", "could not exercise"):
            pytest.skip(f"{verdict['status']}: {verdict['reason']}")
        if verdict["status"] == "could not run":
            raise Found(f"could not run: {verdict['reason']}")
        if verdict["violation"] is None:
            return
        if verdict["status"] == "bug":
            raise Found(_told(verdict))
        warnings.warn(TrimtabWarning(f"{verdict['status']}: {verdict['violation']['what']}"), stacklevel=1)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Found):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[str, int | None, str]:
        return self.name, None, self.name


def _told(verdict: Mapping[str, Any]) -> str:
    from trimtab.sentinel.invariants.declare import INVARIANTS

    case, found = verdict["case"], verdict["violation"]
    rows = [f"    {i}: {' '.join(kinds)}" for i, kinds in enumerate(case["kinds"])] if case is not None else []
    return "\n".join([
        f"{verdict['subject']} breaks {verdict['invariant']} ({verdict['severity']})",
        f"  {found['what']}",
        f"  observed: {found['observed']}",
        f"  expected: {found['expected']}",
        "  smallest case, one sequence per row (p prompt, a action, o observation):", *rows,
        f"  repair: {INVARIANTS[verdict['invariant']].repair}",
        f"  more: trimtab explain {verdict['invariant']}",
    ])  # fmt: skip

"""The pytest plugin: `pytest --trimtab mypkg.losses` checks your functions against the invariants, one test per check.

It is a separate module, so that a session without `--trimtab` imports neither Trimtab nor torch.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from trimtab.sentinel import Subject


class TrimtabWarning(UserWarning):
    """A convention or a matter of hygiene: worth reading, but not a failure."""


class Found(Exception):
    """A check that found something."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trimtab", "training-signal invariants")
    group.addoption(
        "--trimtab", action="append", default=[], metavar="TARGET",
        help="Check the functions of a module against the invariants: mypkg.losses, mypkg.losses:my_loss, losses.py.",
    )  # fmt: skip
    group.addoption("--trimtab-seed", type=int, default=0, help="Seed of the search for counter-examples.")
    group.addoption("--trimtab-examples", type=int, default=12, help="Random cases per check.")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for target in config.getoption("--trimtab") or ():
        items.extend(_items(session, target))


def _items(session: pytest.Session, target: str) -> Iterator[pytest.Item]:
    from trimtab.errors import TrimtabError
    from trimtab.sentinel import INVARIANTS, Subject
    from trimtab.sentinel.examination.job import Job, locate, subjects

    try:
        where, _ = locate(target)
        found = list(subjects(Job(target, **where)))
    except TrimtabError as error:
        raise pytest.UsageError(f"--trimtab {target}: {error}") from error
    if not found:
        raise pytest.UsageError(f"--trimtab {target}: there is no function to check in it")
    for one in found:
        if isinstance(one, Subject):
            for name in one.promises or INVARIANTS:
                yield Check.from_parent(session, name=f"trimtab::{one.label}::{name}", subject=one, invariant=name)
        else:
            yield Check.from_parent(session, name=f"trimtab::{one.binding}", reason=one.reason)


class Check(pytest.Item):
    """One invariant checked against one function."""

    def __init__(self, *, subject: Subject | None = None, invariant: str = "", reason: str = "", **rest: Any) -> None:
        super().__init__(**rest)
        self.subject, self.invariant, self.reason = subject, invariant, reason

    def runtest(self) -> None:
        from trimtab.sentinel import check

        if self.subject is None:
            pytest.skip(f"could not bind: {self.reason}")
        seed, examples = (int(self.config.getoption(f"--trimtab-{name}", 0) or 0) for name in ("seed", "examples"))
        with _one_thread():
            verdict = check(self.subject, self.invariant, seed=seed, examples=examples)
        if verdict.status in ("waived", "could not exercise"):
            pytest.skip(f"{verdict.status}: {verdict.reason}")
        if verdict.status == "could not run":
            raise Found(f"could not run: {verdict.reason}")
        if verdict.violation is None:
            return
        if verdict.status == "bug":
            raise Found(_told(verdict))
        warnings.warn(TrimtabWarning(f"{verdict.status}: {verdict.violation.what}"), stacklevel=1)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Found):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[str, int | None, str]:
        return self.name, None, self.name


@contextmanager
def _one_thread() -> Generator[None]:
    """The tensors of a check are tiny, so more threads only slow it down."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _told(verdict: Any) -> str:
    from trimtab.sentinel.invariants.declare import INVARIANTS

    case, found = verdict.case, verdict.violation
    rows = [f"    {i}: {' '.join(kinds)}" for i, kinds in enumerate(case.kinds)] if case is not None else []
    return "\n".join([
        f"{verdict.subject} breaks {verdict.invariant} ({verdict.severity})",
        f"  {found.what}",
        f"  observed: {found.observed}",
        f"  expected: {found.expected}",
        "  smallest case, one sequence per row (p prompt, a action, o observation):", *rows,
        f"  repair: {INVARIANTS[verdict.invariant].repair}",
        f"  more: trimtab explain {verdict.invariant}",
    ])  # fmt: skip

"""A watch must never stop the run that it watches: the only place that catches what goes wrong inside of it."""

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

LOG = logging.getLogger("trimtab.watch")

Taken = ParamSpec("Taken")
Given = TypeVar("Given")


class Careful(Protocol):
    """What has an opinion on its own failures."""

    strict: bool
    failures: list[str]
    rank: int


Watcher = TypeVar("Watcher", bound=Careful)


def harmless(
    default: Callable[[], Given],
) -> Callable[
    [Callable[Concatenate[Watcher, Taken], Given]],
    Callable[Concatenate[Watcher, Taken], Given],
]:
    """Keep an error as a sentence, log the first, and return the default; a strict watch raises it."""

    def wrapped(method: Callable[Concatenate[Watcher, Taken], Given]) -> Callable[Concatenate[Watcher, Taken], Given]:
        @functools.wraps(method)
        def run(self: Watcher, *given: Taken.args, **named: Taken.kwargs) -> Given:
            try:
                return method(self, *given, **named)
            except Exception as error:
                if self.strict:
                    raise
                note(self, method.__name__, error)
                return default()

        return run

    return wrapped


def note(watcher: Any, where: str, error: Exception) -> None:
    """Keep a failure of the watch itself, and log the first one of rank 0."""
    text = f"watch: {where} failed ({type(error).__name__}: {error}), so this step is not watched. The run goes on."
    if not watcher.failures and watcher.rank == 0:
        LOG.warning(text, exc_info=error)
    if text not in watcher.failures:
        watcher.failures.append(text)

"""Which path runs: the only place that chooses between the shortcuts and the formulas as they are written."""

import os
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Literal, TypeVar, get_args

from trimtab.errors import SignalError, unknown_word
from trimtab.signal.composition import Recipe
from trimtab.signal.fast.fused import FUSED
from trimtab.signal.fast.per_sequence import PER_SEQUENCE

Path = Literal["fast", "reference"]
Watch = Literal["many", "all", "few"]
Word = TypeVar("Word")
VARIABLE = "TRIMTAB_PATH"
"""The environment variable that chooses for a whole process."""

_chosen: ContextVar[str | None] = ContextVar("path", default=None)
_watched: ContextVar[str] = ContextVar("watch", default="all")


def is_fast() -> bool:
    """Whether shortcuts are taken where there are any."""
    return (_chosen.get() or of_process()) == "fast"


@cache
def of_process() -> str:
    """What the environment says, read once."""
    said = os.environ.get(VARIABLE) or "fast"
    if said not in get_args(Path):
        raise SignalError(unknown_word("environment", VARIABLE, said, get_args(Path)))
    return said


def use_path(path: Path) -> AbstractContextManager[None]:
    """Run the signal on this path inside the block: `with use_path("reference"): …`."""
    if path not in get_args(Path):
        raise SignalError(unknown_word("use_path", "path", path, get_args(Path)))
    return _set(_chosen, path)


def is_all_watched() -> bool:
    """Whether every metric is computed that costs little."""
    return _watched.get() != "few"


def are_many_watched() -> bool:
    """Whether metrics are computed too that take passes over the tokens of their own."""
    return _watched.get() == "many"


def use_metrics(watch: Watch) -> AbstractContextManager[None]:
    """Compute fewer or more metrics inside the block.

    `few` leaves out histograms, and the ratios of the current policy; `many` adds every number in use about how sampler
    and trainer differ, and how much of the returns the critic explains.
    """
    if watch not in get_args(Watch):
        raise SignalError(unknown_word("use_metrics", "watch", watch, get_args(Watch)))
    return _set(_watched, watch)


@contextmanager
def _set(variable: ContextVar[Word], word: Word) -> Generator[None]:
    before = variable.set(word)
    try:
        yield
    finally:
        variable.reset(before)


def shortcuts_of(recipe: Recipe) -> str:
    """Which path a recipe takes now, in words: for the record of a run."""
    if not is_fast():
        return "reference"
    names = {part.formula.name for part in recipe.parts()}
    fused, once = sorted(names & FUSED.keys()), sorted(names & PER_SEQUENCE.keys())
    plain = sorted(
        name for name in names - {*fused, *once} if name.split(".")[0] in ("policy_loss", "importance", "keep")
    )
    said = [("fused", fused), ("per sequence", once), ("as written", plain)]
    return "fast" + "".join(f"; {how}: {', '.join(found)}" for how, found in said if found)

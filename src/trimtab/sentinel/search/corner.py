"""What the batches that break a law have in common, where ordinary batches keep it: the condition of a latent bug.

The only place that turns a bug of corner cases into a latent bug.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.invariants.bounded import EMPTY_ROW

Shown = Callable[[Case], bool | None]
"""Whether a law is broken on a case; None where the function does not take the case."""

LEAST = 3
"""How many ordinary batches must keep the law."""


@dataclass(frozen=True)
class Corner:
    """A property of batches that most runs never have, and some runs have now and then."""

    condition: str
    has: Callable[[Case], bool]


def _answers(case: Case) -> list[int]:
    """Tokens after the prompt, per sequence."""
    return [sum(kind != "p" for kind in row) for row in case.kinds]


def _trained(case: Case) -> list[int]:
    return [sum(kind == "a" for kind in row) for row in case.kinds]


def _group_sizes(case: Case) -> list[int]:
    groups = [int(group) for group in case.sequences["group"]]
    return [groups.count(group) for group in set(groups)]


CORNERS = (
    Corner("every answer of a batch is one token long", lambda case: max(_answers(case), default=0) <= 1),
    Corner("no answer of a batch trains on more than one token", lambda case: max(_trained(case), default=0) <= 1),
    Corner("a batch with one sequence", lambda case: case.num_sequences == 1),
    Corner(EMPTY_ROW, lambda case: min(_trained(case), default=0) == 0),
    Corner("a group with one sample", lambda case: min(_group_sizes(case), default=1) == 1),
)
"""The narrow ones first: the first that fits is named."""


def corner_of(shown: Shown, searched: Iterable[Case], ordinary: Iterable[Case], *, usual: Collection[str] = ()) -> str:
    """The condition under which a law is broken; empty where an ordinary batch breaks it, or nothing is in common.

    Conditions in `usual` are no corners for the function: its callers meet them every day.
    """
    kept = [shown(case) for case in ordinary]
    if any(kept) or sum(one is False for one in kept) < LEAST:
        return ""
    broken: list[Case] = []
    sound: list[Case] = []
    for case in searched:
        is_broken = shown(case)
        if is_broken is not None:
            (broken if is_broken else sound).append(case)
    # Groups and single rows are in many batches: a corner explains a violation only where its absence keeps the law.
    fitting = (c for c in CORNERS if broken and all(map(c.has, broken)) and not all(map(c.has, sound)))
    condition = next((corner.condition for corner in fitting), "")
    return "" if condition in usual else condition

"""The only place that decides which parts of a counter-example are drawn: fields that matter, numbers that differ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from trimtab.sentinel.reports.data import CaseData, ViolationData
from trimtab.sentinel.reports.wording import number, one_line, plural

BOOKKEEPING = frozenset({"token_key", "length", "group"})
"""Fields that are not drawn: internal ones, the length, which is visible, and the group, which is shown elsewhere."""
CLOSE = 1e-9


@dataclass(frozen=True)
class Drawing:
    """A case as a table, one row per sequence: kinds[i] holds the letters of its tokens, a field has one cell per row.

    per_sequence = {"reward": ["1", "100"]}, per_token = {"logp_old": [["-1", "-2"], ["-1"]]}
    """

    kinds: list[str]
    per_sequence: dict[str, list[str]]
    per_token: dict[str, list[list[str]]]
    everywhere: dict[str, str]
    """Fields that have the same value, not zero, at every token or sequence."""
    padding: str
    size: str


def drawn(case: CaseData) -> Drawing:
    """The parts that a person needs to see: fields that vary, and the values of constant fields that are not zero."""
    kinds = case["kinds"]
    per_sequence: dict[str, list[str]] = {}
    per_token: dict[str, list[list[str]]] = {}
    everywhere: dict[str, str] = {}
    groups = case["sequences"].get("group", [])
    if len(set(map(str, groups))) > 1 and len(groups) == len(kinds):
        per_sequence["group"] = [number(value) for value in groups]
    for name, values in _told(case["sequences"], len(kinds)):
        if _varies(values):
            per_sequence[name] = [number(value) for value in values]
        elif values and not _is_nothing(values[0]):
            everywhere[name] = number(values[0])
    for name, values in _told(case["tokens"], sum(map(len, kinds))):
        if _varies(values):
            per_token[name] = _cut([number(value) for value in values], kinds)
        elif values and not _is_nothing(values[0]):
            everywhere[name] = number(values[0])
    return Drawing(kinds, per_sequence, per_token, everywhere, _padding(case), _size(kinds))


def _told(fields: Mapping[str, list[object]], count: int) -> list[tuple[str, list[object]]]:
    """Fields with one entry per token or per sequence. A report of another program may hold others."""
    return [(one_line(k), v) for k, v in fields.items() if k not in BOOKKEEPING and len(v) == count]


def _varies(values: Sequence[object]) -> bool:
    """Whether a field varies. A single entry counts as varying, because there is nothing else to show."""
    return len({number(value) for value in values}) > 1 or (len(values) == 1 and not _is_nothing(values[0]))


def _is_nothing(value: object) -> bool:
    return value is None or value in (0, 0.0, False)


def _cut(cells: list[str], kinds: list[str]) -> list[list[str]]:
    ends = list(accumulate(len(row) for row in kinds))
    return [cells[end - len(row) : end] for row, end in zip(kinds, ends, strict=True)]


def _size(kinds: list[str]) -> str:
    trained = sum(row.count("a") for row in kinds)
    tokens = sum(map(len, kinds))
    return f"{plural(len(kinds), 'sequence')}, {plural(tokens, 'token')}, {trained or 'none'} of them trained"


def _padding(case: CaseData) -> str:
    """How padding differs from the default."""
    parts: list[str] = []
    if case["side"] == "left":
        parts.append("on the left")
    if case["extra_columns"]:
        parts.append(f"{plural(case['extra_columns'], 'more column')}")
    if not _is_nothing(case["fill"]):
        parts.append(f"filled with {number(case['fill'])}")
    return f"padding: {', '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class Place:
    """One position of a result with its observed and expected value."""

    at: int
    observed: str
    expected: str
    differs: bool


def places(violation: ViolationData) -> list[Place]:
    """Observed against expected, position by position; empty unless they are two lists of the same length."""
    seen, owed = violation["observed"], violation["expected"]
    if isinstance(seen, list) and isinstance(owed, bool | int | float):
        owed = [owed] * len(cast("list[object]", seen))
    if not isinstance(seen, list) or not isinstance(owed, list):
        return []
    left, right = cast("list[object]", seen), cast("list[object]", owed)
    if len(left) != len(right) or any(isinstance(value, list | dict) for value in (*left, *right)):
        return []
    named = frozenset(violation["positions"])
    return [
        Place(i, number(a), number(b), i in named if named else _apart(a, b))
        for i, (a, b) in enumerate(zip(left, right, strict=True))
    ]


def differing(violation: ViolationData) -> list[int]:
    """Positions at which observed and expected differ: those reported, else those that the numbers show."""
    return violation["positions"] or [place.at for place in places(violation) if place.differs]


def _apart(first: object, second: object) -> bool:
    try:
        a, b = float(cast("float", first)), float(cast("float", second))
    except (TypeError, ValueError):
        return first != second
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) != math.isnan(b)
    return not math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE)

"""The only place that turns a report's numbers into words: values, lists, line ranges, effects, changes."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import cast

from trimtab.sentinel.reports.data import Boundary, Effect, Report, VerdictData, ViolationData

SHOWN = 12
"""Number of entries of a list that are shown; the rest is only counted."""
LONGEST = 400
"""Largest number of characters of one value."""

_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def clean(text: str) -> str:
    """Remove characters that move a cursor, reverse text or are illegal in XML. The texts come from foreign code."""
    return _UNPRINTABLE.sub("", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Clean text on one line."""
    return " ".join(clean(text).split())


def number(value: object) -> str:
    """One value as a person writes it.

    >>> number(-0.0), number(2.0), number(1 / 3), number(True), number(float("nan")), number("inf"), number(None)
    ('0', '2', '0.333333', 'true', 'nan', 'inf', 'none')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # plus 0 turns -0 into 0
    return one_line(str(value))


def words(value: object, positions: Sequence[int] = ()) -> str:
    """Any value on one line. Of a long list, the entries at `positions`, else the first ones.

    >>> words([0.0] * 20), words([0.0] * 19 + [1.0], [19])
    ('[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, … 8 more]', '[at 19: 1, … 19 more]')
    """
    if isinstance(value, Mapping):
        entries = [f"{number(k)}: {words(v)}" for k, v in cast("Mapping[object, object]", value).items()]
        text = "{" + ", ".join(few(entries)) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(_entries(cast("Sequence[object]", value), positions)) + "]"
    else:
        text = number(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… {len(text) - LONGEST} more characters"


def _entries(values: Sequence[object], positions: Sequence[int]) -> list[str]:
    inside = [place for place in positions if 0 <= place < len(values)]
    if len(values) <= SHOWN or not inside or max(inside[:SHOWN]) < SHOWN:
        return few([words(value) for value in values])
    shown = [f"at {place}: {words(values[place])}" for place in inside[:SHOWN]]
    return [*shown, f"… {len(values) - len(shown)} more"]


def few(entries: Sequence[str], limit: int = SHOWN) -> list[str]:
    """The first entries, and how many more there are. A single remaining entry is shown instead of "1 more"."""
    if len(entries) <= limit + 1:
        return list(entries)
    return [*entries[:limit], f"… {len(entries) - limit} more"]


def plural(count: int, one: str, many: str | None = None) -> str:
    """
    >>> plural(1, "bug"), plural(2, "bug"), plural(0, "bug"), plural(2, "hygiene", "hygiene")
    ('1 bug', '2 bugs', 'no bugs', '2 hygiene')
    """
    name = one if count == 1 else many or f"{one}s"
    return f"{count or 'no'} {name}"


def ranges(executed: Sequence[int], missed: Sequence[int]) -> str:
    """Executed lines as ranges. Lines that cannot run (blank, comments, the rest of a statement) do not end a range.

    >>> ranges([100, 102, 103, 107], [105]), ranges([], [3])
    ('100–103, 107', 'none')
    """
    spans: list[list[int]] = []
    skipped = sorted(missed)
    for line in sorted(set(executed)):
        if spans and not any(spans[-1][1] < gap < line for gap in skipped):
            spans[-1][1] = line
        else:
            spans.append([line, line])
    return ", ".join(few([str(a) if a == b else f"{a}–{b}" for a, b in spans])) or "none"


def ran(boundary: Boundary) -> str:
    """Which lines ran: "100–143 of 100–180"."""
    return f"{ranges(boundary['executed'], boundary['missed'])} of {boundary['first_line']}–{boundary['last_line']}"


def loaded(boundary: Boundary) -> str:
    """How the code was loaded, and the stubs for missing modules."""
    how = {"cut": "cut from source", "import": "imported", "stubs": "imported with stubs"}.get(boundary["how"], "")
    stubs, used = boundary["stubs"], boundary["stubs_used"]
    if not stubs:
        return how
    return f"{how}; stubs: {', '.join(few(stubs))}; used while running: {', '.join(few(used)) or 'none'}"


def effect_words(effect: Effect | None) -> str:
    """What the violation does to the training signal, in one sentence; empty when it was not measured."""
    if effect is None:
        return ""
    parts: list[str] = []
    change = effect["relative_change"]
    if change is not None:
        size = float(change)
        if math.isinf(size) or math.isnan(size):
            parts.append(f"the {effect['on']} changes without bound (relative change {number(change)})")
        elif size < 1:
            parts.append(f"the {effect['on']} changes by {100 * size:.3g} % of its size")
        else:
            parts.append(f"the {effect['on']} changes by {size:.3g} times its size")
    else:
        parts.append(f"on the {effect['on']}")
    if effect["leaked_positions"]:
        parts.append(f"leaks at {', '.join(few([str(place) for place in effect['leaked_positions']]))}")
    return "; ".join(parts)


def changed(violation: ViolationData) -> list[str]:
    """What was changed in the case before the results were wrong: `reward of sequence 2: 0.5 → 100`."""
    lines = [
        f"{one['field']}{' ' + one['place'] if one['place'].startswith('without') else _of(one['place'])}: "
        f"{words(one['before'])} → {words(one['after'])}"
        for one in violation.get("trigger", [])
        if words(one["before"]) != words(one["after"])
    ]
    rest = violation.get("trigger_left_out", 0)
    return [one_line(line) for line in lines] + ([f"… and {rest} more"] if rest else [])


def when_drawn(verdict: VerdictData) -> str:
    """Whether the case is drawn before or after the change; empty where nothing was changed."""
    violation = verdict["violation"]
    return f"drawn {violation.get('drawn', 'before')} the change" if violation and violation.get("trigger") else ""


def _of(place: str) -> str:
    return f" of {place}" if place else ""


def happened(verdict: VerdictData) -> str:
    """The explanation of a verdict on one line."""
    violation = verdict["violation"]
    return one_line(violation["what"] if violation else verdict["reason"])


def target_name(report: Report) -> str:
    """`areal 1.0.4`, `slime at 045310b2b`, or the name alone."""
    target = report["target"]
    version = f" {target['version']}" if target["version"] else ""
    commit = f" at {target['commit'][:9]}" if target["commit"] else ""
    return one_line(f"{target['name']}{version}{commit}")


def options_words(options: Mapping[str, object]) -> str:
    """`std=true, level="batch"`."""
    return ", ".join(
        f"{one_line(name)}={json.dumps(one_line(value)) if isinstance(value, str) else words(value)}"
        for name, value in options.items()
    )


IN_PARTS = ("split", "metric_reduction", "parallel_layout")
"""Laws that compare one call with several."""


def labels(verdict: VerdictData) -> tuple[str, str]:
    """What the two numbers of a violation are. Of two runs that should agree, nobody knows which one is right."""
    violation = verdict["violation"]
    if verdict["invariant"] in IN_PARTS:
        return "in parts", "as one"
    return ("after", "before") if violation is not None and violation.get("trigger") else ("observed", "expected")

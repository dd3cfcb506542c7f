"""The only place that draws the evidence of one verdict as lines of text: the trigger, the numbers, the case."""

import textwrap
from collections.abc import Sequence

from trimtab.sentinel.reports.data import CaseData, VerdictData
from trimtab.sentinel.reports.drawing import Drawing, differing, drawn
from trimtab.sentinel.reports.wording import changed, effect_words, few, labels, one_line, when_drawn, words

WIDTH = 110
LABEL = 10
"""Width of the labels on the left: observed, expected, case."""
AGREE = " (the two should agree)"
LEGEND = "p prompt, a trained, o not trained"


def evidence(verdict: VerdictData) -> list[str]:
    """What was changed, observed above expected, the effect, and a drawing of the smallest case."""
    lines: list[str] = []
    violation = verdict["violation"]
    if violation is not None:
        places = differing(violation)
        lines += _each("changed", changed(violation))
        seen, owed = labels(verdict)
        lines += said(seen, words(violation["observed"], places))
        lines += said(owed, words(violation["expected"], places) + (AGREE if owed != "expected" else ""))
        lines += said("differs", f"at {', '.join(few([str(p) for p in places]))}") if places else []
        lines += said("effect", effect_words(violation["effect"]))
    return lines + (_case(verdict["case"], when_drawn(verdict)) if verdict["case"] is not None else [])


def _case(case: CaseData, when: str) -> list[str]:
    drawing = drawn(case)
    told = [drawing.size, drawing.padding, when, LEGEND]
    lines = said("case", "; ".join(part for part in told if part))
    lines += [" " * LABEL + line for line in drawn_lines(drawing)]
    same = ", ".join(f"{name} {value}" for name, value in drawing.everywhere.items())
    return [*lines, *(said("", f"everywhere: {same}") if same else [])]


def drawn_lines(drawing: Drawing, width: int = WIDTH - LABEL - 2) -> list[str]:
    """A case as lines: one row per sequence, as many columns side by side as fit, the others below."""
    rows = [str(i) for i in range(len(drawing.kinds))]
    room = width - len("row   ")
    columns = [_column("tokens", [row or "(none)" for row in _aligned([list(kinds) for kinds in drawing.kinds], room)])]
    columns += [_column(name, cells) for name, cells in drawing.per_sequence.items()]
    columns += [_column(name, _aligned(cells, room)) for name, cells in drawing.per_token.items()]
    lines: list[str] = []
    while columns:
        taken, used = 1, len(columns[0][0])
        while taken < len(columns) and used + len(columns[taken][0]) + 3 <= room:
            used += len(columns[taken][0]) + 3
            taken += 1
        shown, columns = [_column("row", rows), *columns[:taken]], columns[taken:]
        lines += ["   ".join(cells).rstrip() for cells in zip(*shown, strict=True)]
    return lines


def _aligned(rows: list[list[str]], room: int) -> list[str]:
    """The values of one field, tokens below each other, as many as fit."""
    wide = max((len(cell) for row in rows for cell in row), default=0)
    limit = max(1, (room - len(" … 10000 more")) // (wide + 1))
    return [" ".join(cell.rjust(wide) for cell in few(row, limit)) for row in rows]


def _column(name: str, cells: Sequence[str]) -> list[str]:
    wide = max(map(len, [name, *cells]))
    return [cell.ljust(wide) for cell in [name, *cells]]


def said(label: str, text: str) -> list[str]:
    """`label     text`, wrapped with a hanging indent."""
    if not text:
        return []
    first = f"{label:<{LABEL}}"
    rest = " " * len(first)
    return textwrap.wrap(one_line(text), WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _each(label: str, texts: Sequence[str]) -> list[str]:
    """The label once, one text per line."""
    return [line for i, text in enumerate(texts) for line in said("" if i else label, text)]

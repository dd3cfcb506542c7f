"""The only place that draws the table of all checks: one row per function, one column per invariant."""

from collections.abc import Sequence
from html import escape

from trimtab.sentinel.reports import detail
from trimtab.sentinel.reports.data import Report, Status, VerdictData
from trimtab.sentinel.reports.outcome import FINDINGS
from trimtab.sentinel.reports.wording import one_line

LETTERS: dict[Status, tuple[str, str, str]] = {
    "bug": ("B", "bug-cell", "bug"),
    "suspect": ("S", "hygiene-cell", "suspect: wrong under the binding that was guessed"),
    "latent": ("L", "hygiene-cell", "latent: wrong only where a run meets the condition that is named"),
    "hygiene": ("H", "hygiene-cell", "hygiene: right results, but unsafe for careless callers"),
    "convention": ("C", "convention-cell", "convention, named"),
    "holds": ("✓", "holds", "holds"),
    "waived": ("W", "waived", "waived, with a reason"),
    "could not exercise": ("–", "unexercised", "could not exercise"),
    "could not run": ("!", "failed", "could not run"),
}
"""For each status: its letter, its CSS class and its text in the legend."""


def matrix(report: Report, anchors: list[str]) -> str:
    """One row per function, one column per invariant. Where a check did not apply, the cell is empty."""
    columns, idle = names(report)
    rows: dict[str, dict[str, int]] = {subject["label"]: {} for subject in report["subjects"]}
    for i, verdict in enumerate(report["verdicts"]):
        rows.setdefault(verdict["subject"], {})[verdict["invariant"]] = i
    place = {subject["label"]: i for i, subject in enumerate(report["subjects"])}
    top = "".join(f'<th><a href="#law-{shown(name)}">{shown(name)}</a></th>' for name in columns)
    body = "".join(
        f"<tr><th>{_row_name(label, place)}</th>"
        + "".join(f"<td>{_cell(report, anchors, cells[name]) if name in cells else ''}</td>" for name in columns)
        + "</tr>\n"
        for label, cells in rows.items()
    )
    legend = "".join(f'<li><i class="cell {kind}">{letter}</i>{said}</li>' for letter, kind, said in LETTERS.values())
    return (
        f'<ul class="legend">{legend}</ul><div class="matrix"><table><thead><tr><th></th>{top}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>{_idle(idle)}{_checks(report, anchors)}"
    )


def _row_name(label: str, place: dict[str, int]) -> str:
    name, bracket, options = label.partition("(")
    text = f'{shown(name)}<small title="{shown(label)}">{shown(bracket + options)}</small>'
    return f'<a href="#s{place[label]}">{text}</a>' if label in place else text


def _idle(names: list[str]) -> str:
    if not names:
        return ""
    links = ", ".join(f'<a href="#law-{shown(name)}">{shown(name)}</a>' for name in names)
    return f'<p class="note">These invariants apply to none of the functions: {links}.</p>'


def names(report: Report) -> tuple[list[str], list[str]]:
    """Invariants of this report, those with findings first; and the invariants that apply to none of the functions."""
    order: Sequence[Status] = tuple(LETTERS)
    worst: dict[str, int] = {}
    for verdict in report["verdicts"]:
        rank = min(order.index(verdict["status"]), order.index("holds"))
        worst[verdict["invariant"]] = min(worst.get(verdict["invariant"], rank), rank)
    used = {v["invariant"] for v in report["verdicts"] if v["status"] != "could not exercise"}
    ordered = sorted(worst, key=lambda name: (worst[name], name))
    return [n for n in ordered if n in used] or ordered, [n for n in ordered if used and n not in used]


def _cell(report: Report, anchors: list[str], i: int) -> str:
    verdict = report["verdicts"][i]
    letter, kind, _ = LETTERS[verdict["status"]]
    title = f"{verdict['invariant']}: {verdict['status']}"
    return f'<a class="cell {kind}" href="#{anchors[i]}" title="{shown(title)}">{letter}</a>'


def _checks(report: Report, anchors: list[str]) -> str:
    """One line for each cell without a finding, visible after a click on the cell."""
    lines = [
        f'<p class="check" id="{anchors[i]}">{detail.line(verdict)}</p>\n'
        for i, verdict in enumerate(report["verdicts"])
        if not is_drawn(verdict)
    ]
    hint = '<p class="note hint">Click on a cell to see its details.</p>'
    return f'<div class="checks">{hint}\n{"".join(lines)}</div>'


def is_drawn(verdict: VerdictData) -> bool:
    """Whether a verdict has a counter-example, which the page draws among the findings or the conventions."""
    return verdict["status"] in FINDINGS or (verdict["status"] == "convention" and verdict["violation"] is not None)


def shown(text: str) -> str:
    """Foreign text, on one line and escaped."""
    return escape(one_line(text))

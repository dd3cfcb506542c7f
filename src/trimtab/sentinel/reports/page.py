"""The only place that lays out the page of a check: one self-contained file, a matrix and the details of each cell.

There are no scripts: a cell is a link, and its details become visible when they are the target of the link.
"""

import re
from collections.abc import Sequence
from html import escape

from trimtab.sentinel.reports import detail
from trimtab.sentinel.reports.compare import Comparison
from trimtab.sentinel.reports.data import Report, Status, Teaching, VerdictData
from trimtab.sentinel.reports.outcome import FINDINGS, counted, findings, grouped, with_status
from trimtab.sentinel.reports.style import CSS
from trimtab.sentinel.reports.text import conventions_found
from trimtab.sentinel.reports.wording import (
    few,
    loaded,
    one_line,
    options_words,
    ran,
    summary,
    target_name,
    words,
)

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
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
FULL = 300
"""Largest number of findings drawn on a page. The JSON report holds all of them."""


def render(report: Report, invariants: Teaching, comparison: Comparison | None = None) -> str:
    """The whole page as text. It uses no network and runs no script."""
    title = f"trimtab check · {target_name(report)}"
    anchors = _anchors(report["verdicts"])
    blocks = [
        _head(report, comparison),
        _tiles(report, comparison),
        _matrix(report, anchors),
        _findings(report, invariants, comparison, anchors),
        _conventions(report),
        _silent(report),
        _sources(report),
        _laws(report, invariants),
        _replay(report),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{shown(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">\n'
        f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n{''.join(blocks)}</main>\n</body>\n</html>\n"
    )


def shown(text: str) -> str:
    """Foreign text, on one line and escaped."""
    return escape(one_line(text))


def _anchors(verdicts: Sequence[VerdictData]) -> list[str]:
    """An anchor per verdict, made from its id, so that a link to a finding stays valid in later runs."""
    taken: set[str] = set()
    names: list[str] = []
    for i, verdict in enumerate(verdicts):
        name = "f-" + re.sub(r"[^A-Za-z0-9]+", "-", verdict["id"]).strip("-")[:80]
        name = f"{name}-{i}" if name in taken or name == "f-" else name
        taken.add(name)
        names.append(name)
    return names


def _head(report: Report, comparison: Comparison | None) -> str:
    commit = report["target"]["commit"]
    where = f" · commit {commit[:12]}" if commit else ""
    said = summary(report).removeprefix(f"{target_name(report)}: ")
    against = f" {shown(comparison.line()[:1].upper() + comparison.line()[1:])}." if comparison else ""
    return (
        f'<header><p class="over">trimtab check · seed {report["seed"]}{shown(where)}</p>'
        f"<h1>{shown(target_name(report))}</h1>"
        f'<p class="lead">{shown(said[:1].upper() + said[1:])}.{against}</p></header>\n'
    )


def _tiles(report: Report, comparison: Comparison | None) -> str:
    count = counted(report)
    unable = count["could not run"] + len(report["could_not_bind"])
    tiles = [
        ("bug" if count["bug"] else "good", count["bug"], "bug" if count["bug"] == 1 else "bugs"),
        ("hygiene" if count["suspect"] else "", count["suspect"], "suspect" if count["suspect"] == 1 else "suspects"),
        ("hygiene" if count["latent"] else "", count["latent"], "latent"),
        ("hygiene" if count["hygiene"] else "", count["hygiene"], "hygiene"),
        ("", count["convention"], "convention" if count["convention"] == 1 else "conventions"),
        ("good", count["holds"], f"of {len(report['verdicts'])} checks hold"),
        ("hygiene" if unable else "", unable, "could not run or bind"),
    ]
    if comparison is None:
        return _tile_row(tiles)
    worse = any(verdict["status"] == "bug" for verdict in comparison.new)
    since = [
        ("bug" if worse else "", len(comparison.new), "new since the baseline"),
        ("good" if comparison.fixed else "", len(comparison.fixed), "fixed"),
        ("", len(comparison.still), "still there"),
        ("hygiene" if comparison.gone_unchecked else "", len(comparison.gone_unchecked), "not checked any more"),
    ]
    return _tile_row(tiles) + _tile_row(since)


def _tile_row(tiles: Sequence[tuple[str, int, str]]) -> str:
    cells = "".join(f'<div class="tile {kind}"><b>{value}</b><span>{text}</span></div>' for kind, value, text in tiles)
    return f'<div class="tiles">{cells}</div>\n'


def _matrix(report: Report, anchors: list[str]) -> str:
    """One row per function, one column per invariant. Where a check did not apply, the cell is empty."""
    columns, idle = _names(report)
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
        '<section id="matrix"><h2>Every function against every invariant</h2>'
        f'<ul class="legend">{legend}</ul><div class="matrix"><table><thead><tr><th></th>{top}</tr></thead>'
        f"<tbody>\n{body}</tbody></table></div>{_idle(idle)}{_checks(report, anchors)}</section>\n"
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


def _names(report: Report) -> tuple[list[str], list[str]]:
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
        if not _is_folded(verdict)
    ]
    hint = '<p class="note hint">Click on a cell to see its details.</p>'
    return f'<div class="checks">{hint}\n{"".join(lines)}</div>'


def _is_folded(verdict: VerdictData) -> bool:
    """Whether a verdict has its own fold among the findings."""
    return verdict["status"] in FINDINGS or (verdict["status"] == "convention" and verdict["violation"] is not None)


def _findings(report: Report, invariants: Teaching, comparison: Comparison | None, anchors: list[str]) -> str:
    at = {id(verdict): anchors[i] for i, verdict in enumerate(report["verdicts"])}
    found = [*findings(report), *filter(_is_folded, with_status(report, "convention"))]
    fresh = {verdict["id"] for verdict in comparison.new} if comparison else None
    blocks = [
        detail.finding(report, verdict, invariants, at[id(verdict)], fresh, full=i < FULL)
        for i, verdict in enumerate(found)
    ]
    said = "" if found else "<p>Nothing was found.</p>"
    return f'<section id="findings"><h2>Findings</h2>{said}{"".join(blocks)}{_gone(comparison)}</section>\n'


def _gone(comparison: Comparison | None) -> str:
    """Findings of the baseline that are not in this report: fixed, or not checked."""
    if comparison is None or not (comparison.fixed or comparison.gone_unchecked):
        return ""
    lines = [f"<b>fixed</b> {shown(one['subject'])}, {shown(one['invariant'])}" for one in comparison.fixed]
    lines += [
        f"<b>not checked any more</b> {shown(one.verdict['subject'])}, {shown(one.verdict['invariant'])}: "
        f"{shown(one.reason)}"
        for one in comparison.gone_unchecked
    ]
    lines += [f"<b>note</b> {shown(comparison.remark)}"] if comparison.remark else []
    return f'<h3>Only in the baseline</h3><ul class="plain">{"".join(f"<li>{line}</li>" for line in lines)}</ul>'


def _listed(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f'<section><h2>{title}</h2><ul class="plain">{items}</ul></section>\n' if lines else ""


def _conventions(report: Report) -> str:
    return _listed("Conventions detected", [shown(line) for line in conventions_found(report)])


def _silent(report: Report) -> str:
    """What was not checked, and why."""
    statuses: tuple[Status, ...] = ("could not run", "could not exercise", "waived")
    lines = [
        f"<b>{status}</b>, {len(group.verdicts)} ×: {shown(group.reason)} "
        f'<span class="note">({shown(", ".join(few(group.invariants, 8)))} on '
        f"{shown(', '.join(few(group.subjects, 6)))})</span>"
        for status in statuses
        for group in grouped(with_status(report, status))
    ]
    lines = [
        f"<b>could not bind</b> {shown(one['subject'])}: {shown(one['reason'])} "
        f'<span class="note">(looked for <code>{shown(one["looked_for"])}</code>)</span>'
        for one in report["could_not_bind"]
    ] + lines
    return _listed("What was not checked, and why", lines)


def _sources(report: Report) -> str:
    """Each function: its options, its code, the lines that ran, and the stubs for missing modules."""
    known = {found["boundary"]: found for found in report["boundaries"]}
    blocks: list[str] = []
    for i, subject in enumerate(report["subjects"]):
        boundary = known.get(subject["boundary"] or "")
        facts = [("role", subject["role"] or "none"), ("options", options_words(subject["options"]))]
        facts += [("conventions", options_words(subject["conventions"]))]
        facts += [("code", subject["boundary"] or "")]
        facts += [("lines that ran", ran(boundary)), ("loaded", loaded(boundary))] if boundary else []
        facts += [("waived", words(subject["waived"]) if subject["waived"] else "")]
        blocks.append(f'<div class="source" id="s{i}"><h3>{shown(subject["label"])}</h3>{detail.facts(facts)}</div>\n')
    return f"<section><h2>Functions and the code that ran</h2>{''.join(blocks)}</section>\n" if blocks else ""


def _laws(report: Report, invariants: Teaching) -> str:
    titles = {"why": "why", "bug": "a real bug", "repair": "repair"}
    blocks = [
        f'<div class="law" id="law-{shown(name)}"><h3>{shown(name)}</h3>'
        f"<p>{shown(invariants.get(name, {}).get('statement', ''))}</p>"
        + detail.facts([(title, invariants.get(name, {}).get(key, "")) for key, title in titles.items()])
        + "</div>\n"
        for name in sorted(v for names in _names(report) for v in names)
    ]
    return f"<section><h2>The invariants</h2>{''.join(blocks)}</section>\n" if blocks else ""


def _replay(report: Report) -> str:
    facts = [
        ("command", report["command"]),
        ("seed", str(report["seed"])),
        ("examples", f"{report['examples']} per check"),
    ]
    facts += [("trimtab", report["trimtab"]), ("torch", report["torch"]), ("python", report["python"])]
    facts += [("seconds", f"{report['seconds']:.1f}")]
    said = "<p>The same command with the same seed finds the same cases.</p>"
    return f'<section id="replay"><h2>How to replay it</h2>{said}{detail.facts(facts)}</section>\n'

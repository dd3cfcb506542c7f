"""The only place that writes a report as a comment for a pull request: Markdown with one fold per finding."""

import re
from collections.abc import Sequence
from html import escape

from trimtab.sentinel.reports.causes import Finding, findings
from trimtab.sentinel.reports.compare import Comparison
from trimtab.sentinel.reports.data import Report, Status, Teaching, VerdictData
from trimtab.sentinel.reports.evidence import evidence
from trimtab.sentinel.reports.outcome import grouped, with_status
from trimtab.sentinel.reports.quiet import conventions_found
from trimtab.sentinel.reports.replay import callers, command_of, place_of
from trimtab.sentinel.reports.summary import summary
from trimtab.sentinel.reports.wording import (
    clean,
    few,
    happened,
    loaded,
    one_line,
    ran,
    target_name,
)

ROOM = 60_000
"""Largest number of characters. Large code hosts allow 65,536 in a comment."""


def render(report: Report, invariants: Teaching, comparison: Comparison | None = None) -> str:
    """The whole report. Findings that do not fit into a comment are only counted."""
    fresh = {verdict["id"] for verdict in comparison.new} if comparison else None
    end = f"<sub>{code(report['command'])} · trimtab {prose(report['trimtab'])}, torch {prose(report['torch'])}</sub>"
    head = [f"### trimtab check: {prose(target_name(report))}", prose(summary(report)), *_compared(comparison)]
    tail = [*_conventions(report), *_others(report), *_unbound(report), *_boundaries(report), end]
    blocks: list[str] = []
    found = findings(report)
    room = ROOM - sum(len(block) + 2 for block in (*head, *tail))
    for one in found:
        block = _finding(report, one, invariants, fresh)
        if room < len(block) + 2:
            blocks.append(f"… {len(found) - len(blocks)} more findings are in the full report.")
            break
        room -= len(block) + 2
        blocks.append(block)
    return "\n\n".join([*head, *blocks, *tail]) + "\n"


def prose(text: str) -> str:
    """Escape foreign text, so that it becomes no markup, no link and no mention of a person."""
    plain = escape(one_line(text), quote=False)
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", plain).replace("@", "@\u200b").replace("://", ":\u200b//")


def code(text: str) -> str:
    """A code span for any text, including backticks."""
    plain = one_line(text)
    ticks = "`" * (max((len(run) for run in re.findall("`+", plain)), default=0) + 1)
    gap = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{ticks}{gap}{plain}{gap}{ticks}"


def block_of_code(lines: Sequence[str]) -> str:
    """A fenced block for any text."""
    text = clean("\n".join(lines))
    ticks = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    return f"{ticks}text\n{text}\n{ticks}"


def _finding(report: Report, finding: Finding, invariants: Teaching, fresh: set[str] | None) -> str:
    since = "" if fresh is None else ", new" if finding.is_new(fresh) else ", known"
    severity = f", {finding.severity}" if finding.severity != "none" else ""
    lead = finding.lead
    title = f"<b>{finding.status}{severity}{since}</b> · <code>{escape(one_line(finding.name))}</code>"
    teaching = {**invariants.get(lead["invariant"], {}), **({"repair": finding.repair} if finding.repair else {})}
    parts = [f"<details><summary>{title}: {prose(finding.headline)}</summary>"]
    place = place_of(report, finding)
    where = f"{', '.join(few([code(label) for label in finding.subjects], 4))}{f' at {code(place)}' if place else ''}"
    parts += [f"{where} breaks {', '.join(code(name) for name in finding.invariants)}."]
    parts += [f"**A run meets it with** {prose(finding.needs)}."] if finding.needs else []
    parts += [f"**Called by** {prose(told)}."] if (told := callers(report, finding)) else []
    parts += [prose(happened(lead))] if happened(lead) != one_line(finding.headline) else []
    lines = evidence(lead)
    parts += [block_of_code(lines)] if lines else []
    titles = {"statement": "The law", "why": "Why", "repair": "Repair"}
    parts += [f"**{title}.** {prose(teaching[key])}" for key, title in titles.items() if teaching.get(key)]
    parts += [f"Replay: {code(command_of(report, finding))}"]
    more = f"{code('trimtab explain ' + lead['invariant'])} · finding {code(lead['id'])}"
    return "\n\n".join([*parts, more, "</details>"])


def _compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return []
    line = comparison.line()
    lines = [f"**{line[:1].upper()}{line[1:]}.**"]
    lines += [f"- fixed: {_named(verdict)}" for verdict in comparison.fixed]
    lines += [f"- not checked any more: {_named(u.verdict)}: {prose(u.reason)}" for u in comparison.gone_unchecked]
    lines += [f"- note: {prose(comparison.remark)}"] if comparison.remark else []
    return [lines[0], "\n".join(lines[1:])] if lines[1:] else lines


def _named(verdict: VerdictData) -> str:
    return f"{code(verdict['subject'])} {code(verdict['invariant'])}"


def _fold(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    items = "\n".join(f"- {line}" for line in few(lines, 60))
    return [f"<details><summary>{title}</summary>\n\n{items}\n\n</details>"]


def _conventions(report: Report) -> list[str]:
    lines = [f"{_named(verdict)}: {prose(happened(verdict))}" for verdict in with_status(report, "convention")]
    lines += [prose(line) for line in conventions_found(report)]
    return _fold("Conventions", lines)


def _others(report: Report) -> list[str]:
    statuses: tuple[Status, ...] = ("waived", "could not exercise", "could not run")
    folds: list[str] = []
    for status in statuses:
        chosen = with_status(report, status)
        lines = [
            f"{len(g.verdicts)} × {prose(g.reason)}: {', '.join(code(name) for name in g.invariants[:6])} on "
            f"{', '.join(few([code(label) for label in g.subjects], 4))}"
            for g in grouped(chosen)
        ]
        folds += _fold(f"{status[:1].upper()}{status[1:]} ({len(chosen)})", lines)
    return folds


def _unbound(report: Report) -> list[str]:
    unbound = report["could_not_bind"]
    lines = [f"{code(one['subject'])}, looked for {code(one['looked_for'])}: {prose(one['reason'])}" for one in unbound]
    return _fold(f"Could not bind ({len(unbound)})", lines)


def _boundaries(report: Report) -> list[str]:
    lines = [f"{code(one['boundary'])} lines {ran(one)}; {prose(loaded(one))}" for one in report["boundaries"]]
    return _fold("Code that ran", lines)

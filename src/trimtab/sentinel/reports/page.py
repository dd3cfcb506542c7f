"""The only place that lays out the page of a check: the verdict and the findings first, everything else folded below.

It is one self-contained file without scripts. A browser opens a fold when it follows a link into it.
"""

import re
from collections.abc import Sequence

from trimtab.sentinel.reports import card, detail
from trimtab.sentinel.reports.as_json import timed
from trimtab.sentinel.reports.causes import findings
from trimtab.sentinel.reports.compare import Comparison
from trimtab.sentinel.reports.data import Report, Status, Teaching, VerdictData
from trimtab.sentinel.reports.matrix import is_drawn, matrix, names, shown
from trimtab.sentinel.reports.outcome import grouped, with_status
from trimtab.sentinel.reports.quiet import conventions_found
from trimtab.sentinel.reports.style import CSS
from trimtab.sentinel.reports.summary import found_line, meaning, ran_line
from trimtab.sentinel.reports.wording import few, loaded, options_words, plural, ran, target_name, words

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render(report: Report, invariants: Teaching, comparison: Comparison | None = None) -> str:
    """The whole page as text. It uses no network and runs no script."""
    title = f"trimtab check · {target_name(report)}"
    anchors = _anchors(report["verdicts"])
    at = {id(verdict): anchors[i] for i, verdict in enumerate(report["verdicts"])}
    drawn = matrix(report, anchors)
    blocks = [
        _head(report, comparison),
        _findings(report, invariants, comparison, at),
        _fold("matrix", "Every function against every invariant", drawn),
        _conventions(report, invariants, at),
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
    name = f"{target_name(report)}: "
    found, did = found_line(report).removeprefix(name), ran_line(report).removeprefix(name)
    meant = meaning(report)
    worst = next((finding.status for finding in findings(report)), "holds")
    against = f" {shown(comparison.line()[:1].upper() + comparison.line()[1:])}." if comparison else ""
    return (
        f'<header><p class="over">trimtab check · seed {report["seed"]}{shown(where)}</p>'
        f"<h1>{shown(target_name(report))}</h1>"
        f'<p class="said {worst}">{shown(found[:1].upper() + found[1:])}.{against}</p>'
        f'<p class="lead">{shown(did[:1].upper() + did[1:])}.</p>'
        f'<p class="note">{shown(meant[:1].upper() + meant[1:])}</p></header>\n'
    )


def _findings(report: Report, invariants: Teaching, comparison: Comparison | None, at: dict[int, str]) -> str:
    found = findings(report)
    fresh = {verdict["id"] for verdict in comparison.new} if comparison else None
    said = "" if found else "<p>Nothing was found.</p>"
    cards = card.cards(report, found, invariants, at, fresh)
    return f'<section id="findings"><h2>Findings</h2>{said}{cards}{_gone(comparison)}</section>\n'


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


def _fold(anchor: str, title: str, content: str, note: str = "") -> str:
    """A section that is closed until somebody asks for it."""
    if not content:
        return ""
    named = f' id="{anchor}"' if anchor else ""
    said = f' <span class="note">{note}</span>' if note else ""
    head = f"<summary><h2>{title}</h2>{said}</summary>"
    return f'<section{named}><details class="fold">{head}{content}</details></section>\n'


def _listed(lines: Sequence[str]) -> str:
    return f'<ul class="plain">{"".join(f"<li>{line}</li>" for line in lines)}</ul>' if lines else ""


def _conventions(report: Report, invariants: Teaching, at: dict[int, str]) -> str:
    drawn = [verdict for verdict in with_status(report, "convention") if is_drawn(verdict)]
    blocks = "".join(detail.fold(report, verdict, invariants, at[id(verdict)]) for verdict in drawn)
    return _fold("", "Conventions", _listed([shown(line) for line in conventions_found(report)]) + blocks)


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
    failed = len(with_status(report, "could not run")) + len(report["could_not_bind"])
    return _fold(
        "", "What was not checked, and why", _listed(lines), f"{failed} could not run or bind" if failed else ""
    )


def _sources(report: Report) -> str:
    """Each function: its options, its code, the lines that ran, and the stubs for missing modules."""
    known = {found["boundary"]: found for found in report["boundaries"]}
    blocks: list[str] = []
    for i, subject in enumerate(timed(report)):
        boundary = known.get(subject["boundary"] or "")
        facts = [("role", subject["role"] or "none"), ("options", options_words(subject["options"]))]
        facts += [("binding", subject.get("guessed", ""))]
        facts += [("conventions", options_words(subject["conventions"]))]
        facts += [("code", subject["boundary"] or "")]
        facts += [("lines that ran", ran(boundary)), ("loaded", loaded(boundary))] if boundary else []
        facts += [("waived", words(subject["waived"]) if subject["waived"] else "")]
        facts += [("time", f"{subject.get('seconds', 0.0):.1f} s")]
        blocks.append(f'<div class="source" id="s{i}"><h3>{shown(subject["label"])}</h3>{detail.facts(facts)}</div>\n')
    return _fold("", "Functions and the code that ran", "".join(blocks), plural(len(blocks), "function"))


def _laws(report: Report, invariants: Teaching) -> str:
    titles = {"why": "why", "bug": "a real bug", "repair": "repair"}
    blocks = [
        f'<div class="law" id="law-{shown(name)}"><h3>{shown(name)}</h3>'
        f"<p>{shown(invariants.get(name, {}).get('statement', ''))}</p>"
        + detail.facts([(title, invariants.get(name, {}).get(key, "")) for key, title in titles.items()])
        + "</div>\n"
        for name in sorted(v for found in names(report) for v in found)
    ]
    return _fold("", "The invariants", "".join(blocks))


def _replay(report: Report) -> str:
    facts = [
        ("command", report["command"]),
        ("seed", str(report["seed"])),
        ("examples", f"{report['examples']} per check"),
    ]
    facts += [("trimtab", report["trimtab"]), ("torch", report["torch"]), ("python", report["python"])]
    facts += [("seconds", f"{report['seconds']:.1f}")]
    said = "<p>The same command with the same seed finds the same cases.</p>"
    return _fold("replay", "How to replay all of it", said + detail.facts(facts))

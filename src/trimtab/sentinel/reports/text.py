"""The only place that lays out a report for a terminal: findings first, the summary last."""

import textwrap
from collections.abc import Mapping, Sequence

from trimtab.sentinel.reports.compare import Comparison
from trimtab.sentinel.reports.data import CaseData, Report, Teaching, VerdictData
from trimtab.sentinel.reports.drawing import Drawing, differing, drawn
from trimtab.sentinel.reports.outcome import findings, grouped, with_status
from trimtab.sentinel.reports.wording import (
    effect_words,
    few,
    happened,
    loaded,
    one_line,
    options_words,
    plural,
    ran,
    summary,
    words,
)

WIDTH = 110
LABEL = 10
"""Width of the labels on the left: observed, expected, case."""
_COLOURS = {"bug": "\033[1;31m", "suspect": "\033[1;33m", "latent": "\033[1;33m", "hygiene": "\033[1;33m"}


def render(report: Report, invariants: Teaching, comparison: Comparison | None = None, *, colour: bool = False) -> str:
    """The whole report as lines of text. Use `colour` only for a terminal."""
    fresh = {verdict["id"] for verdict in comparison.new} if comparison else None
    blocks = [_finding(verdict, invariants, fresh, colour) for verdict in findings(report)]
    blocks += [_conventions(report), _waived(report), _unexercised(report), _failed(report), _unbound(report)]
    blocks += [_boundaries(report), _compared(comparison)]
    body = "\n\n".join("\n".join(block) for block in blocks if block)
    last = summary(report) + (f"; {comparison.line()}" if comparison else "")
    return f"{body}\n\n{last}\n" if body else f"{last}\n"


def _finding(verdict: VerdictData, invariants: Teaching, fresh: set[str] | None, colour: bool) -> list[str]:
    word = verdict["status"].upper()
    painted = f"{_COLOURS[verdict['status']]}{word}\033[0m" if colour else word
    since = "" if fresh is None else " (new)" if verdict["id"] in fresh else " (known)"
    severity = f" {verdict['severity']}" if verdict["severity"] != "none" else ""
    name = verdict["invariant"]
    lines = [f"{painted}{severity}{since}  {one_line(verdict['subject'])}  breaks  {one_line(name)}"]
    violation = verdict["violation"]
    told = [*_said("what", happened(verdict)), *_said("only if", (violation or {}).get("condition", ""))]
    told += evidence(verdict)
    told += _said("repair", invariants.get(name, {}).get("repair", ""))
    told += _said("more", f"trimtab explain {name} · finding {verdict['id']}")
    return [*lines, *(f"  {line}" for line in told)]


def evidence(verdict: VerdictData) -> list[str]:
    """Observed above expected, the effect, and a drawing of the smallest case."""
    lines: list[str] = []
    violation = verdict["violation"]
    if violation is not None:
        places = differing(violation)
        lines += _said("observed", words(violation["observed"], places))
        lines += _said("expected", words(violation["expected"], places))
        lines += _said("differs", f"at {', '.join(few([str(p) for p in places]))}") if places else []
        lines += _said("effect", effect_words(violation["effect"]))
    return lines + (_case(verdict["case"]) if verdict["case"] is not None else [])


def _case(case: CaseData) -> list[str]:
    drawing = drawn(case)
    lines = _said("case", f"{drawing.size}{f'; {drawing.padding}' if drawing.padding else ''}")
    lines += [" " * LABEL + line for line in drawn_lines(drawing)]
    same = ", ".join(f"{name} {value}" for name, value in drawing.everywhere.items())
    return [*lines, *(_said("", f"everywhere: {same}") if same else [])]


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


def _said(label: str, text: str) -> list[str]:
    """`label     text`, wrapped with a hanging indent."""
    if not text:
        return []
    first = f"{label:<{LABEL}}"
    rest = " " * len(first)
    return textwrap.wrap(one_line(text), WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    """A title above indented lines; empty when there are no lines."""
    wrapped = [part for line in lines for part in _wrapped(line)]
    return [title, *wrapped] if lines else []


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(one_line(line), WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _conventions(report: Report) -> list[str]:
    lines = [f"{v['subject']} · {v['invariant']}: {happened(v)}" for v in with_status(report, "convention")]
    return _listed("CONVENTIONS", [*lines, *conventions_found(report)])


def conventions_found(report: Report) -> list[str]:
    """Each detected convention once, with all functions that share it."""
    shared: dict[str, list[str]] = {}
    for subject in report["subjects"]:
        if subject["conventions"]:
            shared.setdefault(options_words(_named(subject["conventions"])), []).append(subject["label"])
    return [f"{what} · detected in {', '.join(few(labels, 4))}" for what, labels in shared.items()]


def _named(conventions: Mapping[str, object]) -> dict[str, object]:
    return {name: conventions[name] for name in sorted(conventions)}


def _waived(report: Report) -> list[str]:
    waived = with_status(report, "waived")
    lines = [f"{', '.join(g.invariants)} on {', '.join(few(g.subjects, 4))}: {g.reason}" for g in grouped(waived)]
    return _listed(f"WAIVED ({len(waived)})", lines)


def _unexercised(report: Report) -> list[str]:
    idle = with_status(report, "could not exercise")
    lines = [
        f"{len(g.verdicts)} × {g.reason}: {', '.join(few(g.invariants, 4))} on {', '.join(few(g.subjects, 4))}"
        for g in grouped(idle)
    ]
    return _listed(f"COULD NOT EXERCISE ({len(idle)})", lines)


def _failed(report: Report) -> list[str]:
    failed = with_status(report, "could not run")
    lines = [
        f"{len(g.verdicts)} × {g.reason}: {', '.join(few(g.invariants, 4))} on {', '.join(few(g.subjects, 4))}"
        for g in grouped(failed)
    ]
    return _listed(f"COULD NOT RUN ({len(failed)})", lines)


def _unbound(report: Report) -> list[str]:
    unbound = report["could_not_bind"]
    lines = [f"{one['subject']} · looked for {one['looked_for']}: {one['reason']}" for one in unbound]
    return _listed(f"COULD NOT BIND ({len(unbound)})", lines)


def _boundaries(report: Report) -> list[str]:
    lines = [f"{found['boundary']} · lines {ran(found)} · {loaded(found)}" for found in report["boundaries"]]
    return _listed("CODE THAT RAN", lines)


def _compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return []
    named = [("new", comparison.new), ("fixed", comparison.fixed), ("still there", comparison.still)]
    lines = [f"{word}: {v['subject']} · {v['invariant']} · {v['id']}" for word, found in named for v in found]
    lines += [
        f"not checked any more: {one.verdict['subject']} · {one.verdict['invariant']} ({one.reason})"
        for one in comparison.gone_unchecked
    ]
    lines += [f"note: {comparison.remark}"] if comparison.remark else []
    return _listed("AGAINST THE BASELINE", lines or [f"{plural(0, 'finding')} in either report"])

"""Reports of a check, for people and for machines. They read plain data and know nothing of cases, subjects or search.

report = load(Path("check.json"))
print(RENDERERS["text"](report, teaching, compare(load(baseline), report)))
raise SystemExit(exit_code(report))
"""

from collections.abc import Callable

from trimtab.sentinel.reports import as_json, junit, markdown, page, sarif, text
from trimtab.sentinel.reports.causes import Finding, findings
from trimtab.sentinel.reports.compare import Comparison, compare
from trimtab.sentinel.reports.data import Report, Teaching, VerdictData, dump, load
from trimtab.sentinel.reports.outcome import exit_code

Render = Callable[[Report, Teaching, Comparison | None], str]

RENDERERS: dict[str, Render] = {
    "text": text.render,
    "json": as_json.render,
    "markdown": markdown.render,
    "html": page.render,
    "sarif": sarif.render,
    "junit": junit.render,
}
"""Renderers by the name of their format."""

__all__ = [
    "RENDERERS",
    "Comparison",
    "Finding",
    "Render",
    "Report",
    "Teaching",
    "VerdictData",
    "compare",
    "dump",
    "exit_code",
    "findings",
    "load",
]

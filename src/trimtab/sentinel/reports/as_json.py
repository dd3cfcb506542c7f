"""The only place that writes the JSON format: the stored report, with its findings by cause and its times added."""

from typing import cast

from trimtab.sentinel.reports.causes import Finding, findings
from trimtab.sentinel.reports.compare import Comparison
from trimtab.sentinel.reports.data import FindingData, Report, SubjectData, Teaching, dump
from trimtab.sentinel.reports.replay import command_of, place_of
from trimtab.sentinel.reports.wording import one_line


def render(report: Report, invariants: Teaching, comparison: Comparison | None = None) -> str:
    """The JSON format. With a baseline, it lists what is new, fixed, still there and not checked any more."""
    del invariants  # they belong to the program and not to the run; `trimtab explain` shows them
    added = {"findings": [_finding(report, one) for one in findings(report)], "subjects": timed(report)}
    since = {} if comparison is None else {"comparison": comparison.as_data()}
    return dump(cast("Report", {**report, **added, **since}))


def timed(report: Report) -> list[SubjectData]:
    """The subjects, each with the time that its checks took."""
    spent: dict[str, float] = {}
    for verdict in report["verdicts"]:
        spent[verdict["subject"]] = spent.get(verdict["subject"], 0.0) + verdict["seconds"]
    return [
        cast("SubjectData", {**subject, "seconds": round(spent.get(subject["label"], 0.0), 3)})
        for subject in report["subjects"]
    ]


def _finding(report: Report, finding: Finding) -> FindingData:
    return {
        "id": finding.id,
        "status": finding.status,
        "severity": finding.severity,
        "headline": one_line(finding.headline),
        "function": finding.function,
        "place": place_of(report, finding) or None,
        "cause": finding.cause,
        "result": finding.result,
        "needs": finding.needs,
        "invariants": finding.invariants,
        "subjects": finding.subjects,
        "verdicts": [verdict["id"] for verdict in finding.verdicts],
        "replay": command_of(report, finding),
    }

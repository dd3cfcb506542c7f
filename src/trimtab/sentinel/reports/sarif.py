"""The only place that writes SARIF 2.1.0: one result per finding."""

import json
from typing import Any, Literal
from urllib.parse import quote

from trimtab.sentinel.reports.causes import Finding, findings
from trimtab.sentinel.reports.compare import Comparison
from trimtab.sentinel.reports.data import Report, Teaching, VerdictData
from trimtab.sentinel.reports.drawing import differing
from trimtab.sentinel.reports.outcome import COULD_NOT_RUN, boundary_of, exit_code, subject_of
from trimtab.sentinel.reports.replay import command_of
from trimtab.sentinel.reports.wording import changed, clean, effect_words, happened, one_line, words

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "trimtabFinding/v1"

Level = Literal["error", "warning", "note"]


def render(report: Report, invariants: Teaching, comparison: Comparison | None = None) -> str:
    """A SARIF log with one run. With a baseline, each result says whether it is new."""
    found = findings(report)
    rules = sorted({finding.lead["invariant"] for finding in found})
    results = [_result(report, finding, rules, comparison) for finding in found]
    run = {
        "tool": {
            "driver": {
                "name": "trimtab",
                "semanticVersion": report["trimtab"],
                "rules": [_rule(name, invariants) for name in rules],
            }
        },
        "automationDetails": {"id": f"trimtab-check/{one_line(report['target']['name'])}/"},
        "columnKind": "unicodeCodePoints",
        "invocations": [_invocation(report)],
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False) + "\n"


def level(verdict: VerdictData) -> Level:
    """A bug is an error. Hygiene is a warning, or a note when its severity is low."""
    if verdict["status"] == "bug":
        return "error"
    return "warning" if verdict["severity"] in ("high", "medium") else "note"


def _rule(name: str, invariants: Teaching) -> dict[str, Any]:
    text = {key: clean(value) for key, value in invariants.get(name, {}).items() if value}
    rule: dict[str, Any] = {"id": name, "name": name, "defaultConfiguration": {"level": "error"}}
    statement = text.get("statement", name)
    rule["shortDescription"] = {"text": statement}
    if "why" in text:
        rule["fullDescription"] = {"text": f"{statement} {text['why']}"}
    titles = {"statement": "Statement", "why": "Why", "bug": "A real bug", "repair": "Repair"}
    told = [(title, text[key]) for key, title in titles.items() if key in text]
    told.append(("More", f"trimtab explain {name}"))
    rule["help"] = {
        "text": "\n".join(f"{title}: {said}" for title, said in told),
        "markdown": "\n\n".join(f"**{title}.** {said}" for title, said in told),
    }
    return rule


def _result(report: Report, finding: Finding, rules: list[str], comparison: Comparison | None) -> dict[str, Any]:
    verdict = finding.lead
    subject = subject_of(report, verdict)
    result: dict[str, Any] = {
        "ruleId": verdict["invariant"],
        "ruleIndex": rules.index(verdict["invariant"]),
        "level": level(verdict),
        "kind": "fail",
        "message": {"text": _message(finding)},
        "locations": [_location(report, verdict)],
        "fingerprints": {FINGERPRINT: one_line(verdict["id"])},
        "partialFingerprints": {FINGERPRINT: one_line(verdict["id"])},
        "properties": {
            "status": verdict["status"],
            "severity": verdict["severity"],
            "subject": one_line(verdict["subject"]),
            "role": subject["role"] if subject else None,
            "invariants": finding.invariants,
            "subjects": [one_line(label) for label in finding.subjects],
            "cause": one_line(finding.id),
            "needs": one_line(finding.needs),
            "replay": command_of(report, finding),
        },
    }
    if comparison is not None:
        fresh = {one["id"] for one in comparison.new}
        result["baselineState"] = "new" if finding.is_new(fresh) else "unchanged"
    return result


def _message(finding: Finding) -> str:
    verdict = finding.lead
    parts = [f"{one_line(verdict['subject'])}: {one_line(finding.headline)}."]
    violation = verdict["violation"]
    if violation is not None:
        parts += [f"{happened(verdict)}."] if happened(verdict) != one_line(finding.headline) else []
        parts += [f"Changed: {'; '.join(changed(violation))}."] if violation.get("trigger") else []
        places = differing(violation)
        seen, owed = words(violation["observed"], places), words(violation["expected"], places)
        parts.append(f"Observed {seen}, expected {owed}.")
        effect = effect_words(violation["effect"])
        parts += [f"Effect: {effect}."] if effect else []
    parts += [f"A run meets it with {one_line(finding.needs)}."] if finding.needs else []
    parts += [f"It breaks {', '.join(finding.invariants)}."] if len(finding.invariants) > 1 else []
    # In a SARIF message, braces are placeholders and [text](place) is a link.
    return " ".join(parts).translate(str.maketrans("{}", "()")).replace("](", "] (")


def _location(report: Report, verdict: VerdictData) -> dict[str, Any]:
    """File and first line of the boundary; only the name if the file is unknown."""
    subject = subject_of(report, verdict)
    name = one_line(verdict["subject"])
    if subject is None or not subject["boundary"]:
        return {"logicalLocations": [{"fullyQualifiedName": name, "kind": "function"}]}
    file, _, qualname = subject["boundary"].rpartition(":")
    file, qualname = (file, qualname) if file else (qualname, name)
    place: dict[str, Any] = {"artifactLocation": {"uri": quote(file.replace("\\", "/")), "uriBaseId": "%SRCROOT%"}}
    boundary = boundary_of(report, subject)
    if boundary is not None and boundary["first_line"] >= 1:
        place["region"] = {"startLine": boundary["first_line"]}
    logical = {"fullyQualifiedName": one_line(qualname), "kind": "function"}
    return {"physicalLocation": place, "logicalLocations": [logical]}


def _invocation(report: Report) -> dict[str, Any]:
    """Whether everything was checked, and what was not."""
    failed = [v for v in report["verdicts"] if v["status"] == "could not run"]
    told = [f"could not run {v['invariant']} on {v['subject']}: {v['reason']}" for v in failed]
    told += [
        f"could not bind {one['subject']} (looked for {one['looked_for']}): {one['reason']}"
        for one in report["could_not_bind"]
    ]
    return {
        "commandLine": one_line(report["command"]),
        "executionSuccessful": exit_code(report) != COULD_NOT_RUN and not told,
        "exitCode": exit_code(report),
        "toolExecutionNotifications": [{"level": "error", "message": {"text": one_line(text)}} for text in told],
    }

"""Verdicts and reports as plain data: the only place that puts the events of an examination together."""

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

import trimtab
from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.trigger import trigger
from trimtab.sentinel.invariants.conventions import detected
from trimtab.sentinel.invariants.declare import INVARIANTS, Compared, Violation
from trimtab.sentinel.reports.data import KIND, VERSION, CaseData, Report, SubjectData, VerdictData, ViolationData
from trimtab.sentinel.reports.data import Boundary as BoundaryData
from trimtab.sentinel.search import Verdict

if TYPE_CHECKING:
    from trimtab.sentinel.examination.job import Job

_ALWAYS = ("group",)


def finding_id(target: str, subject: Subject, invariant: str) -> str:
    """The id depends only on function, options and invariant, not on the run or the seed."""
    return re.sub(r"[^A-Za-z0-9]+", "-", f"{target}-{subject.label}-{invariant}").strip("-").lower()


def subject_data(subject: Subject) -> SubjectData:
    boundary = subject.boundary
    told: SubjectData = {
        "label": subject.label,
        "name": subject.name,
        "role": subject.role,
        "boundary": f"{boundary.file}:{boundary.spec.name}" if boundary is not None else None,
        "options": {name: plain(value) for name, value in subject.options.items()},
        "conventions": cast("dict[str, Any]", detected(subject)),
        "waived": dict(subject.waived),
    }
    if subject.guessed:
        told["guessed"] = subject.guessed
    return told


def boundary_data(subject: Subject) -> BoundaryData | None:
    if subject.boundary is None:
        return None
    told = subject.boundary.as_data()
    return cast("BoundaryData", {**told, "stubs": sorted(told["stubs"])})


def verdict_data(target: str, subject: Subject, verdict: Verdict) -> VerdictData:
    told: VerdictData = {
        "id": finding_id(target, subject, verdict.invariant),
        "subject": verdict.subject,
        "invariant": verdict.invariant,
        "status": verdict.status,
        "exercised": verdict.exercised,
        "seconds": round(verdict.seconds, 3),
        "reason": verdict.reason,
        "severity": verdict.severity,
        "violation": None if verdict.violation is None else violation_data(verdict.violation, verdict.case, subject),
        "case": None if verdict.case is None else case_data(verdict.case, subject),
    }
    if verdict.consequence_of:
        told["consequence_of"] = verdict.consequence_of
    return told


def unrun_data(target: str, label: str, invariant: str, why: str) -> dict[str, Any]:
    """The verdict on a function that ended or hung its process. The invariant that it names is not at fault."""
    reason = f"{why}; it was not checked any further, and this says nothing about {invariant}"
    return {
        "id": f"{target}-{label}", "subject": label, "invariant": invariant, "status": "could not run",
        "exercised": 0, "seconds": 0.0, "reason": reason, "severity": "none", "violation": None, "case": None,
    }  # fmt: skip


def report_data(job: "Job", heard: list[dict[str, Any]], command: str, seconds: float) -> Report:
    """The report, in the order of the units, whichever child was faster."""
    told = sorted((e for e in heard if "number" in e), key=lambda e: tuple(e["number"]))
    known = {e["subject"]["label"] for e in told if e["event"] == "subject"}
    subjects: dict[str, Any] = {}
    boundaries: dict[str, Any] = {}
    for event in told:
        if event["event"] == "subject":
            subjects[repr(event["number"])] = event["subject"]
            if event["boundary"] is not None:
                _merge(boundaries, event["boundary"])
        elif event["event"] == "verdict" and (label := event["verdict"]["subject"]) not in known:
            subjects.setdefault(label, _silent(label))
    unbound = [e for e in told if e["event"] == "unbound"]
    report: dict[str, Any] = {
        "kind": KIND, "version": VERSION,
        "target": {"name": job.target, "version": job.version, "commit": job.commit, "path": job.root},
        "trimtab": trimtab.__version__, "torch": torch.__version__, "python": sys.version.split()[0],
        "seed": job.seed, "examples": job.examples, "command": command, "seconds": round(seconds, 1),
        "boundaries": list(boundaries.values()), "subjects": list(subjects.values()),
        "could_not_bind": [e["unbound"] for e in unbound if e["is_asked"]],
        "verdicts": [e["verdict"] for e in told if e["event"] == "verdict"],
    }  # fmt: skip
    others = [e["unbound"] for e in unbound if not e["is_asked"]]
    return cast("Report", {**report, "not_bound": others} if others else report)


def _silent(label: str) -> Mapping[str, Any]:
    name = label.split("(")[0]
    return {
        "label": label, "name": name, "role": None, "boundary": None, "options": {}, "conventions": {}, "waived": {},
    }  # fmt: skip


def _merge(boundaries: dict[str, Any], one: dict[str, Any]) -> None:
    """For several subjects of one function: the lines that any of them ran."""
    held = boundaries.setdefault(one["boundary"], one)
    if held is not one:
        executed = set(held["executed"]) | set(one["executed"])
        missed = (set(held["missed"]) | set(one["missed"])) - executed
        held |= {"executed": sorted(executed), "missed": sorted(missed)}
        held["stubs_used"] = sorted({*held["stubs_used"], *one["stubs_used"]})


def violation_data(found: Violation, case: Case | None, subject: Subject) -> ViolationData:
    told: ViolationData = {
        "what": found.what,
        "observed": plain(found.observed),
        "expected": plain(found.expected),
        "positions": list(found.positions),
        "effect": {
            "on": found.effect.on,
            "leaked_positions": list(found.effect.leaked_positions),
            "relative_change": cast("Any", found.effect.relative_change),
        },
    }
    if found.condition:
        told["condition"] = found.condition
    if found.compared is not None:
        _add_trigger(told, found.compared, case, subject)
    return told


def _add_trigger(told: ViolationData, compared: Compared, case: Case | None, subject: Subject) -> None:
    """Which result is wrong, and what was changed in the case before it was."""
    told["result"] = compared.result
    if compared.leaf:
        told["leaf"] = compared.leaf
    drawn = None if case is None else subject.adapt(case)  # it accepted the case during the search
    before = compared.other or drawn
    if before is None:
        return
    changes, left_out = trigger(before, compared.case, _shown(subject))
    if drawn is not None and drawn.kinds != before.kinds and drawn.kinds == compared.case.kinds:
        told["drawn"] = "after"
    if changes:
        told["trigger"] = changes
    if left_out:
        told["trigger_left_out"] = left_out


def case_data(case: Case, subject: Subject) -> CaseData:
    """The case with only the fields that the subject reads; all others have default values."""
    told = case.as_data()
    read = _shown(subject)
    for level in ("tokens", "sequences"):
        told[level] = {n: v for n, v in told[level].items() if not read or n in read or n in _ALWAYS}
    return cast("CaseData", told)


def _shown(subject: Subject) -> frozenset[str]:
    return subject.reads or subject.inputs


def teaching() -> dict[str, Mapping[str, str]]:
    """Statement, reason, bug and repair of every invariant."""
    return {
        name: {"statement": one.statement, "why": one.why, "bug": one.bug, "repair": one.repair}
        for name, one in INVARIANTS.items()
    }


def plain(value: Any) -> Any:
    """Any value as JSON: tensors as lists, other objects as strings."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[object, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast("list[Any]", value)]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)

"""One folder per cause: the only place that chooses which findings of an examination become folders."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from trimtab.sentinel.binding.discover import boundary_of, root_of
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.job import Job, located, ready_name, target_of
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.draft import Target
from trimtab.sentinel.findings.folder import write_finding
from trimtab.sentinel.findings.trial import Alive, silent
from trimtab.sentinel.loading import Boundary, Tree
from trimtab.sentinel.reports.causes import Finding, findings
from trimtab.sentinel.reports.data import Report, SubjectData, VerdictData
from trimtab.sentinel.search import Verdict

Shown = tuple[Verdict, Subject, VerdictData, SubjectData]
"""A verdict and its subject, and both as data."""


def write_down(job: Job, shown: Sequence[Shown], alive: Alive = silent) -> Iterator[Data]:
    """Write the bugs among these verdicts, one folder per cause, and tell for each whether it is ready."""
    subjects = {one["label"]: one for _, _, _, one in shown}
    report = {"verdicts": [data for _, _, data, _ in shown], "subjects": list(subjects.values())}
    behind = {id(data): (verdict, subject) for verdict, subject, data, _ in shown}
    for finding in findings(cast("Report", report)):
        if finding.status == "bug":
            yield _written(job, finding, behind, alive) | {"cause": finding.id}


def _written(job: Job, finding: Finding, behind: dict[int, tuple[Verdict, Subject]], alive: Alive) -> Data:
    pairs = [behind[id(data)] for data in finding.verdicts if data["status"] == "bug"]
    pairs = [(verdict, with_boundary(subject)) for verdict, subject in pairs]
    boundary = next((subject.boundary for _, subject in pairs if subject.boundary is not None), None)
    if boundary is None:
        why = "its subject names no function of a file, so nothing can be called without its binding"
        return _told(f"{finding.name}: {why}", False, [why])
    assert job.findings is not None
    try:
        fixed = located(job.fixed)[1] if job.fixed else None
        written = write_finding(
            Path(job.findings), pairs, target_of_job(job, boundary), online=job.online, fixed=fixed, alive=alive
        )
    except Exception as error:  # if a folder cannot be written, the examination continues
        why = f"its folder could not be written: {type(error).__name__}: {error}"
        return _told(f"{finding.lead['subject']} {finding.lead['invariant']}: {why}", False, [why])
    return _told(str(written.place), written.is_ready, list(written.missing))


def _told(folder: str, is_ready: bool, missing: list[str]) -> Data:
    return {"folder": folder, "ready": is_ready, "missing": missing}


def with_boundary(subject: Subject) -> Subject:
    """A subject of your own, made by `bind`, with the function that it calls as its boundary."""
    function = inspect.getclosurevars(subject.call).nonlocals.get("fn") if inspect.isfunction(subject.call) else None
    if subject.boundary is not None or not inspect.isfunction(function):
        return subject
    return replace(subject, boundary=boundary_of(function, root_of(function.__module__)))


def target_of_job(job: Job, boundary: Boundary) -> Target:
    """The code of a job, under the name and repository of its target. Your own code lies where it is imported from."""
    name = ready_name(job.target)
    own = boundary.spec.module or job.target
    tree = job.tree if job.root is not None else Tree.folder(root_of(own, job.folder))
    return Target(job.target, target_of(name).repository if name is not None else "", tree)

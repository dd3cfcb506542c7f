"""The child process of an examination: it loads the target, searches, and reports what it finds line by line.

`python -m trimtab.sentinel.examination.child` reads one job as JSON from standard input and writes one JSON event per
line to the real standard output. Output of the target goes to standard error. Memory is limited before the target is
loaded.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import torch

from trimtab.errors import TrimtabError
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.binding.discover import root_of
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.job import Job, ready_name, subjects, target_of
from trimtab.sentinel.examination.record import boundary_data, subject_data, verdict_data
from trimtab.sentinel.loading import CouldNotLoad, Tree
from trimtab.sentinel.reports.data import finite
from trimtab.sentinel.search import Verdict, examine, ready


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    out = _claimed_output()
    limit_memory(asked["memory"])
    torch.set_num_threads(1)
    try:
        work(asked, out)
    except (TrimtabError, CouldNotLoad) as error:
        tell(out, {"event": "failed", "reason": str(error)})
    else:
        tell(out, {"event": "end"})


def work(asked: Mapping[str, Any], out: TextIO) -> None:
    """Check this process's share of the subjects, one after the other."""
    job = Job.from_data(asked["job"])
    share, shares = asked["share"]
    done = set(asked["skip"])
    for number, found in enumerate(subjects(job)):
        if not isinstance(found, Subject):
            if share == 0 and number not in done:
                unbound = {"subject": found.binding, "looked_for": found.looked_for, "reason": found.reason}
                tell(out, {"event": "unbound", "number": number, "unbound": unbound})
            continue
        if number % shares != share or number in done:
            continue
        tell(out, {"event": "start", "number": number, "label": found.label})
        _one(job, found, number, out)


def _one(job: Job, subject: Subject, number: int, out: TextIO) -> None:
    subject, _ = ready(subject, list(directed()))
    for verdict in examine(subject, only=job.invariants or None, seed=job.seed, examples=job.examples):
        tell(out, {"event": "verdict", "number": number, "verdict": verdict_data(job.target, subject, verdict)})
        if verdict.status == "bug" and job.findings is not None and subject.boundary is not None:
            _write_down(job, subject, verdict, out)
    told = {"subject": subject_data(subject), "boundary": boundary_data(subject)}
    tell(out, {"event": "subject", "number": number, **told})


def _write_down(job: Job, subject: Subject, verdict: Verdict, out: TextIO) -> None:
    from trimtab.sentinel import findings

    name = ready_name(job.target)
    repository = target_of(name).repository if name is not None else ""
    tree = job.tree if job.root is not None else Tree.folder(root_of(job.target))
    target = findings.Target(job.target, repository, tree)
    assert job.findings is not None
    try:
        folder = str(findings.write(Path(job.findings), verdict, subject, target, online=job.online))
    except Exception as error:  # if a folder cannot be written, the examination continues
        folder = f"{verdict.subject} {verdict.invariant} could not be written: {type(error).__name__}: {error}"
    tell(out, {"event": "finding", "folder": folder})


def tell(out: TextIO, event: Mapping[str, Any]) -> None:
    out.write(json.dumps(finite(event), allow_nan=False) + "\n")
    out.flush()


def _claimed_output() -> TextIO:
    """The real standard output, for events. Output of the target goes to standard error."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def limit_memory(gibibytes: float) -> None:
    """Limit memory, so that a runaway target ends only its own process. Some systems have no such limit."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        size = int(gibibytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    main()

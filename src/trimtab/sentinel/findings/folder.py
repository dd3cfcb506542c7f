"""One folder per finding: the only place that writes to the findings folder."""

import datetime
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.findings.attempt import Attempt, attempted
from trimtab.sentinel.findings.draft import Target
from trimtab.sentinel.findings.duplicates import Looked, look
from trimtab.sentinel.findings.ledger import Row, enter, rows
from trimtab.sentinel.findings.report import report
from trimtab.sentinel.findings.trial import Alive, silent
from trimtab.sentinel.invariants.declare import INVARIANTS
from trimtab.sentinel.loading import Tree
from trimtab.sentinel.search import Verdict

FILES = ("recipe.json", "payload.json", "run_validation.sh", "run_validation.py", "test_regression.py", "report.md")
MOST = 3
"""How many verdicts of one finding are tried, until one gives a folder that is ready."""


@dataclass(frozen=True)
class Written:
    """A folder that was written: where, and whether it is ready ("ready", or "not ready: why")."""

    place: Path
    is_ready: bool
    words: str
    missing: tuple[str, ...] = ()


def slug(text: str) -> str:
    """A safe folder name: lower-case letters, digits and dashes, never empty, never a path.

    >>> slug("../slime/ppo utils.py:OPSM")
    'slime-ppo-utils-py-opsm'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:100] or "finding"


def bug_id(target: Target, subject: Subject, invariant: str) -> str:
    """The same finding has the same id in every run. Options distinguish variants."""
    return slug(f"{target.name}-{subject.label}-{invariant}")


def write(
    folder: Path, verdict: Verdict, subject: Subject, target: Target, *, online: bool = False, date: str | None = None
) -> Path:
    """Write one verdict and add it to the ledger. An existing folder with the same id is overwritten."""
    return write_finding(folder, [(verdict, subject)], target, online=online, date=date).place


def write_finding(
    folder: Path,
    shown_by: Sequence[tuple[Verdict, Subject]],
    target: Target,
    *,
    online: bool = False,
    date: str | None = None,
    fixed: Tree | None = None,
    alive: Alive = silent,
) -> Written:
    """Write one finding: the first of its verdicts that gives a ready folder, else the first of all.

    `fixed` is repaired code. `alive` is called again and again while scripts run.
    """
    for verdict, _ in shown_by:
        if verdict.violation is None or verdict.case is None:
            raise TrimtabError(
                f"{verdict.subject}: {verdict.invariant} is {verdict.status!r}, so there is no finding to write."
            )
    with tempfile.TemporaryDirectory(prefix="trimtab-finding-") as scratch:
        best: tuple[Attempt, Path] | None = None
        for number, (verdict, subject) in enumerate(shown_by[:MOST]):
            place = Path(scratch, str(number))
            place.mkdir()
            alive()
            name = bug_id(target, subject, verdict.invariant)
            _refuse_link(folder, name)
            made = attempted(place, verdict, subject, target, name, fixed, alive)
            if best is None or made.readiness.is_ready:
                best = (made, place)
            if made.readiness.is_ready:
                break
        assert best is not None
        return _kept(folder, *best, target, [v.invariant for v, _ in shown_by], online=online, date=date)


def _kept(
    folder: Path, made: Attempt, files: Path, target: Target, broken: list[str], *, online: bool, date: str | None
) -> Written:
    """Move the files of an attempt to their place, with the report and a row in the ledger."""
    verdict, payload, ready = made.verdict, made.payload, made.readiness
    place = folder / str(made.recipe["bug_id"])
    place.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (place / name).unlink(missing_ok=True)
    shutil.copytree(files, place, dirs_exist_ok=True)
    commit = made.origin.commit
    row = Row(
        place.name,
        date or datetime.date.today().isoformat(),
        target.name,
        commit[:12] if commit else str(made.origin),
        str(payload["boundary"]),
        verdict.invariant,
        verdict.severity,
        "ready" if ready.is_ready else "not ready",
        place.name,
    )
    looked: Looked = look(folder, row, made.recipe, target.tree, online=online)
    boundary = made.subject.boundary
    ran = boundary.as_data() if boundary else None
    law = INVARIANTS[verdict.invariant]
    others = [name for name in dict.fromkeys(broken) if name != verdict.invariant]
    text = report(made.recipe, payload, law, ran, looked.as_data(), verdict.severity, ready, others)
    (place / "report.md").write_text(text, "utf-8")
    enter(folder, row)
    return Written(place, ready.is_ready, ready.words, tuple(ready.missing))


def _refuse_link(folder: Path, name: str) -> None:
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise TrimtabError(f"{folder / name} leads outside {folder}, so nothing is written. Remove the link.")


def mark(folder: Path, name: str, status: str) -> None:
    """Change the status of a finding in the ledger, for example to `fixed`."""
    for row in rows(folder):
        if row.id == name:
            enter(folder, replace(row, status=status))

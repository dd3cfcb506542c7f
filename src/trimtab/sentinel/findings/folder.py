"""One folder per finding: the only place that writes to the findings folder."""

import datetime
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.draft import Target, recipe_of
from trimtab.sentinel.findings.duplicates import Looked, look
from trimtab.sentinel.findings.ledger import Row, enter, rows
from trimtab.sentinel.findings.regression import regression_test
from trimtab.sentinel.findings.replay import replay
from trimtab.sentinel.findings.report import report
from trimtab.sentinel.findings.runner import SHELL, program
from trimtab.sentinel.invariants.declare import INVARIANTS, Violation
from trimtab.sentinel.search import Verdict

SECONDS = 120
"""Time limit of the runner when it makes the payload."""


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
    """Write one finding and add it to the ledger. An existing folder with the same id is overwritten."""
    if verdict.violation is None or verdict.case is None:
        raise TrimtabError(
            f"{verdict.subject}: {verdict.invariant} is {verdict.status!r}, so there is no finding to write."
        )
    name = bug_id(target, subject, verdict.invariant)
    recipe = recipe_of(subject, verdict.invariant, verdict.case, verdict.violation, target, name)
    place = _inside(folder, name)
    _files(place, recipe)
    payload = _payload(place, recipe, target, verdict.violation)
    _json(place / "payload.json", payload)
    row = Row(
        name,
        date or datetime.date.today().isoformat(),
        target.name,
        str(payload["target_commit"])[:12],
        str(payload["boundary"]),
        verdict.invariant,
        verdict.severity,
        str(payload["status"]),
        place.name,
    )
    looked: Looked = look(folder, row, recipe, target.tree, online=online)
    ran = subject.boundary.as_data() if subject.boundary else None
    text = report(recipe, payload, INVARIANTS[verdict.invariant], ran, looked.as_data(), verdict.severity)
    (place / "report.md").write_text(text, "utf-8")
    enter(folder, row)
    return place


def _inside(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    if not place.resolve().is_relative_to(folder.resolve()):  # a link to another place
        raise TrimtabError(f"{place} leads outside {folder}, so nothing is written. Remove the link.")
    return place


def _files(place: Path, recipe: Data) -> None:
    _json(place / "recipe.json", recipe)
    (place / "run_validation.py").write_text(program(), "utf-8")
    shell = place / "run_validation.sh"
    shell.write_text(SHELL, "utf-8")
    shell.chmod(0o755)
    (place / "test_regression.py").write_text(regression_test(recipe), "utf-8")


def _payload(place: Path, recipe: Data, target: Target, violation: Violation) -> Data:
    """The output of the runner, in a separate process. A commit without a folder is replayed here."""
    if target.tree.commit:
        payload = replay(recipe, target.tree)
    else:
        output = place / "payload.json"
        words = [sys.executable, "run_validation.py", "recipe.json", str(target.tree.root), output.name]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode not in (0, 1, 2) or not output.exists():
            raise TrimtabError(f"{place.name}: the runner failed, so there is no payload. {done.stderr[-500:]}")
        payload = json.loads(output.read_text("utf-8"))
    effect = payload["training_signal_effect"]
    if recipe["validation_mode"] == "binding":  # the runner cannot judge this one; the search already did
        effect |= {"leaked_positions": list(violation.effect.leaked_positions), "non_crash": True}
        effect["leaked_token_count"] = len(effect["leaked_positions"])
        return payload | {"status": "reproduced", "quiet_training_signal_bug": True, "judged_by": "binding"}
    return payload


def _json(file: Path, data: Data) -> None:
    file.write_text(json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def mark(folder: Path, name: str, status: str) -> None:
    """Change the status of a finding in the ledger, for example to `fixed`."""
    for row in rows(folder):
        if row.id == name:
            enter(folder, replace(row, status=status))

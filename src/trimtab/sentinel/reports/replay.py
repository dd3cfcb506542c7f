"""The only place that says how to run one finding again, and how to turn a guessed binding into one of your own."""

import shlex
from pathlib import Path

from trimtab.sentinel.reports.causes import Finding
from trimtab.sentinel.reports.data import Report, SubjectData
from trimtab.sentinel.reports.outcome import boundary_of, subject_of
from trimtab.sentinel.reports.wording import one_line

EXAMPLES = 12
"""The command's own default, which a replay need not repeat."""
_BIND = "bind("


def command_of(report: Report, *findings: Finding) -> str:
    """The command that checks only these functions against only these invariants.

    `trimtab check losses.py --function my_loss --invariant split`
    """
    target = report["target"]
    words = ["trimtab", "check", target["name"], *_where(report)]
    functions = dict.fromkeys(_function(report, finding) for finding in findings)
    invariants = dict.fromkeys(name for finding in findings for name in finding.invariants)
    words += [word for name in functions for word in ("--function", name)]
    words += [word for name in invariants for word in ("--invariant", name)]
    words += ["--seed", str(report["seed"])] if report["seed"] else []
    words += ["--examples", str(report["examples"])] if report["examples"] != EXAMPLES else []
    return one_line(shlex.join(words))


def _where(report: Report) -> list[str]:
    """The checkout that was read. A wheel needs no words, unless it was given as a file."""
    target, asked = report["target"], report["command"].split()
    if "--wheel" in asked[:-1]:
        return ["--wheel", asked[asked.index("--wheel") + 1]]
    if target["path"] is None or target["version"] is not None:
        return []
    return ["--path", f"{target['path']}@{target['commit']}" if target["commit"] else target["path"]]


def _function(report: Report, finding: Finding) -> str:
    """Its name; its label where only some of its options show the finding."""
    named = [subject["label"] for subject in report["subjects"] if subject["name"] == finding.name]
    return finding.lead["subject"] if len(named) > 1 and len(finding.subjects) == 1 else finding.name


def place_of(report: Report, finding: Finding) -> str:
    """`losses.py:12`, or the name of the file's function where its line is not known; empty for neither."""
    subject = subject_of(report, finding.lead)
    boundary = boundary_of(report, subject)
    if boundary is not None and boundary["first_line"] >= 1:
        return one_line(f"{boundary['boundary'].rpartition(':')[0]}:{boundary['first_line']}")
    return one_line((subject["boundary"] if subject else None) or "")


def callers(report: Report, *found: Finding) -> str:
    """Where these functions are called, as far as their names tell."""
    subjects = (subject_of(report, finding.lead) for finding in found)
    return one_line(", ".join(dict.fromkeys(p for s in subjects if s is not None for p in s.get("callers", []))))


def chosen(subject: SubjectData | None) -> str:
    """What was guessed: the role, each argument with its field and shape. Empty for a binding that somebody wrote."""
    said = one_line(subject.get("guessed", "")) if subject else ""
    return said.partition(f" {_BIND}")[0].rstrip(".")


def binding_lines(report: Report, subject: SubjectData | None) -> list[str]:
    """Three lines for a file of bindings that say what was guessed; correct them, then check that file."""
    said = one_line(subject.get("guessed", "")) if subject else ""
    call = said.partition(f" {_BIND}")[2]
    if subject is None or not call:
        return []
    where = report["target"]["name"].partition(":")[0]
    module = Path(where).stem if where.endswith(".py") else where
    name = call.partition(",")[0].partition(")")[0].partition(".")[0]
    return ["from trimtab.sentinel import bind", f"from {module} import {name}", f"bound = {_BIND}{call}"]

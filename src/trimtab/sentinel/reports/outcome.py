"""The only place that ranks verdicts: which count as findings, which come first, and the exit code."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.sentinel.reports.data import Boundary, Report, Status, SubjectData, VerdictData

if TYPE_CHECKING:
    from trimtab.sentinel.reports.compare import Comparison

FINDINGS: tuple[Status, ...] = ("bug", "suspect", "latent", "hygiene")
RAN: tuple[Status, ...] = ("holds", "bug", "suspect", "latent", "convention", "hygiene")
"""Statuses that say something about the function. The others mean that nothing was learned."""
SEVERITIES = ("high", "medium", "low", "none")

CLEAN, FOUND, COULD_NOT_RUN = 0, 1, 2


@dataclass(frozen=True)
class Group:
    """Verdicts with the same reason."""

    reason: str
    verdicts: tuple[VerdictData, ...]

    @property
    def invariants(self) -> list[str]:
        return sorted({verdict["invariant"] for verdict in self.verdicts})

    @property
    def subjects(self) -> list[str]:
        return list(dict.fromkeys(verdict["subject"] for verdict in self.verdicts))


def exit_code(report: Report, comparison: "Comparison | None" = None, *, strict: bool = False) -> int:
    """1: bugs (with a baseline: new ones). 2: some function could not be checked. 0: everything ran, and no bug.

    With `strict`, suspects, latent bugs and hygiene count as bugs do.
    """
    failing = FINDINGS if strict else ("bug",)
    counted_ones = comparison.new if comparison is not None else report["verdicts"]
    if any(verdict["status"] in failing for verdict in counted_ones):
        return FOUND
    verdicts = report["verdicts"]
    learned = {verdict["subject"] for verdict in verdicts if verdict["status"] in RAN}
    # A function that accepts no case at all was not checked. One that lacks cases for some invariants was.
    idle = {verdict["subject"] for verdict in verdicts if verdict["status"] == "could not exercise"} - learned
    broken = any(verdict["status"] == "could not run" for verdict in verdicts)
    return COULD_NOT_RUN if not learned or idle or broken or report["could_not_bind"] else CLEAN


def counted(report: Report) -> Counter[str]:
    """The number of verdicts per status."""
    return Counter(verdict["status"] for verdict in report["verdicts"])


def with_status(report: Report, status: Status) -> list[VerdictData]:
    """Verdicts of one status, the worst first."""
    return sorted((v for v in report["verdicts"] if v["status"] == status), key=rank)


def grouped(verdicts: Sequence[VerdictData]) -> list[Group]:
    """Verdicts by reason, the most frequent first."""
    by_reason: dict[str, list[VerdictData]] = {}
    for verdict in verdicts:
        by_reason.setdefault(verdict["reason"] or "no reason was given", []).append(verdict)
    groups = [Group(reason, tuple(members)) for reason, members in by_reason.items()]
    return sorted(groups, key=lambda group: -len(group.verdicts))


def subject_of(report: Report, verdict: VerdictData) -> SubjectData | None:
    """The subject a verdict is about."""
    return next((subject for subject in report["subjects"] if subject["label"] == verdict["subject"]), None)


def boundary_of(report: Report, subject: SubjectData | None) -> Boundary | None:
    """The piece of code behind a subject, when it is known."""
    if subject is None or subject["boundary"] is None:
        return None
    return next((found for found in report["boundaries"] if found["boundary"] == subject["boundary"]), None)


def rank(verdict: VerdictData) -> tuple[int, int, float, str, str]:
    """For sorting: the worst verdict has the lowest rank."""
    violation = verdict["violation"]
    effect = violation["effect"] if violation else None
    change = float(effect["relative_change"] or 0.0) if effect else 0.0
    size = math.inf if math.isnan(change) else abs(change)
    kind = FINDINGS.index(verdict["status"]) if verdict["status"] in FINDINGS else len(FINDINGS)
    return kind, SEVERITIES.index(verdict["severity"]), -size, verdict["subject"], verdict["invariant"]

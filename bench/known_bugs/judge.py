"""Checks the function of a row against its invariants at one commit, in a child process, and compares both commits."""

import importlib
import json
import math
import multiprocessing
import pkgutil
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import bench.known_bugs
from bench.known_bugs.row import Row
from trimtab.sentinel.invariants import INVARIANTS

ENDED = "the child process ended without an answer"
Word = Literal["found", "missed", "false alarm", "could not run"]
NOT_ROWS = ("__main__", "judge", "not_tried", "row", "table", "two_ranks")


@dataclass(frozen=True)
class Shown:
    """The result at one commit: each violated invariant with its smallest counter-example, or the reason for none."""

    violated: dict[str, dict[str, Any]] = field(default_factory=dict)
    ran: bool = False
    why: str = ""


@dataclass(frozen=True)
class Judgement:
    """One row with its verdict."""

    row: Row
    verdict: Word
    why: str
    buggy: Shown
    fixed: Shown | None

    def as_data(self) -> dict[str, Any]:
        return {
            "id": self.row.id, "framework": self.row.framework, "buggy": self.row.buggy, "fixed": self.row.fixed,
            "invariants": list(self.row.invariants), "verdict": self.verdict, "why": self.why, "note": self.row.note,
            "violated": self.buggy.violated, "violated_at_fix": self.fixed.violated if self.fixed else {},
            "bugs_at_fix": self.bugs_at_fix,
        }  # fmt: skip

    @property
    def bugs_at_fix(self) -> list[str]:
        """Invariants with a bug verdict at the fix that nobody judged real."""
        shown = self.fixed.violated if self.fixed else {}
        return [name for name, told in shown.items() if told["grade"] == "bug" and name not in self.row.real]


def rows() -> list[Row]:
    """The rows of every framework, in the order of its file."""
    names = sorted(m.name for m in pkgutil.iter_modules(bench.known_bugs.__path__) if m.name not in NOT_ROWS)
    return [row for name in names for row in importlib.import_module(f"bench.known_bugs.{name}").ROWS]


def repository(where: Path, name: str) -> Path | None:
    """The git directory of owner/name, bare or not, in a folder of them."""
    owner, _, short = name.partition("/")
    for place in (f"{owner}+{short}/repo", f"{owner}+{short}", f"{owner}/{short}", short):
        if (where / place).is_dir():
            return where / place
    return None


def judge_row(row: Row, where: Path, *, seconds: float) -> Judgement:
    """The verdict of one row."""
    root = repository(where, row.repository)
    if root is None:
        return Judgement(row, "could not run", f"no git directory of {row.repository}", Shown(), None)
    buggy = in_child(row, root, row.buggy, row.invariants, seconds)
    again = row.fixed is not None and buggy.violated
    # Every invariant is on at the fix: what is right must be silent.
    fixed = in_child(row, root, row.fixed or "", None, seconds) if again else None
    if fixed is not None and fixed.why == ENDED:
        # Some processors have no instruction for half precision, and the process ends there.
        rest = tuple(name for name in INVARIANTS if name != "half_precision" or name in row.invariants)
        fixed = in_child(row, root, row.fixed or "", rest, seconds)
    return verdict(row, buggy, fixed)


def verdict(row: Row, buggy: Shown, fixed: Shown | None) -> Judgement:
    """Found: an invariant is violated at the bug, and none of those is violated at the fix."""
    if not buggy.violated:
        why = buggy.why if not buggy.ran else row.note or "the invariant holds on every case it was tried on"
        return Judgement(row, "missed" if buggy.ran else "could not run", why, buggy, None)
    if fixed is None:
        return Judgement(row, "found", row.note, buggy, None)
    if not fixed.ran:
        return Judgement(row, "could not run", f"at the fix: {fixed.why}", buggy, fixed)
    again = [name for name in buggy.violated if name in fixed.violated]
    if again:
        return Judgement(row, "false alarm", f"at the fix: {fixed.violated[again[0]]['what']}", buggy, fixed)
    return Judgement(row, "found", row.note, buggy, fixed)


def in_child(row: Row, root: Path, commit: str, invariants: tuple[str, ...] | None, seconds: float) -> Shown:
    """The result at a commit, from a separate process, because foreign code runs there."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(row, root, commit, invariants, theirs))
    child.start()
    theirs.close()
    try:
        data = json.loads(ours.recv_bytes()) if ours.poll(seconds) else None
    except EOFError:
        return Shown(why=ENDED)
    finally:
        child.kill()
        child.join()
    if data is None:
        return Shown(why=f"no answer within {seconds:g} s")
    return Shown(data["violated"], data["ran"], data["why"])


def _answer(row: Row, root: Path, commit: str, invariants: tuple[str, ...] | None, pipe: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        found = shown(row, root, commit, invariants)
    except Exception as error:  # foreign code may raise anything; the row reports it
        found = Shown(why=f"{type(error).__name__}: {error}")
    pipe.send_bytes(json.dumps({"violated": found.violated, "ran": found.ran, "why": found.why}).encode())


GRADES = ("bug", "suspect", "latent")
"""What counts as found. Hygiene and conventions do not."""


def shown(row: Row, root: Path, commit: str, invariants: tuple[str, ...] | None) -> Shown:
    """Bind at the commit and check every subject; the worst violation of each invariant is kept."""
    from trimtab.sentinel.loading import Tree
    from trimtab.sentinel.search import examine
    from trimtab.sentinel.targets.target import Unbound, bound

    violated: dict[str, dict[str, Any]] = {}
    ran, why = False, ""
    for subject in bound(row.binding, Tree.git(root, commit)):
        if isinstance(subject, Unbound):
            return Shown(why=f"could not bind: {subject.reason}")
        for verdict in examine(subject, only=invariants):
            ran = ran or verdict.status in (*GRADES, "holds", "hygiene", "convention", "could not exercise")
            if verdict.status in ("could not run", "could not exercise") and not why:
                why = f"{verdict.invariant}: {verdict.status}: {verdict.reason}"
            if verdict.violation is not None and verdict.status in GRADES:
                held = violated.get(verdict.invariant)
                if held is None or GRADES.index(verdict.status) < GRADES.index(held["grade"]):
                    violated[verdict.invariant] = _told(verdict)
    return Shown(violated, ran, why)


def _told(verdict: Any) -> dict[str, Any]:
    violation = verdict.violation
    return {
        "subject": verdict.subject, "grade": verdict.status, "severity": verdict.severity, "what": violation.what,
        "observed": _plain(violation.observed), "expected": _plain(violation.expected),
        "case": ["".join(kinds) for kinds in verdict.case.kinds] if verdict.case is not None else [],
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """The value in a form that JSON can hold."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else str(value)
    return value if isinstance(value, int | str | bool) or value is None else str(value)

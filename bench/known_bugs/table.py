"""Judgements as text: one line each, and the table of the docs."""

from collections import Counter
from typing import Any

from bench.known_bugs.judge import Judgement
from bench.known_bugs.not_tried import NOT_TRIED

_HEAD = """# Known bugs

Real silent bugs of other frameworks. The sentinel checks each one at the commit that has it and at the commit that repaired it.
This page is written by `python -m bench.known_bugs --markdown docs/known_bugs.md`, which reads git directories from `TRIMTAB_PEER_REPOS`. The bindings are ours;
no code of the frameworks is stored here. **found**: a named invariant is violated at the bug and holds at the fix (a head that still has the bug
has no fix), as a bug or as a latent bug. **missed**: no named invariant is violated. **false alarm**: still violated at the fix. At the fix, every invariant is on: the last
column lists other invariants with a bug verdict there that nobody judged real (`real` in `bench/known_bugs/` says where, and which input reaches it;
each of these was confirmed in the callers by somebody who did not write the bindings).
"""  # noqa: E501


def line(one: Judgement) -> str:
    """One row for a terminal."""
    also = f"  [bugs at the fix: {', '.join(one.bugs_at_fix)}]" if one.bugs_at_fix else ""
    return f"{one.verdict:13s} {one.row.id:24s} {_shown(one) or one.why}"[:200] + also


def markdown(done: list[Judgement]) -> str:
    """The page of the docs."""
    counts = Counter(one.verdict for one in done)
    told = ", ".join(f"{counts[word]} {word}" for word in ("found", "missed", "false alarm", "could not run"))
    out = [_HEAD, f"{len(done)} rows: {told}.", ""]
    out += [
        "| id | framework | bug | fix | verdict | grade | invariant | smallest case | observed | expected "
        "| bugs at the fix |",
        "|" + "---|" * 11,
    ]
    for one in done:
        first = next(iter(one.buggy.violated.items()), None)
        name, seen = first if first else ("", {})
        cells = [
            one.row.id, one.row.framework, f"`{one.row.buggy}`", f"`{one.row.fixed}`" if one.row.fixed else "head",
            one.verdict, seen.get("grade", ""), name, " ".join(seen.get("case", [])), _short(seen.get("observed", "")),
            _short(seen.get("expected", "")), ", ".join(one.bugs_at_fix),
        ]  # fmt: skip
        out.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    missed = [one for one in done if one.verdict != "found"]
    if missed:
        out += ["", "## Why not", "", "| id | verdict | reason |", "|---|---|---|"]
        out += [f"| {one.row.id} | {one.verdict} | {_cell(one.why)} |" for one in missed]
    noted = [one for one in done if one.verdict == "found" and one.row.note]
    if noted:
        out += ["", "## Notes", ""] + [f"- {one.row.id}: {one.row.note}" for one in noted]
    out += ["", "## Not tried", "", "| id | reason |", "|---|---|"]
    out += [f"| {name} | {_cell(why)} |" for name, why in NOT_TRIED.items()]
    return "\n".join(out) + "\n"


def _shown(one: Judgement) -> str:
    if one.verdict != "found":
        return ""
    name, seen = next(iter(one.buggy.violated.items()))
    case, saw, owed = " ".join(seen["case"]), _short(seen["observed"]), _short(seen["expected"])
    return f"{seen['grade']} {name}: {case}: {saw} where {owed} is owed"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")

"""`trimtab check`: run promises through the sentinel and show what failed."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import Progress

from trimtab.signal import find
from trimtab.signal.formula import PROMISES

if TYPE_CHECKING:
    from trimtab.sentinel import Verdict, Violation


def run_check(target: str, seed: int, examples: int, output: str, out: Path | None) -> int:
    """Check a target; returns the exit code."""
    verdicts = _verdicts(target, seed, examples, show=output == "text")
    found = [v for v in verdicts if v.status == "bug"]
    unrun = [v for v in verdicts if v.status in ("could not exercise", "could not run")]
    text = _json(target, seed, verdicts) if output == "json" else _text(target, seed, verdicts)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
        print(f"{len(verdicts)} checks, {len(found)} findings: {out}")
    else:
        print(text)
    return 1 if found else 2 if unrun else 0


def _verdicts(target: str, seed: int, examples: int, *, show: bool) -> "list[Verdict]":
    from trimtab.sentinel import check
    from trimtab.sentinel.targets.trimtab import VARIANTS, bind, formula_subjects, recipe_subjects

    if target == "trimtab":
        subjects = [*formula_subjects(), *recipe_subjects()]
    else:
        entry = find(target)
        settings = {n: p.default for n, p in entry.settings.items() if p.default is not p.empty}
        subjects = [bind(entry, variant) for variant in VARIANTS.get(entry.name, [settings])]
    work = [(subject, promise) for subject in subjects for promise in subject.promises or PROMISES]
    verdicts: list[Verdict] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not show) as progress:
        task = progress.add_task(f"checking {target}", total=len(work))
        for subject, promise in work:
            progress.update(task, description=f"{subject.name} · {promise}")
            verdicts.append(check(subject, promise, seed=seed, examples=examples))
            progress.advance(task)
    return verdicts


def _text(target: str, seed: int, verdicts: "list[Verdict]") -> str:
    lines: list[str] = []
    for verdict in verdicts:
        if verdict.status == "holds":
            continue
        lines.append(f"{verdict.status.upper()}  {verdict.subject}  {verdict.invariant}")
        if verdict.violation is not None:
            lines += [
                f"  {verdict.violation.what}",
                f"  observed: {verdict.violation.observed}",
                f"  expected: {verdict.violation.expected}",
            ]
        if verdict.case is not None:
            lines.append(f"  smallest case: {json.dumps(verdict.case.as_data())}")
        if verdict.reason:
            lines.append(f"  {verdict.reason}")
    held = sum(v.status == "holds" for v in verdicts)
    subjects = len({v.subject for v in verdicts})
    cases = sum(v.exercised for v in verdicts)
    lines.append(
        f"{target}: {held} of {len(verdicts)} checks hold on {subjects} subjects and {cases} cases (seed {seed})."
    )
    return "\n".join(lines)


def _json(target: str, seed: int, verdicts: "list[Verdict]") -> str:
    rows = [
        {
            "subject": v.subject,
            "invariant": v.invariant,
            "status": v.status,
            "exercised": v.exercised,
            "reason": v.reason,
            "violation": None if v.violation is None else _violation(v.violation),
            "case": None if v.case is None else v.case.as_data(),
        }
        for v in verdicts
    ]
    return json.dumps(
        _finite({"target": target, "seed": seed, "verdicts": rows}), indent=2, sort_keys=True, allow_nan=False
    )


def _violation(found: "Violation") -> dict[str, Any]:
    return {
        "what": found.what,
        "observed": found.observed,
        "expected": found.expected,
        "positions": list(found.positions),
    }


def _finite(data: Any) -> Any:
    """The same data with "nan", "inf" and "-inf" as words, which JSON has no numbers for."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in cast("dict[object, Any]", data).items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in cast("list[Any]", data)]
    return data

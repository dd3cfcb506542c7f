"""`trimtab check`: hold a target to the invariants, or read a saved report again, and show what was found."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from trimtab.cli.console import plain_console
from trimtab.errors import AdapterError, unknown_name

if TYPE_CHECKING:
    from trimtab.sentinel.examination.job import Job
    from trimtab.sentinel.examination.supervise import Spread
    from trimtab.sentinel.reports import Comparison, Report


@dataclass(frozen=True)
class Asked:
    """What the command line said."""

    target: str
    path: str | None = None
    wheel: Path | None = None
    offline: bool = False
    seed: int = 0
    examples: int = 12
    output: str = "text"
    out: Path | None = None
    only: tuple[str, ...] = ()
    invariants: tuple[str, ...] = ()
    baseline: Path | None = None
    changed: str | None = None
    findings: Path | None = None
    online: bool = False
    fixed: str | None = None
    time_limit: float = 120.0
    memory_limit: float | None = None
    jobs: int | None = None
    discover: bool = False
    strict: bool = False
    verbose: bool = False
    cluster: str | None = None


def run_check(asked: Asked, saved: Path | None = None) -> int:
    """Check a target, or read a saved report again; show it, and return the exit code."""
    from trimtab.sentinel.examination.record import teaching
    from trimtab.sentinel.reports import RENDERERS, compare, exit_code, load, text

    known = load(asked.baseline) if asked.baseline is not None else None
    report = load(saved) if saved is not None else _examine(asked)
    comparison = compare(known, report) if known is not None else None
    if asked.output == "text":
        made = text.render(report, teaching(), comparison, verbose=asked.verbose)
    else:
        made = RENDERERS[asked.output](report, teaching(), comparison)
    _show(asked, made, report, comparison)
    _tell_rest(asked, report)
    if asked.changed is not None and not report["verdicts"] and not report["could_not_bind"]:
        print(f"{asked.changed} touched no function of {report['target']['name']}: nothing to check.", file=sys.stderr)
        return 0
    return exit_code(report, comparison, strict=asked.strict)


def _show(asked: Asked, text: str, report: "Report", comparison: "Comparison | None") -> None:
    """On the terminal; or in the file, with one line about it on the terminal."""
    if asked.out is not None:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
        print(f"{_summary(report, comparison)}\n{asked.out}")
    else:
        print(text.rstrip("\n"))


def _tell_rest(asked: Asked, report: "Report") -> None:
    """Functions that were come across in a package or repository, and could not be bound by their names."""
    rest = report.get("not_bound", [])
    if rest:
        how = "" if asked.verbose else "; --verbose or --format json lists them"
        count = "1 other function" if len(rest) == 1 else f"{len(rest)} other functions"
        print(f"{count} could not be bound by argument names{how}", file=sys.stderr)
    for one in rest if asked.verbose else ():
        print(f"  {one['subject']}: {one['reason']}", file=sys.stderr)


def _summary(report: "Report", comparison: "Comparison | None") -> str:
    from trimtab.sentinel.reports.summary import summary

    told = summary(report)
    return f"{told}\n{comparison.line()}" if comparison is not None else told


def _examine(asked: Asked) -> "Report":
    """Run the job in children, with a bar where somebody watches."""
    from trimtab.sentinel import INVARIANTS, examine
    from trimtab.sentinel.examination.job import Job
    from trimtab.sentinel.examination.limits import Limits
    from trimtab.sentinel.examination.supervise import run_job

    assert examine  # asking for it says what to install, before a child is started in vain
    for name in asked.invariants:
        if name not in INVARIANTS:
            raise AdapterError(unknown_name("invariant", name, sorted(INVARIANTS)))
    where, sentence = _located(asked)
    job = Job(
        **where, seed=asked.seed, examples=asked.examples, subjects=asked.only, invariants=asked.invariants,
        lines=_changed_lines(asked, where), online=asked.online, fixed=_repaired(asked),
        findings=str(asked.findings.resolve()) if asked.findings is not None else None,
    )  # fmt: skip
    chosen: dict[str, Any] = {"seconds": asked.time_limit}
    chosen |= {"gibibytes": asked.memory_limit} if asked.memory_limit is not None else {}
    # The ledger of findings is one file: one child writes it.
    jobs = 1 if asked.findings is not None else asked.jobs
    limits = Limits(**chosen, processes=jobs) if jobs else Limits(**chosen)
    console = plain_console(stderr=True)
    where = f"in at most {limits.processes} child processes" if asked.cluster is None else f"on Ray ({asked.cluster})"
    console.print(f"running {sentence}, {where}", style="dim")
    written: list[dict[str, Any]] = []
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("loading", total=None)

        def watch(event: dict[str, Any]) -> None:
            if event["event"] == "verdict":
                verdict = event["verdict"]
                progress.update(task, advance=1, description=f"{verdict['subject'][:50]} · {verdict['invariant']}")
            if event["event"] == "finding":
                written.append(event)
                console.print(f"finding: {event['folder']} ({_readiness(event)})", highlight=False, markup=False)

        report = run_job(job, limits=limits, command=_command(), watch=watch, spread=_spread(asked, job))
    if asked.findings is not None:
        console.print(_share(report, written), highlight=False, markup=False)
    return report


def _spread(asked: Asked, job: "Job") -> "Spread | None":
    """Where units are checked: in children of this process, or on a cluster."""
    if asked.cluster is None:
        return None
    from trimtab.train.cluster.check_units import refuse, spread_units

    refuse(job)
    return spread_units(asked.cluster)


def _readiness(event: dict[str, Any]) -> str:
    return "ready" if event["ready"] else f"not ready: {'; '.join(event['missing'])}"


def _share(report: "Report", written: list[dict[str, Any]]) -> str:
    """How many bugs have a folder that is ready for maintainers."""
    from trimtab.sentinel.reports.causes import findings

    bugs = {one.id for one in findings(report) if one.status == "bug"}
    ready = {event["cause"] for event in written if event["ready"]}
    lost = len(bugs - {event["cause"] for event in written})
    left = f"; {lost} had no folder written, because their process ended or their cause joined another" if lost else ""
    return f"{len(bugs & ready)} of {len(bugs)} bugs have a folder that is ready{left}"


def _repaired(asked: Asked) -> str | None:
    """The repaired code that --fixed names, as an absolute path: a child runs in another folder."""
    if asked.fixed is None:
        return None
    from trimtab.sentinel.examination.job import located

    if asked.findings is None:
        raise AdapterError("check: --fixed is repaired code for the tests of --findings DIR. Give that folder too.")
    _, tree = located(asked.fixed)
    return f"{tree.root}@{tree.commit}" if tree.commit else str(tree.root)


def _located(asked: Asked) -> "tuple[dict[str, Any], str]":
    """Where the code is, as fields of the job, and a sentence about it."""
    from trimtab.sentinel.examination.job import locate, located

    if not asked.discover:
        where, sentence = locate(asked.target, path=asked.path, file=asked.wheel, offline=asked.offline)
        return {"target": asked.target, **where}, sentence
    if asked.path is None or asked.target:
        raise AdapterError(
            "check: --discover searches a whole repository without bindings. Name it with --path DIR or DIR@COMMIT, "
            "and no target."
        )
    where, tree = located(asked.path)
    sentence = f"{tree.root}: every file with a function that looks like a part of the signal is imported and run"
    return {"target": tree.root.name.removesuffix(".git"), "is_discovery": True, **where}, sentence


def _command() -> str:
    return " ".join(["trimtab", *sys.argv[1:]])


def _changed_lines(asked: Asked, where: dict[str, Any]) -> dict[str, list[list[int]]] | None:
    if asked.changed is None:
        return None
    from trimtab.sentinel.examination.changes import changed_lines

    if where.get("version") is not None:
        raise AdapterError("check: --changed BASE..HEAD reads a git checkout. Say which with --path DIR.")
    return changed_lines(where.get("root") or where.get("folder") or ".", asked.changed)


def run_recipe(recipe: str, path: str | None) -> int:
    """Replay one recipe against a checkout (or its wheel): 1 reproduced, 0 fixed, 2 could not be judged."""
    from trimtab.sentinel.findings.command import replay_recipe

    payload = replay_recipe(recipe, path)
    print(json.dumps(payload, indent=2, sort_keys=True))
    print(f"{payload['candidate_id']}: {payload['status']}", file=sys.stderr)
    return {"reproduced": 1, "fixed": 0}.get(payload["status"], 2)

"""How right the sentinel is on right functions and their wrong twins: `make right`, or

    python -m tests.right [--corpus held] [--dialect X] [--only NAME] [--sample 80] [--column unbound] [--out FILE]

Three columns: unbound (found by its names alone), bound (names and role), bound with a definition. A right function
should get no bug verdict; a wrong twin should get one that the right function does not get. Each entry is printed as
soon as it is known, the totals at the end. The exit code is 1 if a right function got a bug verdict.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.right.entry import CORPORA, DIALECTS, Entry, entries
from tests.right.measure import BUDGET, COLUMNS, VERSIONS, Measured, measure

Key = tuple[str, str, str, str, str]
Found = dict[Key, Measured]
"""(corpus, dialect, name, version, column) to the outcome."""


def key(entry: Entry, version: str, column: str) -> Key:
    return entry.corpus, entry.dialect, entry.name, version, column


def collect(chosen: Sequence[Entry], *, jobs: int, columns: Sequence[str], budget: int) -> Found:
    """Examine both versions of every entry in every column, in child processes."""
    tasks = [key(e, version, column) for e in chosen for version in VERSIONS for column in columns]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {task: pool.submit(measure, *task[1:], budget=budget, corpus=task[0]) for task in tasks}
        found: Found = {}
        for entry in chosen:
            for task in (key(entry, version, column) for version in VERSIONS for column in columns):
                try:
                    found[task] = running[task].result()
                except Exception as error:  # a dead child takes its subject with it, never the whole report
                    found[task] = Measured(problem=f"{type(error).__name__}: {error}")
            print_row(entry, columns, found)
    return found


def told(entry: Entry, column: str, found: Found) -> list[str]:
    """Verdicts that only the wrong twin gets: another law, or the same one as a bug where the right one is latent."""
    right, wrong = (found[key(entry, version, column)] for version in VERSIONS)
    return [name for name in wrong.findings if name not in right.findings or name in set(wrong.bugs) - set(right.bugs)]


def print_row(entry: Entry, columns: Sequence[str], found: Found) -> None:
    """One entry, as soon as it is known."""
    print(f"\n{entry.corpus}  {entry.dialect}  {entry.name}  ({entry.role})  {entry.bug}")
    for column in columns:
        right, wrong = (found[key(entry, version, column)] for version in VERSIONS)
        only = told(entry, column, found)
        verdict = f"told by {', '.join(only)}" if only else "MISSED"
        print(f"  {column:<10}  right: {right.text()}")
        print(f"  {'':<10}  wrong: {wrong.text()}  -> {verdict}", flush=True)


def totals(chosen: Sequence[Entry], columns: Sequence[str], found: Found) -> dict[str, dict[str, int]]:
    """Counts per column."""
    counted: dict[str, dict[str, int]] = {}
    for column in columns:
        rights = [found[key(e, "right", column)] for e in chosen]
        counted[column] = {
            "entries": len(chosen),
            "right: with a bug verdict (false alarm)": sum(bool(r.bugs) for r in rights),
            "right: with a suspect": sum("suspect" in r.verdicts for r in rights),
            "right: with a latent bug": sum("latent" in r.verdicts for r in rights),
            "right: not bound or nothing exercised": sum(bool(r.problem) or not r.exercised for r in rights),
            "wrong: told apart (found)": sum(bool(told(e, column, found)) for e in chosen),
            "wrong: missed": sum(not told(e, column, found) for e in chosen),
        }
    return counted


def print_totals(title: str, chosen: Sequence[Entry], columns: Sequence[str], found: Found) -> None:
    counted = totals(chosen, columns, found)
    print(f"\n{title:<44}" + "".join(f"{column:>12}" for column in columns))
    for line in next(iter(counted.values())):
        print(f"{line:<44}" + "".join(f"{counted[column][line]:>12}" for column in columns))
    for column in columns:
        rights = {e: found[key(e, "right", column)] for e in chosen}
        alarms = [f"{e.dialect}.{e.name}: {', '.join(r.bugs)}" for e, r in rights.items() if r.bugs]
        missed = [f"{e.dialect}.{e.name}" for e in chosen if not told(e, column, found)]
        print(f"false alarms, {column}: " + ("; ".join(alarms) or "none"))
        print(f"missed, {column}: " + (", ".join(missed) or "none"))


def write(path: Path, chosen: Sequence[Entry], columns: Sequence[str], found: Found) -> None:
    """Everything as JSON."""
    rows = [
        {
            "corpus": e.corpus, "dialect": e.dialect, "name": e.name, "role": e.role, "bug": e.bug,
            "told_by": {column: told(e, column, found) for column in columns},
            **{v: {c: found[key(e, v, c)].as_data() for c in columns} for v in VERSIONS},
        }
        for e in chosen
    ]  # fmt: skip
    path.write_text(json.dumps({"totals": totals(chosen, columns, found), "entries": rows}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.right", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", choices=CORPORA, action="append", help="may be repeated; default: all")
    parser.add_argument("--dialect", choices=DIALECTS)
    parser.add_argument("--only", help="the name of one function")
    parser.add_argument("--column", choices=COLUMNS, action="append", help="may be repeated; default: all")
    parser.add_argument("--sample", type=int, help="only so many entries, chosen at random by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=int, default=BUDGET, help="seconds per subject")
    parser.add_argument("--out", type=Path, help="write JSON")
    asked = parser.parse_args()
    known = [entry for corpus in asked.corpus or CORPORA for entry in entries(corpus)]
    chosen = [e for e in known if asked.dialect in (None, e.dialect) and asked.only in (None, e.name)]
    if not chosen:
        parser.error(f"no entry is called {asked.only!r}; there are {', '.join(sorted({e.name for e in known}))}")
    if asked.sample is not None:
        places = sorted(random.Random(asked.seed).sample(range(len(chosen)), min(asked.sample, len(chosen))))
        chosen = [chosen[place] for place in places]
    columns = asked.column or list(COLUMNS)
    found = collect(chosen, jobs=asked.jobs, columns=columns, budget=asked.budget)
    for corpus in dict.fromkeys(e.corpus for e in chosen):
        print_totals(corpus, [e for e in chosen if e.corpus == corpus], columns, found)
    if len({e.corpus for e in chosen}) > 1:
        print_totals("all", chosen, columns, found)
    if asked.out:
        write(asked.out, chosen, columns, found)
    return int(any(found[key(e, "right", column)].bugs for e in chosen for column in columns))


if __name__ == "__main__":
    sys.exit(main())

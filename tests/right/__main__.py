"""How right the sentinel is on the corpus: `python -m tests.right [--dialect X] [--only NAME] [--jobs 2] [--out FILE]`.

`--corpus held` takes the functions that were written without looking at the sentinel.

Three columns: unbound (found by its names alone), bound (names and role), bound with a definition. A right function
should get no bug verdict; a wrong twin should get one that the right function does not get.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from tests.right.entry import CORPORA, DIALECTS, Entry, entries
from tests.right.measure import BUDGET, COLUMNS, VERSIONS, Measured, measure

Found = dict[tuple[str, str, str, str], Measured]
"""(dialect, name, version, column) to the outcome."""


def collect(chosen: Sequence[Entry], *, jobs: int, columns: Sequence[str], budget: int) -> Found:
    """Examine both versions of every entry in every column, in child processes."""
    tasks = [(e.dialect, e.name, version, column) for e in chosen for version in VERSIONS for column in columns]
    corpus = chosen[0].corpus
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {task: pool.submit(measure, *task, budget=budget, corpus=corpus) for task in tasks}
        found: Found = {}
        for entry in chosen:
            for task in (task for task in running if task[:2] == (entry.dialect, entry.name)):
                try:
                    found[task] = running[task].result()
                except Exception as error:  # a dead child takes its subject with it, never the whole report
                    found[task] = Measured(problem=f"{type(error).__name__}: {error}")
            print_row(entry, columns, found)
    return found


def told(entry: Entry, column: str, found: Found) -> list[str]:
    """Verdicts that only the wrong twin gets: another law, or the same one as a bug where the right one is latent."""
    right, wrong = (found[entry.dialect, entry.name, version, column] for version in VERSIONS)
    return [name for name in wrong.findings if name not in right.findings or name in set(wrong.bugs) - set(right.bugs)]


def latent(entry: Entry, name: str) -> bool:
    """NaN in padding reaches a function that multiplies by the mask: harmless as long as padding is finite."""
    return entry.pads_finite and name == "nonfinite_isolation"


def print_row(entry: Entry, columns: Sequence[str], found: Found) -> None:
    """One entry, as soon as it is known."""
    print(f"\n{entry.dialect}  {entry.name}  ({entry.role})  {entry.bug}")
    for column in columns:
        right, wrong = (found[entry.dialect, entry.name, version, column] for version in VERSIONS)
        only = told(entry, column, found)
        verdict = f"told by {', '.join(only)}" if only else "MISSED"
        print(f"  {column:<10}  right: {right.text()}")
        print(f"  {'':<10}  wrong: {wrong.text()}  -> {verdict}", flush=True)


def totals(chosen: Sequence[Entry], columns: Sequence[str], found: Found) -> dict[str, dict[str, int]]:
    """Counts per column."""
    counted: dict[str, dict[str, int]] = {}
    for column in columns:
        rights = [(e, found[e.dialect, e.name, "right", column]) for e in chosen]
        real = [(e, [n for n in r.bugs if not latent(e, n)]) for e, r in rights]
        counted[column] = {
            "entries": len(chosen),
            "right: not bound or not run": sum(bool(r.problem) for _, r in rights),
            "right: nothing exercised": sum(not r.problem and not r.exercised for _, r in rights),
            "right: silent and exercised": sum(bool(r.exercised) and not r.bugs for _, r in rights),
            "right: functions with a false alarm": sum(bool(r.bugs) for _, r in rights),
            "right: … besides NaN in padding": sum(bool(names) for _, names in real),
            "right: suspects": sum("suspect" in r.verdicts for _, r in rights),
            "right: latent": sum("latent" in r.verdicts for _, r in rights),
            "right: false bug verdicts": sum(len(r.bugs) for _, r in rights),
            "right: … besides NaN in padding, verdicts": sum(len(names) for _, names in real),
            "wrong: told apart": sum(bool(told(e, column, found)) for e in chosen),
            "wrong: told apart, right one silent": sum(bool(told(e, column, found)) and not names for e, names in real),
            "wrong: missed": sum(not told(e, column, found) for e in chosen),
        }
    return counted


def print_totals(chosen: Sequence[Entry], columns: Sequence[str], found: Found) -> None:
    counted = totals(chosen, columns, found)
    print(f"\n{'':<44}" + "".join(f"{column:>12}" for column in columns))
    for line in next(iter(counted.values())):
        print(f"{line:<44}" + "".join(f"{counted[column][line]:>12}" for column in columns))
    for column in columns:
        alarms: Counter[str] = Counter()
        for entry in chosen:
            names = found[entry.dialect, entry.name, "right", column].bugs
            alarms.update(f"{name} (finite padding)" if latent(entry, name) else name for name in names)
        print(f"\nfalse alarms, {column}: " + (", ".join(f"{n} {c}" for n, c in alarms.most_common()) or "none"))
        missed = [f"{e.dialect}.{e.name}" for e in chosen if not told(e, column, found)]
        print(f"missed, {column}: " + (", ".join(missed) or "none"))


def write(path: Path, chosen: Sequence[Entry], columns: Sequence[str], found: Found) -> None:
    """Everything as JSON."""
    rows = [
        {
            "dialect": e.dialect, "name": e.name, "role": e.role, "bug": e.bug, "pads_finite": e.pads_finite,
            "told_by": {column: told(e, column, found) for column in columns},
            **{v: {c: found[e.dialect, e.name, v, c].as_data() for c in columns} for v in VERSIONS},
        }
        for e in chosen
    ]  # fmt: skip
    path.write_text(json.dumps({"totals": totals(chosen, columns, found), "entries": rows}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.right", description=__doc__)
    parser.add_argument("--corpus", choices=CORPORA, default="corpus")
    parser.add_argument("--dialect", choices=DIALECTS)
    parser.add_argument("--only", help="the name of one function")
    parser.add_argument("--column", choices=COLUMNS, action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=int, default=BUDGET, help="seconds per subject")
    parser.add_argument("--out", type=Path, help="write JSON")
    asked = parser.parse_args()
    known = entries(asked.corpus)
    chosen = [e for e in known if asked.dialect in (None, e.dialect) and asked.only in (None, e.name)]
    if not chosen:
        parser.error(f"no entry is called {asked.only!r}; there are {', '.join(sorted({e.name for e in known}))}")
    columns = asked.column or list(COLUMNS)
    found = collect(chosen, jobs=asked.jobs, columns=columns, budget=asked.budget)
    print_totals(chosen, columns, found)
    if asked.out:
        write(asked.out, chosen, columns, found)


if __name__ == "__main__":
    main()

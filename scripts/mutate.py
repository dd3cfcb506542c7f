"""Plant small bugs in `signal/` and see whether the tests notice.

    .venv/bin/python scripts/mutate.py --seed 0 --mutants 300    a sample; 5 to 10 minutes on two cores
    .venv/bin/python scripts/mutate.py --only vote.py --list     the mutants of one file, without running them
    .venv/bin/python scripts/mutate.py --seed 1 --out score.json

A mutant that no test notices has survived. One that no test can notice is equivalent: scripts/mutants_equivalent.toml
names it and derives why; such a mutant is run all the same, and the run fails if a test kills it after all.
score = killed / (mutants - equivalent); a mutant that runs out of time counts as killed. The exit code is 0 when the
score is at least --least and at most 5 % of the mutants are equivalent.
It needs the dev extra.
"""

import argparse
import json
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mutant_kinds import Mutant, mutants_of, sample
from mutant_tests import ROOT, SOURCE, Outcome, preload, reach_of, run_all

TESTS = ("tests/signal", "tests/golden", "tests/config", "tests/bad_input")
EQUIVALENT = ROOT / "scripts" / "mutants_equivalent.toml"
MOST_EQUIVALENT = 0.05
COLUMNS = ("mutants", "killed", "timed out", "survived", "equivalent")


@dataclass(frozen=True)
class Equivalent:
    """A mutant that changes nothing anyone can see, known by its text, and why."""

    file: str
    line: str
    was: str
    becomes: str
    derivation: str
    nth: int = 0

    def fits(self, mutant: Mutant) -> bool:
        named = (mutant.file.name, mutant.text, " ".join(mutant.old.split()), mutant.new, mutant.nth)
        return named == (self.file, self.line, self.was, self.becomes, self.nth)


def equivalents() -> list[Equivalent]:
    return [Equivalent(**entry) for entry in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--seed", type=int, default=0)
    _ = parser.add_argument("--mutants", type=int, default=300, help="how many; 0 is all of them")
    _ = parser.add_argument("--only", nargs="+", default=[], metavar="FILE", help="files of signal/, or file.py:LINE")
    _ = parser.add_argument("--workers", type=int, default=2)
    _ = parser.add_argument("--limit", type=float, default=60.0, help="seconds, besides ten times what the tests take")
    _ = parser.add_argument("--least", type=float, default=0.95, help="the score that is asked for")
    _ = parser.add_argument(
        "--tests", nargs="+", default=[one for one in TESTS if any((ROOT / one).rglob("test_*.py"))]
    )
    _ = parser.add_argument("--out", type=Path, help="where to write everything as JSON")
    _ = parser.add_argument("--list", action="store_true", help="show the mutants, run none")
    return parser.parse_args()


def chosen_mutants(given: argparse.Namespace) -> tuple[list[Mutant], list[Equivalent]]:
    """The sample, and the equivalents that name no mutant at all."""
    every = {file: mutants_of(file) for file in sorted(SOURCE.glob("*.py"))}
    stale = [one for one in equivalents() if not any(one.fits(m) for m in every.get(SOURCE / one.file, []))]
    wanted = {
        file: [m for m in own if not given.only or {file.name, m.where} & set(given.only)]
        for file, own in every.items()
    }
    wanted = {file: own for file, own in wanted.items() if own}
    num = given.mutants or sum(len(own) for own in wanted.values())
    return sample(wanted, num, given.seed), stale


def show_table(outcomes: list[Outcome]) -> None:
    by_file: dict[str, Counter[str]] = {}
    for one in outcomes:
        row = by_file.setdefault(one.mutant.file.name, Counter())
        row.update(["mutants", one.result])
    by_file["all"] = sum(by_file.values(), Counter[str]())
    print(f"\n{'file':<20}" + "".join(f"{name:>12}" for name in COLUMNS))
    for name, row in by_file.items():
        print(f"{name:<20}" + "".join(f"{row[column]:>12}" for column in COLUMNS))


def score_of(outcomes: list[Outcome]) -> float:
    found = Counter(one.result for one in outcomes)
    return (found["killed"] + found["timed out"]) / max(len(outcomes) - found["equivalent"], 1)


def write_json(out: Path, given: argparse.Namespace, outcomes: list[Outcome]) -> None:
    rows = [
        {"where": one.mutant.where, "kind": one.mutant.kind, "line": one.mutant.text, "was": one.mutant.old,
         "becomes": one.mutant.new, "result": one.result, "by": one.by, "seconds": round(one.seconds, 2)}
        for one in outcomes
    ]  # fmt: skip
    whole = {"seed": given.seed, "score": score_of(outcomes), "tests": given.tests, "mutants": rows}
    _ = out.write_text(json.dumps(whole, indent=1, ensure_ascii=False), encoding="utf-8")


def run(given: argparse.Namespace, mutants: list[Mutant]) -> list[Outcome]:
    preload()
    started = time.monotonic()
    reach = reach_of(given.tests, ROOT / ".cache" / "mutate")
    print(f"{len(reach.seconds)} tests measured ({time.monotonic() - started:.0f} s)", flush=True)
    known, outcomes = equivalents(), list[Outcome]()
    for place, one in enumerate(run_all(mutants, reach, given.workers, given.limit), start=1):
        if any(entry.fits(one.mutant) for entry in known):
            one.result = "equivalent" if one.result == "survived" else f"called equivalent, {one.result}"
        outcomes.append(one)
        spent = time.monotonic() - started
        shown = f"{one.mutant.old!r} -> {one.mutant.new!r}" if one.result == "survived" else one.by
        print(f"{place:>4}/{len(mutants)} {spent:6.0f} s  {one.mutant.where:<22} {one.result:<10} {shown}", flush=True)
    return sorted(outcomes, key=lambda one: (one.mutant.file.name, one.mutant.start, one.mutant.new))


def main() -> int:
    given = options()
    mutants, stale = chosen_mutants(given)
    if given.list:
        for one in mutants:
            print(f"{one.where} {one.kind}\n{one.diff}")
        return 0
    outcomes = run(given, mutants)
    show_table(outcomes)
    for one in outcomes:
        if one.result == "survived":
            print(
                f"\n{one.mutant.where} {one.mutant.kind}: {one.mutant.old!r} -> {one.mutant.new!r}\n{one.mutant.diff}"
            )
    if given.out:
        write_json(given.out, given, outcomes)
    wrong = [one for one in outcomes if one.result.startswith("called")]
    for entry in stale:
        print(f"\n{EQUIVALENT.name}: no mutant is {entry.file}: {entry.line!r}, {entry.was!r} -> {entry.becomes!r}")
    for one in wrong:
        print(f"\n{one.mutant.where}: {one.result} by {one.by}; take it out of {EQUIVALENT.name}")
    score, called = score_of(outcomes), sum(one.result == "equivalent" for one in outcomes)
    print(f"\nseed {given.seed}: {len(outcomes)} mutants, {called} equivalent, score {score:.1%}")
    good = score >= given.least and called <= MOST_EQUIVALENT * len(outcomes)
    return 0 if good and not stale and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())

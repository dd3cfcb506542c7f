"""Real configurations, converted and compared: `python -m tests.convert.real --checkouts DIR [--write]`.

DIR holds a checkout of each framework: DIR/verl, DIR/skyrl, DIR/areal, DIR/openrlhf, DIR/slime, DIR/nemo_rl, DIR/trl,
DIR/prime_rl. One that is not there is left out. --write puts the tables into docs/convert.md.

Scripts are read by a caged bash that starts no command. The loss functions are those of the released wheels, and
OpenRLHF's those of its checkout.
"""

import argparse
import re
import sys
from pathlib import Path

from tests.convert.real.examples import EXAMPLES, Count, count
from tests.convert.real.sweep import COMPARED, Swept, sweep

PAGE = Path(__file__).parents[3] / "docs" / "convert.md"


def counts_table(counts: list[Count]) -> str:
    """How many files and options there were, and what became of them."""
    lines = [
        "| | files | converted | read twice | options | of them unknown | dropped |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in sorted(counts, key=lambda one: -one.files):
        lines.append(
            f"| {one.title} | {one.files} | {one.converted} | {one.read_twice} | {one.options:,} | {one.unknown} "
            f"| {len(one.dropped)} |"
        )
    return "\n".join(lines)


def compared_table(swept: list[Swept]) -> str:
    """What was equal: one row per kind of signal, with an example."""
    lines = ["| | a file | like it | compared | loss | gradient |", "|---|---|--:|---|--:|--:|"]
    for one in swept:
        for parts, alike in one.kinds().items():
            worst = max(alike, key=lambda file: file.gradient)
            name = Path(alike[0].file)
            lines.append(
                f"| {EXAMPLES[one.framework].title} | `{name.parent.name}/{name.name}` | {len(alike)} | "
                f"{', '.join(parts)} | {max(file.loss for file in alike):.0e} | {worst.gradient:.0e} |"
            )
    return "\n".join(lines)


def differing_table(swept: list[Swept]) -> str:
    """What was not equal, or could not be compared, and why."""
    lines = [
        "| | files | equal | equal but for a term | differ, and the run file says so | differ unsaid | not compared |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in swept:
        kinds = (one.equal, one.partly, one.said, one.unsaid, one.apart)
        cells = " | ".join(str(len(kind)) for kind in kinds)
        lines.append(f"| {EXAMPLES[one.framework].title} | {one.files} | {cells} |")
    return "\n".join(lines)


def put(page: str, name: str, table: str) -> str:
    """A table between its two markers."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.escape(start) + ".*?" + re.escape(end)
    if not re.search(pattern, page, re.DOTALL):
        raise SystemExit(f"{PAGE.name} has no {start} … {end}, so the table has no place.")
    return re.sub(pattern, lambda _: f"{start}\n{table}\n{end}", page, flags=re.DOTALL)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = asked.add_argument("--checkouts", type=Path, required=True)
    _ = asked.add_argument("--write", action="store_true")
    given = asked.parse_args()
    there = [name for name in EXAMPLES if (given.checkouts / name).is_dir()]
    counts = [count(name, given.checkouts / name) for name in there]
    swept = [sweep(name, given.checkouts) for name in there if name in COMPARED]
    tables = {"counts": counts_table(counts), "compared": compared_table(swept), "differing": differing_table(swept)}
    print("\n\n".join(tables.values()))
    for one in counts:
        for head, lines in (("refused", one.refused), ("not read twice", one.unread), ("DROPPED", one.dropped)):
            print("\n".join(f"{one.title}, {head}: {line}" for line in lines) or f"{one.title}, {head}: none")
    for one in swept:
        for head, found in (("said", one.said), ("UNSAID", one.unsaid), ("not compared", one.apart)):
            print("\n".join(f"{one.framework}, {head}: {name}: {why}" for name, why in found.items()))
    if given.write:
        page = PAGE.read_text(encoding="utf-8")
        for name, table in tables.items():
            page = put(page, name, table)
        _ = PAGE.write_text(page, encoding="utf-8")
    return 1 if any(one.dropped for one in counts) or any(one.unsaid for one in swept) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Is the trainer fast? Trimtab's and TRL's, step by step on the same model, task, batch and optimiser.

    python -m bench.trainer                       every case, about ten minutes on two cores
    python -m bench.trainer --only small          one case
    python -m bench.trainer --write               and put the table into docs/performance.md

TRL, Trimtab inline and Trimtab with a sampler process are three child processes. Only one of them works at a time: each
takes a block of steps, in rotating order, round after round. A ratio is the time of TRL / the time of Trimtab. Ratios
are not printed on a busy machine (`--anyway` prints them). `bench/beside/case.py` says what is trained, and how.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, median

from bench.beside.case import CASES, Case, accuracy, write_start
from bench.beside.gate import Side
from bench.timing import busy
from trimtab.train.study.table import half_width

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
MARK = "<!-- bench.trainer -->"
TRL_VERSION = "1.16.0"
WARM = 3
"""Steps that each side takes before the first measured one."""
STALENESS = 1
"""Of the run with a sampler process: enough for the sampler to work while the learner does."""
HEAD = (
    "| | least ms per step | median ms | TRL / it, least | TRL / it, median | held-out accuracy |",
    "|---|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True)
class Plan:
    """How many steps each side takes: `rounds` blocks of `block` steps after the warm ones."""

    rounds: int
    block: int
    threads: int

    @property
    def steps(self) -> int:
        return WARM + self.rounds * self.block


def arms(plan: Plan) -> dict[str, tuple[str, list[str], int]]:
    """Each side's module, its last arguments, and the threads of its processes."""
    several = str(plan.threads)
    ours = "bench.beside.ours"
    one = {"Trimtab, inline, 1 thread": (ours, ["inline", "1", "0"], 1)} if plan.threads > 1 else {}
    return {
        "TRL": ("bench.beside.theirs", [several], plan.threads),
        "Trimtab, inline": (ours, ["inline", several, "0"], plan.threads),
        **one,
        "Trimtab, processes": (ours, ["processes", "1", str(STALENESS)], 1),
    }


def measure(case: Case, plan: Plan, folder: Path) -> tuple[dict[str, list[list[float]]], dict[str, float]]:
    """Seconds of every step, block after block, for each side; and the accuracy of what it trained."""
    write_start(case, folder / "start")
    sides: dict[str, Side] = {}
    found: dict[str, list[list[float]]] = {}
    try:
        for name, (module, last, threads) in arms(plan).items():
            (folder / name).mkdir()
            given = [case.name, str(folder / "start"), str(folder / name), str(plan.steps), *last]
            sides[name] = Side(module, given, {"OMP_NUM_THREADS": str(threads)})
            found[name] = []
            _ = sides[name].steps(WARM)
        names = list(sides)
        for number in range(plan.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                found[name].append(sides[name].steps(plan.block))
                said = f"{case.name}, round {number + 1} of {plan.rounds}: {name}, {1000 * min(found[name][-1]):.1f} ms"
                print(said, file=sys.stderr, flush=True)
    except BaseException:
        for side in sides.values():
            side.kill()
        raise
    for side in sides.values():
        side.close()
    right = {name: accuracy(case, folder / name / "model") for name in sides} if case.is_learnable else {}
    return found, right


def counted(name: str, blocks: list[list[float]]) -> list[list[float]]:
    """The steps that count. A sampler process goes on while its side waits, so the first steps of a block are free."""
    skip = STALENESS + 1 if "processes" in name else 0
    return [block[skip:] for block in blocks]


def table(case: Case, found: dict[str, list[list[float]]], right: dict[str, float], *, ratios: bool) -> list[str]:
    kept = {name: counted(name, blocks) for name, blocks in found.items()}
    least = {name: min(min(block) for block in blocks) for name, blocks in kept.items()}
    middle = {name: median(one for block in blocks for one in block) for name, blocks in kept.items()}
    lines = [f"| **{case.text}** | | | | | |"]
    for name in kept:
        shown = ["", ""]
        if ratios and name != "TRL":
            shown = [f"{of['TRL'] / of[name]:.2f}" for of in (least, middle)]
        accurate = f"{right[name]:.3f}" if right else "–"
        lines.append(
            f"| {name} | {1000 * least[name]:.1f} | {1000 * middle[name]:.1f} | {' | '.join(shown)} | {accurate} |"
        )
    if ratios:
        lines.append(f"| better inline / processes | | | | {overlap(kept)} | |")
    return lines


def overlap(kept: dict[str, list[list[float]]]) -> str:
    """How much faster a sampler process is than the better of the inline runs, over rounds, with a 95 % interval."""
    inline = [name for name in kept if "inline" in name]
    best = min(inline, key=lambda name: median(median(block) for block in kept[name]))
    ratios = [median(a) / median(b) for a, b in zip(kept[best], kept["Trimtab, processes"], strict=True)]
    width = half_width(ratios)
    return f"{mean(ratios):.2f}" + (f" ± {width:.2f}" if width is not None else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--only", default="", help=f"one case of {', '.join(CASES)}")
    _ = parser.add_argument("--rounds", type=int, default=9)
    _ = parser.add_argument("--block", type=int, default=10, help="steps that a side takes at a time")
    _ = parser.add_argument("--threads", type=int, default=2)
    _ = parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    _ = parser.add_argument("--anyway", action="store_true", help="print ratios although the machine is busy")
    chosen = parser.parse_args()
    if find_spec("trl") is None:
        sys.exit(f"bench.trainer compares with TRL, which is not installed: pip install trl=={TRL_VERSION}")
    if chosen.block < STALENESS + 2:
        sys.exit(f"--block {chosen.block}: a block begins with {STALENESS + 1} steps that do not count; take more")
    why = "" if chosen.anyway else busy()
    if why:
        print(f"{why}, so no ratios are printed. Wait, or say --anyway.", file=sys.stderr)
    plan = Plan(chosen.rounds, chosen.block, chosen.threads)
    lines = list(HEAD)
    print("\n".join(lines))
    for case in CASES.values():
        if case.name.startswith(chosen.only):
            with tempfile.TemporaryDirectory() as folder:
                more = table(case, *measure(case, plan, Path(folder)), ratios=not why)
            print("\n".join(more), flush=True)
            lines += more
    if chosen.write and not why:
        before, _, after = PAGE.read_text(encoding="utf-8").partition(MARK)
        text = "\n".join([before + MARK, *lines, MARK + after.partition(MARK)[2]])
        _ = PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

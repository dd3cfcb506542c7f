"""Is the signal fast? Trimtab beside released frameworks, in one interleaved run on one thread.

    python -m bench.signal                        every stage on every workload, about twenty minutes
    python -m bench.signal --only loss --rounds 5 one stage, less exactly; --no-memory leaves out the peaks
    python -m bench.signal --write                and put the table into docs/performance.md

Ratios are of the fastest calls: time / time of the peer in the same run, so less than 1 is faster. They are not printed
on a busy machine (`--anyway` prints them). Peak memory is measured afterwards, above the inputs, in a process each.
slime and prime-rl are timed where TRIMTAB_SLIME and TRIMTAB_PRIME_RL name a checkout.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.counting import Counted, counted
from bench.frameworks import COMPILED, load_all
from bench.memory import peak_over_inputs
from bench.stages import STAGES, entropy_errors
from bench.timing import Times, busy, interleaved

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
MARK = "<!-- bench.signal -->"
HEAD = [
    "| | least ms | median ms | Trimtab / it | peak MiB | operations | kernels | host waits |",
    "|---|--:|--:|--:|--:|--:|--:|--:|",
]


@dataclass(frozen=True)
class Row:
    """What was measured of one implementation in one stage."""

    name: str
    times: Times
    seen: Counted
    peak: float | None

    def line(self, mine: float | None) -> str:
        ratio = f"{mine / self.times.least:.2f}" if mine and not self.name.startswith("Trimtab") else ""
        counts = ["–", "–"] if self.name.endswith(COMPILED) else [str(self.seen.total), str(self.seen.kernels)]
        peak = "" if self.peak is None else f"{self.peak:.1f}"
        cells = [self.name, f"{self.times.least:.2f}", f"{self.times.middle:.2f}", ratio, peak, *counts]
        return "| " + " | ".join([*cells, str(self.seen.asks)]) + " |"


def measure(stage: str, *, rounds: int, with_memory: bool) -> list[Row]:
    calls = load_all(STAGES[stage]())
    times = interleaved(calls, rounds=rounds)
    seen = {name: counted(call) for name, call in calls.items()}
    names = list(calls)
    del calls
    peaks = {name: peak_over_inputs(stage, name) if with_memory else None for name in names}
    return [Row(name, times[name], seen[name], peaks[name]) for name in names]


def table(stage: str, rows: list[Row], *, ratios: bool) -> list[str]:
    mine = next(row.times.least for row in rows if row.name == "Trimtab")
    return [f"| **{stage}** | | | | | | | |", *(row.line(mine if ratios else None) for row in rows)]


def growth() -> str:
    """Our own calls alone, in turn: beside others, what those leave in the caches would count."""
    calls = {name: STAGES[f"full, {name}"]()["Trimtab"]() for name in ("reference", "4 x length", "4 x tokens")}
    times = interleaved(calls, whole_seconds=20.0)
    least = times["reference"].least
    told = ", ".join(f"{name} {one.least / least:.2f}" for name, one in times.items() if name != "reference")
    return f"\nGrowth of our full call over the reference workload, measured apart: {told}."


def accuracy() -> str:
    told = ", ".join(f"{name} {error:.1e}" for name, error in entropy_errors().items())
    return f"\nLargest error of an entropy from logits against float64: {told}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--only", default="", help="stages whose name begins with this")
    _ = parser.add_argument("--rounds", type=int, default=15)
    _ = parser.add_argument("--no-memory", action="store_true", help="do not measure peak memory")
    _ = parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    _ = parser.add_argument("--anyway", action="store_true", help="print ratios although the machine is busy")
    chosen = parser.parse_args()
    if chosen.write and chosen.only:
        parser.error("--write replaces the whole table, so it does not go with --only")
    torch.set_num_threads(1)
    why = "" if chosen.anyway else busy()
    if why:
        print(f"{why}, so no ratios are printed. Wait, or say --anyway.", file=sys.stderr)
    lines = list(HEAD)
    print("\n".join(lines))
    for stage in (name for name in STAGES if name.startswith(chosen.only)):
        more = table(stage, measure(stage, rounds=chosen.rounds, with_memory=not chosen.no_memory), ratios=not why)
        print("\n".join(more), flush=True)
        lines += more
    if "full".startswith(chosen.only):
        lines.append(growth())
        print(lines[-1])
    if "logits forward".startswith(chosen.only):
        lines.append(accuracy())
        print(lines[-1])
    if chosen.write and not why:
        before, _, after = PAGE.read_text(encoding="utf-8").partition(MARK)
        text = "\n".join([before + MARK, *lines, MARK + after.partition(MARK)[2]])
        _ = PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Is the signal fast? Trimtab beside released frameworks, in one interleaved run on one thread.

    python -m bench.signal                        every stage on every workload, about five minutes
    python -m bench.signal --only full --rounds 5 one stage, less exactly
    python -m bench.signal --write                and put the table into docs/performance.md

Ratios are of the fastest calls: time / time of the peer in the same run, so less than 1 is faster. They are not printed
on a busy machine (`--anyway` prints them). A peer may compute less: AReaL has one criterion and no scalar metrics,
OpenRLHF one gate; SkyRL's loss and gradient are ours.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import trimtab
from bench import peers
from bench.timing import Times, busy, counted, interleaved
from bench.workload import WORKLOADS, Workload, full_recipe
from trimtab.signal import Recipe, advantage, decide, normalize, prepare, step, token_loss
from trimtab.signal.layout import Segments
from trimtab.signal.reduce import to_tokens

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
MARK = "<!-- bench.signal -->"


def run_full(work: Workload, recipe: Recipe, current: Tensor) -> None:
    """From packed tokens to the gradient and every metric."""
    prepared, _ = prepare(work.batch(), recipe)
    run_steps(prepared, current)


def run_steps(prepared: Any, current: Tensor) -> None:
    for update in prepared.updates(1):
        losses = [token_loss(micro, current) for micro in decide(update).split(num=1)]
        losses[0].loss.backward()
        _ = step(losses).metrics.numbers()
    current.grad = None


def full(work: Workload) -> dict[str, Callable[[], Any]]:
    recipe, current = full_recipe(), work.flat["logp_current"].clone().requires_grad_()
    prepared, _ = prepare(work.batch(), recipe)
    mine: dict[str, Callable[[], Any]] = {
        "Trimtab": lambda: run_full(work, recipe, current),
        "Trimtab, per optimiser step": lambda: run_steps(prepared, current),
    }
    return mine | peers.full(work, prepared.advantage)


def group(work: Workload) -> dict[str, Callable[[], Any]]:
    votes = torch.ones(len(work.reward), dtype=torch.bool)
    segments, reward, names = work.batch().segments, work.reward.double(), work.group
    groups = int(names.max()) + 1

    def mine() -> Tensor:
        outcome, _ = normalize.mean_std(reward, votes, names, groups, mean="group", std="group")
        return to_tokens(outcome.float(), segments)

    return {"Trimtab": mine, **peers.group(work)}


def gae(work: Workload) -> dict[str, Callable[[], Any]]:
    batch = work.batch()
    ended = torch.ones(len(work.lengths), dtype=torch.bool)
    after, keep = torch.zeros(len(work.lengths)), torch.ones(work.num_tokens, dtype=torch.bool)

    def mine(segments: Segments = batch.segments) -> Tensor:
        credit, _ = advantage.gae(
            work.flat["token_reward"], work.flat["value_old"], after, ended, segments, gamma=0.99, lam=0.95
        )
        return normalize.whiten(credit, keep)

    return {"Trimtab": mine, **peers.gae(work)}


def scores(*, with_backward: bool) -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    logits, ids = 2 * torch.randn(1024, 32_000), torch.randint(32_000, (1024,))
    given = logits.requires_grad_() if with_backward else logits
    calls = {"Trimtab": lambda x: trimtab.logp_and_entropy(x, ids), **peers.scores(logits, ids)}

    def timed(call: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[[], Any]:
        def run() -> None:
            own, entropy = call(given)
            if with_backward:
                (own.sum() + 0.01 * entropy.sum()).backward()
                given.grad = None

        return run

    return {name: timed(call) for name, call in calls.items()}


STAGES: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {
    **{f"full, {name}": (lambda make=make: full(make())) for name, make in WORKLOADS.items()},
    "group, reference": lambda: group(WORKLOADS["reference"]()),
    "gae, no waste": lambda: gae(WORKLOADS["no waste"]()),
    "gae, reference": lambda: gae(WORKLOADS["reference"]()),
    "logits forward": lambda: scores(with_backward=False),
    "logits forward + backward": lambda: scores(with_backward=True),
}


def table(stage: str, times: dict[str, Times], seen: dict[str, tuple[int, int]], *, ratios: bool) -> list[str]:
    mine = times["Trimtab"].least
    lines = [f"| **{stage}** | | | | | |"]
    for name, one in times.items():
        ratio = f"{mine / one.least:.2f}" if ratios and not name.startswith("Trimtab") else ""
        operations, asks = seen[name]
        lines.append(f"| {name} | {one.least:.2f} | {one.middle:.2f} | {ratio} | {operations} | {asks} |")
    return lines


HEAD = ["| | least ms | median ms | Trimtab / it | operations | host waits |", "|---|--:|--:|--:|--:|--:|"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--only", default="", help="stages whose name begins with this")
    _ = parser.add_argument("--rounds", type=int, default=15)
    _ = parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    _ = parser.add_argument("--anyway", action="store_true", help="print ratios although the machine is busy")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    why = "" if chosen.anyway else busy()
    if why:
        print(f"{why}, so no ratios are printed. Wait, or say --anyway.", file=sys.stderr)
    lines = list(HEAD)
    print("\n".join(lines))
    for stage, make in STAGES.items():
        if stage.startswith(chosen.only):
            calls = make()
            seen = {name: (found.total, found.asks) for name, call in calls.items() for found in [counted(call)]}
            more = table(stage, interleaved(calls, rounds=chosen.rounds), seen, ratios=not why)
            print("\n".join(more), flush=True)
            lines += more
    if chosen.write and not why:
        before, _, after = PAGE.read_text(encoding="utf-8").partition(MARK)
        text = "\n".join([before + MARK, *lines, MARK + after.partition(MARK)[2]])
        _ = PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

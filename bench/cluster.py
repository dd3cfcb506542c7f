"""What Ray costs and gives: one and two samplers on the cores of this machine, and where the time goes.

`python -m bench.cluster --rounds 3 --steps 60` runs sort-5 inline, in processes and on a local Ray cluster, each round
in another order, and prints a table. It needs `trimtab[cluster]`.
"""

import argparse
import json
import random
import shutil
import statistics
import tempfile
from pathlib import Path

from trimtab.config.cluster import ClusterSettings
from trimtab.config.train import EngineSettings, TrainSettings
from trimtab.train import train
from trimtab.train.show.progress import Silent

KINDS = {
    "inline": ("inline", 1),
    "processes, 1 sampler": ("processes", 1),
    "ray, 1 sampler": ("ray", 1),
    "processes, 2 samplers": ("processes", 2),
    "ray, 2 samplers": ("ray", 2),
}


def measure(kind: str, steps: int, seed: int) -> dict[str, float]:
    """Milliseconds per step, without the first tenth of them, by what they were spent on; and start-up."""
    runtime, samplers = KINDS[kind]
    folder = Path(tempfile.mkdtemp(prefix="bench-cluster-"))
    settings = TrainSettings.model_validate(
        {
            "seed": seed, "steps": steps, "staleness": 2, "runtime": runtime, "early_stop": "never",
            "eval_every": steps, "checkpoint_every": 0, "run_dir": folder / "run",
            "engine": EngineSettings(processes=samplers), "cluster": ClusterSettings(address="local"),
        }
    )  # fmt: skip
    try:
        summary = train(settings, "start_async", progress=Silent())
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    finally:
        shutil.rmtree(folder)
    steady = [line for line in lines if "train/loss" in line][steps // 10 :]
    spent = {
        name: 1000 * statistics.mean(line[f"time/{name}_seconds"] for line in steady)
        for name in ("sample", "wait", "learn", "publish")
    }
    first, last = steady[0], steady[-1]
    step = 1000 * (last["time/elapsed_seconds"] - first["time/elapsed_seconds"]) / (len(steady) - 1)
    tokens = statistics.mean(line["rollout/tokens"] for line in steady)
    lag = 1000 * statistics.mean(line["publish/lag_seconds"] for line in steady)
    begin = lines[0]["time/elapsed_seconds"]
    return {
        "step": step, **spent, "lag": lag, "tokens": 1000 * tokens / step, "begin": begin,
        "accuracy": summary.held_out_accuracy,
    }  # fmt: skip


def table(found: dict[str, list[dict[str, float]]]) -> str:
    """The mean over rounds, with the standard deviation of a step."""
    lines = [
        "| runtime | ms per step | sampling | waits | learns | publishes | lag | tokens/s | begins | accuracy |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, rounds in found.items():
        mean = {name: statistics.mean(one[name] for one in rounds) for name in rounds[0]}
        spread = statistics.stdev(one["step"] for one in rounds) if len(rounds) > 1 else 0.0
        lines.append(
            f"| {kind} | {mean['step']:.0f} ± {spread:.0f} | {mean['sample']:.0f} | {mean['wait']:.0f} | "
            f"{mean['learn']:.0f} | {mean['publish']:.0f} | {mean['lag']:.0f} | {mean['tokens']:,.0f} | "
            f"{mean['begin']:.0f} s | {mean['accuracy']:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    _ = parser.add_argument("--rounds", type=int, default=3)
    _ = parser.add_argument("--steps", type=int, default=60)
    _ = parser.add_argument("--only", nargs="*", default=list(KINDS), choices=list(KINDS))
    asked = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in asked.only}
    for number in range(asked.rounds):
        order = random.Random(number).sample(asked.only, len(asked.only))
        for kind in order:
            found[kind].append(measure(kind, asked.steps, number))
            print(f"round {number}, {kind}: {found[kind][-1]['step']:.0f} ms per step", flush=True)
    print(table(found))


if __name__ == "__main__":
    main()

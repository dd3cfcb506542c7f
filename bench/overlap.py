"""Is it faster to sample while learning? `processes` against the better of `inline` with one and with two threads.

    python -m bench.overlap            five rounds, interleaved; about six minutes on two cores
    python -m bench.overlap --rounds 2 train.model.hidden_size=128
    python -m bench.overlap train.task.name=gsm8k train.max_new_tokens=32

Every round trains the same steps three times, in rotating order. Only the steps are timed: warm start, evaluations and
start-up are left out. The ratio is better inline / processes, with a 95 % interval over rounds; above 1 it pays.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

from trimtab.train.study.table import half_width

ARMS = {"inline, 1 thread": ("inline", 1), "inline, 2 threads": ("inline", 2), "processes": ("processes", 1)}


def measured(runtime: str, threads: int, seed: int, steps: int, settings: list[str], folder: Path) -> dict[str, Any]:
    """One run in a separate process: its seconds per step, and how they were spent."""
    command = [
        sys.executable, "-m", "trimtab.cli", "train", f"train.runtime={runtime}", f"train.threads={threads}",
        f"train.steps={steps}", "train.staleness=8", "train.engine.format=int4", "train.warm_start_steps=60",
        "train.early_stop=never", f"train.eval_every={steps}", "train.checkpoint_every=0", *settings,
        "--seed", str(seed), "--run-dir", str(folder), "--quiet",
    ]  # fmt: skip
    _ = subprocess.run(command, check=True, capture_output=True)
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:-1]
    share = {name: mean(float(line[f"time/{name}_seconds"]) for line in lines) for name in ("sample", "learn", "wait")}
    whole = lines[-1]["time/elapsed_seconds"] - lines[0]["time/elapsed_seconds"]
    return {"seconds": whole / (len(lines) - 1), "accuracy": summary["held_out_accuracy"], **share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--rounds", type=int, default=5)
    _ = parser.add_argument("--steps", type=int, default=60)
    _ = parser.add_argument("settings", nargs="*", help="settings of all runs, as `trimtab train` takes them")
    asked = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ARMS}
    for number in range(asked.rounds):
        names = list(ARMS)
        for name in names[number % 3 :] + names[: number % 3]:
            with tempfile.TemporaryDirectory() as folder:
                runtime, threads = ARMS[name]
                result = measured(runtime, threads, number, asked.steps, asked.settings, Path(folder) / "run")
            found[name].append(result)
            print(f"round {number}  {name:<18} {1000 * result['seconds']:6.1f} ms per step  {result}", flush=True)
    for name, results in found.items():
        parts = {key: 1000 * mean(result[key] for result in results) for key in ("seconds", "sample", "learn", "wait")}
        accuracy = mean(result["accuracy"] for result in results)
        print(
            f"{name:<18} {parts['seconds']:6.1f} ms per step: sample {parts['sample']:.1f}, "
            f"learn {parts['learn']:.1f}, wait {parts['wait']:.1f}; accuracy {accuracy:.3f}"
        )
    ratios = [
        min(one["seconds"], two["seconds"]) / apart["seconds"] for one, two, apart in zip(*found.values(), strict=True)
    ]
    width = half_width(ratios)
    print(f"better inline / processes: {mean(ratios):.3f}" + (f" ± {width:.3f} (95 %)" if width is not None else ""))


if __name__ == "__main__":
    main()

"""Whether this checkout trains bit for bit like another one: `python scripts/same_records.py COMMIT`.

Three small runs (start_async on stale int4 rollouts, ppo with critic and reference, dapo with dynamic sampling and two
turns) are made by both, one process after the other. Every line of their records without the clock, the final
parameters and the answers are compared, and this checkout replays what the other one dumped. Exit code 1 if anything
differs. It takes about two minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMON = """
[train]
runtime = "inline"
steps = 6
prompts_per_step = 6
samples_per_prompt = 4
eval_every = 2
eval_prompts = 8
checkpoint_every = 3
dump_batches = true
max_tokens_per_micro_batch = 48
threads = 1
early_stop = "never"
"""
RUNS = {
    "start_async": """recipe = "start_async"
%s
warm_start_steps = 24
staleness = 2
max_new_tokens = 6
[train.task]
name = "sort"
[train.engine]
format = "int4"
""",
    "ppo": """recipe = "ppo"
[signal.kl]
coef = 0.01
%s
warm_start_steps = 24
staleness = 1
max_new_tokens = 6
updates_per_batch = 2
critic_lr = 1e-2
[train.task]
name = "sort"
""",
    "dapo": """recipe = "dapo"
[signal]
reward = [{ formula = "reward.soft_overlong", max_length = 12, buffer = 4 }]
%s
dynamic_sampling = 2
max_new_tokens = 12
warm_start_steps = 120
[train.task]
name = "calculator"
size = 1
max_turns = 2
""",
}
LINES = ("metrics.jsonl", "diagnostics.jsonl", "transcripts.jsonl", "samples.jsonl")
CLOCKED = ("time/", "publish/lag_seconds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("commit", help="the other checkout: a commit of this repository")
    _ = parser.add_argument("--only", choices=list(RUNS))
    asked = parser.parse_args()
    chosen = [asked.only] if asked.only else list(RUNS)
    with tempfile.TemporaryDirectory() as held:
        place = Path(held)
        _ = subprocess.run(["git", "worktree", "add", "--detach", place / "other", asked.commit], cwd=ROOT, check=True)
        try:
            found = [line for name in chosen for line in compare(name, place)]
        finally:
            _ = subprocess.run(["git", "worktree", "remove", "--force", place / "other"], cwd=ROOT, check=True)
    print("\n".join(found) if found else f"the same bits as {asked.commit} in {len(chosen)} runs")
    return int(bool(found))


def compare(name: str, place: Path) -> Iterator[str]:
    """Make one run with both checkouts. What differs."""
    ours, theirs = (make(name, source, place / f"{name}_{who}") for who, source in
                    (("ours", ROOT), ("theirs", place / "other")))  # fmt: skip
    for file in LINES:
        here, there = lines(ours / file), lines(theirs / file)
        print(f"{name}: {file}: {len(here)} lines", flush=True)
        if here != there:
            yield f"{name}: {file} differs{first_difference(here, there)}"
    for file in ("model/model.safetensors", "model/critic.safetensors"):
        if (ours / file).read_bytes() != (theirs / file).read_bytes():
            yield f"{name}: {file} differs"
    for step in range(len(lines(theirs / "metrics.jsonl")) - 1):  # the last line is the final evaluation
        done = run(ROOT, "replay", str(theirs), "--step", str(step))
        if done.returncode:
            yield f"{name}: replay of step {step} of the other checkout: {(done.stdout + done.stderr)[-300:]}"


def make(name: str, source: Path, folder: Path) -> Path:
    folder.mkdir()
    _ = (folder / "run.toml").write_text(RUNS[name] % COMMON)
    done = run(source, "train", str(folder / "run.toml"), f"train.run_dir={folder / 'run'}", "--quiet")
    if done.returncode:
        sys.exit(f"{name} with {source} ended with {done.returncode}:\n{done.stderr[-3000:]}{done.stdout[-2000:]}")
    return folder / "run"


def run(source: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(source / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "trimtab.cli", *words], env=env, capture_output=True, text=True, check=False, cwd=source
    )


def lines(path: Path) -> list[dict[str, Any]]:
    """A record without what depends on the clock. As text, in which nan equals nan."""
    read = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: json.dumps(value) for key, value in line.items() if not key.startswith(CLOCKED)} for line in read]


def first_difference(here: list[dict[str, Any]], there: list[dict[str, Any]]) -> str:
    if len(here) != len(there):
        return f": {len(here)} lines here, {len(there)} there"
    for number, (one, other) in enumerate(zip(here, there, strict=True)):
        for key in {*one, *other}:
            if one.get(key) != other.get(key):
                return f" in line {number}: {key} is {one.get(key)} here and {other.get(key)} there"
    return ""


if __name__ == "__main__":
    sys.exit(main())

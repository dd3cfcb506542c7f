"""A rank that is killed, stopped or asked to stop: the others end with a sentence, and the run can be resumed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.train.conftest import lines

RUN = """
recipe = "ppo"
[train]
runtime = "inline"
steps = 14
prompts_per_step = 4
samples_per_prompt = 4
eval_every = 4
eval_prompts = 4
checkpoint_every = 2
threads = 1
early_stop = "never"
warm_start_steps = 24
warm_start_lr = 1e-2
rank_timeout = 6
max_new_tokens = 4
[train.task]
name = "reverse"
size = 2
[train.model]
hidden_size = 32
num_layers = 1
num_heads = 2
mlp_size = 64
"""
SENTENCES = ("lost another of the 2 ranks", "trimtab train --resume", "rank 0 ended with an error")


def started(folder: Path, *words: str) -> "subprocess.Popen[str]":
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, "-m", "trimtab", "train", *words, "--ranks", "2"], cwd=folder, text=True,
        env={**env, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def ranks_of(launcher: int) -> dict[int, int]:
    """The ranks of a launcher: rank to process."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and os.getpgid(int(entry.name)) and _parent(entry) == launcher:
            environment = dict(
                part.split("=", 1) for part in (entry / "environ").read_text().split("\0") if "=" in part
            )
            if "RANK" in environment:
                found[int(environment["RANK"])] = int(entry.name)
    return found


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return -1


def wait_for_step(folder: Path, step: int, child: "subprocess.Popen[str]") -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and child.poll() is None:
        path = folder / "run" / "metrics.jsonl"
        if path.is_file() and path.read_text().count("\n") > step:
            return
        time.sleep(0.02)
    pytest.fail(f"no step {step}: {child.communicate()[0][-2000:] if child.poll() is not None else 'it hangs'}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_the_others_end_with_a_sentence_and_the_run_goes_on(seed: int, tmp_path: Path) -> None:
    """About 40 seconds each."""
    stream = random.Random(seed)
    number = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)[seed % 3]
    victim = (seed // 3) % 2
    (tmp_path / "run.toml").write_text(RUN)
    child = started(tmp_path, "run.toml", "--run-dir", "run")
    wait_for_step(tmp_path, stream.randrange(1, 8), child)
    time.sleep(stream.uniform(0.0, 0.4))
    ranks = ranks_of(child.pid)
    assert sorted(ranks) == [0, 1]
    os.kill(ranks[victim], number)
    said, _ = child.communicate(timeout=90)  # 6 s for each other, 30 s of the launcher before it kills a stopped rank
    assert child.returncode != 0, said
    assert any(sentence in said for sentence in SENTENCES), said
    assert "Traceback" not in said, said
    assert ranks_of(child.pid) == {}
    words = [sys.executable, "-m", "trimtab", "train", "--resume", "run", *(["--ranks", "2"] if seed % 2 else [])]
    done = subprocess.run(words, cwd=tmp_path, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert [line["step"] for line in lines(tmp_path / "run")] == list(range(15))

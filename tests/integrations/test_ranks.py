"""Two ranks with TRL and accelerate over gloo: what they saw, merged, is what one process sees of the same batches."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.watch.test_watch import same_metrics

from trimtab.watch import Watch
from trimtab.watch.folder import read_ranks

pytestmark = pytest.mark.integrations


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL: make test-integrations")
def test_two_ranks_merge_to_one_process(tmp_path: Path):
    script = Path(__file__).with_name("two_ranks.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29631", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    two = tmp_path / "watch"
    merged = read_ranks(two)
    assert list(merged) == [0, 1, 2, 3]
    alone = read_ranks(replayed(two, tmp_path / "one"))
    for step, metrics in merged.items():
        same_metrics(metrics, alone[step])
    lines = [json.loads(line) for line in (two / "metrics.jsonl").read_text().splitlines()]
    assert [line["watch/sequences"] for line in lines] == [32.0] * 4
    assert not (two / "findings.jsonl").exists()


def replayed(dumps: Path, folder: Path) -> Path:
    """The dumped micro-batches of both ranks through one watch."""
    from safetensors.torch import load_file

    from trimtab.watch.hold import Held
    from trimtab.watch.step import Batch

    watch = Watch(folder, ranks=2)
    batches: dict[tuple[int, int], Batch] = {}
    for step in range(4):
        for path in sorted((dumps / "watched").glob(f"step_{step:06d}_*.safetensors")):
            about, tensors = json.loads(path.with_suffix(".json").read_text()), load_file(path)
            of_batch = {n.removeprefix("batch."): v for n, v in tensors.items() if n.startswith("batch.")}
            key = (about["rank"], step // 2)  # two iterations on each batch
            batch = batches.setdefault(key, Batch(Held(of_batch, {"normalize": about["normalize"]})))
            own = {n: v for n, v in tensors.items() if not n.startswith("batch.")}
            watch._open.parts.append((Held(own, about["facts"]), batch))
        watch.step()
    assert watch.failures == []
    return folder

"""What the watch costs per 300k tokens: `python -m bench.watch [--sequences 256] [--width 2048]`, on one thread.

Processor time, because others may use the machine too.

"take" is what runs beside the model (copies; on a GPU they are started and not waited for), "settle" is the arithmetic
on the copies, one step late. "waits" counts what would make the host wait for a device during "take".
"""

import argparse
import tempfile
import time
from statistics import median
from typing import Any

import torch

from bench.counting import counted
from trimtab.watch import Watch


def workload(sequences: int, width: int) -> dict[str, Any]:
    torch.manual_seed(0)
    old = -0.01 - torch.rand(sequences, width)
    return {
        "mask": torch.arange(width) < torch.randint(width // 8, width + 1, (sequences, 1)),
        "row": torch.arange(sequences),
        "ids": torch.randint(50_000, (sequences, width)),
        "logp_old": old,
        "logp_rollout": (old + 0.01 * torch.randn(sequences, width)).clamp(max=0),
        "entropy": torch.rand(sequences, width),
        "advantage": torch.randn(sequences),
        "denominator": torch.full((sequences,), 1e5),
    }


def main() -> None:
    reader = argparse.ArgumentParser()
    reader.add_argument("--sequences", type=int, default=256)
    reader.add_argument("--width", type=int, default=2048)
    reader.add_argument("--times", type=int, default=9)
    asked = reader.parse_args()
    torch.set_num_threads(1)
    fields = workload(asked.sequences, asked.width)
    tokens = int(fields["mask"].sum())
    watch = Watch(tempfile.mkdtemp(), every=1)
    took, settled = list[float](), list[float]()
    for _ in range(asked.times):
        current = (fields["logp_old"] + 0.001).requires_grad_()
        begin = time.process_time()
        watch.micro_batch(logp_current=current, **fields)
        took.append(time.process_time() - begin)
        (current * fields["advantage"][:, None] * fields["mask"]).sum().backward()
        begin = time.process_time()
        watch.step()
        settled.append(time.process_time() - begin)
    per = 3e5 / tokens * 1e3
    waits = counted(lambda: watch.micro_batch(logp_current=fields["logp_old"], **fields)).asks
    print(f"{tokens:,} tokens; processor time per 300k tokens, median and least of {asked.times}:")
    for name, times in (("take", took), ("settle", settled)):
        print(f"  {name:7}{median(times) * per:6.1f} ms {min(times) * per:6.1f} ms")
    print(f"host waits while taking: {waits}; failures: {watch.failures}")


if __name__ == "__main__":
    main()

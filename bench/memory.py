"""The most memory that one call holds above its inputs: the only place that reads a process's high-water mark.

    python -m bench.memory "full, reference" Trimtab

Each implementation has a process of its own, which calls once to load and to compile, hands freed memory back to the
system, sets the mark to what it holds now, and calls again. Gradients are dropped by every call. Linux only.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import torch

RETURNED = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
"""glibc hands every freed block of 64 KiB or more back at once, so that the mark follows what is held."""


def peak_over_inputs(stage: str, name: str) -> float | None:
    """MiB above the inputs, measured in a new process; None where the system has no such mark."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    command = [sys.executable, "-m", "bench.memory", stage, name]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **RETURNED})
    return float(told.stdout.split()[-1])


def measured(stage: str, name: str) -> float:
    from bench.stages import STAGES

    torch.set_num_threads(1)
    call = STAGES[stage]()[name]()
    _ = call()
    _ = ctypes.CDLL(None).malloc_trim(0)
    before = reset()
    _ = call()
    return _status("VmHWM") - before


def reset() -> float:
    """Set the mark to what the process holds now, and return that in MiB."""
    _ = Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _status(name: str) -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(name))


if __name__ == "__main__":
    print(measured(sys.argv[1], sys.argv[2]))

"""Interleaved timing: the only place that reads the clock, and that says whether the machine is quiet."""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

ASKS = ("aten._local_scalar_dense", "aten.nonzero", "aten.is_nonzero", "aten.masked_select", "aten.equal")
"""Operations that make the host wait for the device. `tolist` is not among them: it is counted by hand."""


@dataclass(frozen=True)
class Times:
    """Milliseconds of repeated calls."""

    least: float
    middle: float


def interleaved(
    calls: Mapping[str, Callable[[], Any]], *, rounds: int = 15, warm: int = 2, least_seconds: float = 0.02
) -> dict[str, Times]:
    """Time every call in turn, round after round: what slows the machine down slows all of them."""
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        for _ in range(warm):
            _ = call()
        started = time.perf_counter()
        _ = call()
        repeats[name] = max(1, int(least_seconds / max(time.perf_counter() - started, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(repeats[name]):
                _ = call()
            found[name].append(1000 * (time.perf_counter() - started) / repeats[name])
    return {name: Times(min(times), median(times)) for name, times in found.items()}


class Operations(TorchDispatchMode):
    """Counts what reaches torch, and how often the host waits for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def asks(self) -> int:
        return sum(self.counts[name] for name in ASKS)


def counted(call: Callable[[], Any]) -> Operations:
    with Operations() as seen:
        _ = call()
    return seen


def busy() -> str:
    """Why ratios would not be trusted now; empty on a quiet machine."""
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    if load > 0.75 * cores:
        return f"the machine is busy (load {load:.1f} on {cores} cores)"
    times = []
    for _ in range(9):
        started = time.perf_counter()
        _ = sum(range(200_000))
        times.append(time.perf_counter() - started)
    if median(times) > 1.3 * min(times):
        return f"the same work takes {median(times) / min(times):.1f} times as long now and then"
    return ""


def peak_mib() -> float:
    """The most memory this process has held so far (Linux)."""
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024

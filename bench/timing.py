"""Interleaved timing: the only place that reads the clock, and that says whether the machine is quiet."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch


@dataclass(frozen=True)
class Times:
    """Milliseconds of repeated calls."""

    least: float
    middle: float


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 15,
    warm: int = 2,
    least_seconds: float = 0.02,
    whole_seconds: float = 10.0,
) -> dict[str, Times]:
    """Time every call in turn, round after round: what slows the machine down slows all of them.

    There are at least `rounds`, and so many that all take `whole_seconds`: fifteen rounds of short calls are over in
    two seconds, in which a shared machine may have no quiet moment.
    """
    settle_allocator()
    repeats: dict[str, int] = {}
    for name, call in calls.items():
        for _ in range(warm):
            _ = call()
        started = time.perf_counter()
        _ = call()
        repeats[name] = max(1, int(least_seconds / max(time.perf_counter() - started, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    began, done = time.perf_counter(), 0
    while done < rounds or time.perf_counter() - began < whole_seconds:
        done += 1
        for name, call in calls.items():
            _ = call()  # not timed: what others left in the caches is no part of this one
            started = time.perf_counter()
            for _ in range(repeats[name]):
                _ = call()
            found[name].append(1000 * (time.perf_counter() - started) / repeats[name])
    return {name: Times(min(times), median(times)) for name, times in found.items()}


def settle_allocator() -> None:
    """Let glibc keep freed memory up to 32 MiB, as it does in any process that has held a model.

    In a process that never held larger tensors, each of a few megabytes is handed back and faulted in again.
    """
    _ = torch.zeros(31 * 2**18)


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

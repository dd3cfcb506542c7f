"""The signal on a GPU: run it where you have one, and send the file back.

    python -m bench.gpu --out result.json        every case, a few minutes
    python -m bench.gpu --device cpu --quick     tiny cases without a GPU: does the script run?
    python -m bench.gpu --count                  kernels and host waits per call, counted without a GPU

The file holds times (CUDA events), peak memory, kernels and host waits of each case, and how far the results on the
device, in float32, are from the same calls on the CPU in float64. Peers are not run. Nothing is sent anywhere.
"""

import argparse
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import trimtab
from bench.counting import counted
from bench.gpu_cases import CASES, QUICK, Case

NO_GPU = (
    "bench.gpu: this torch ({0}) sees no GPU, so there is nothing to time. Run it where torch.cuda.is_available() is "
    "true, or try the script itself with --device cpu --quick."
)
Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Measured:
    """One case on the device. None: not measurable there."""

    stage: str
    size: str
    dtype: str
    least_ms: float
    median_ms: float
    peak_mib: float | None
    kernels_at_least: int
    """Operations that do work, counted; one may launch several kernels."""
    kernels_launched: int | None
    host_waits_counted: int
    host_waits_seen: int | None


def measure(case: Case, device: str, *, rounds: int) -> Measured:
    call = case.build(device, case.dtype)
    for _ in range(3):
        _ = call()
    times = _times(call, device, rounds)
    seen = counted(call)
    on_gpu = device != "cpu"
    return Measured(
        case.stage, case.size, str(case.dtype).removeprefix("torch."), min(times), median(times),
        _peak(call) if on_gpu else None, seen.kernels, _launched(call) if on_gpu else None, seen.asks,
        _waited(call) if on_gpu else None,
    )  # fmt: skip


def _times(call: Call, device: str, rounds: int) -> list[float]:
    """Milliseconds of each call."""
    found: list[float] = []
    for _ in range(rounds):
        if device == "cpu":
            started = time.perf_counter()
            _ = call()
            found.append(1000 * (time.perf_counter() - started))
            continue
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        began.record()
        _ = call()
        ended.record()
        torch.cuda.synchronize()
        found.append(began.elapsed_time(ended))
    return found


def _peak(call: Call) -> float:
    """MiB that torch held above the inputs."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _ = call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def _launched(call: Call) -> int:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        _ = call()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    events = [one for one in seen.events() or [] if one.device_type == cuda]
    return sum(not one.name.startswith(("Memcpy", "Memset")) for one in events)


def _waited(call: Call) -> int:
    """How often torch itself says that it waited for the device."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            _ = call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in said)


def check(case: Case, device: str) -> dict[str, Any]:
    """The case on the device in float32 beside the same case on the CPU in float64."""
    found, exact = case.build(device, torch.float32)(), case.build("cpu", torch.float64)()
    errors = [
        float((one.detach().cpu().double() - truth.detach()).abs().max() / truth.detach().abs().max().clamp(min=1e-12))
        for one, truth in zip(found, exact, strict=True)
    ]
    return {
        "stage": case.stage, "size": case.size, "relative_error": max(errors), "tolerance": case.tolerance,
        "ok": max(errors) <= case.tolerance,
    }  # fmt: skip


def machine(device: str) -> dict[str, Any]:
    on_gpu = device != "cpu"
    return {
        "device": device,
        "device_name": torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "python": platform.python_version(),
        "trimtab": trimtab.__version__,
    }


def run(device: str, *, quick: bool, rounds: int) -> dict[str, Any]:
    cases = QUICK if quick else CASES
    first = {case.stage: case for case in reversed(cases)}
    checks = [check(case, device) for case in first.values()]
    results: list[dict[str, Any]] = []
    for case in cases:
        try:
            results.append(asdict(measure(case, device, rounds=rounds)))
        except torch.OutOfMemoryError:
            results.append({"stage": case.stage, "size": case.size, "out_of_memory": True})
            torch.cuda.empty_cache()
        print(results[-1], file=sys.stderr, flush=True)
    return {**machine(device), "checks": checks, "results": results}


def count() -> str:
    """A table of what each call asks of a device; logits and hidden states as they are cut off the CPU."""
    lines = ["| | kernels, at least | host waits |", "|---|--:|--:|"]
    for case in CASES:
        if case.is_counted:
            call = case.build(case.counted_on, case.dtype)
            _ = call()  # what is made once per batch is not counted
            seen = counted(call)
            named = ", ".join(f"{name} {number}" for name, number in seen.waits.items())
            lines.append(
                f"| {case.stage}, {case.size} | {seen.kernels} | {seen.asks}{f' ({named})' if named else ''} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--out", type=Path, help="write the result here instead of printing it")
    _ = parser.add_argument("--device", default="cuda")
    _ = parser.add_argument("--quick", action="store_true", help="tiny cases only")
    _ = parser.add_argument("--rounds", type=int, default=20)
    _ = parser.add_argument("--count", action="store_true", help="count kernels and host waits; needs no GPU")
    chosen = parser.parse_args()
    if chosen.count:
        print(count())
        return
    if chosen.device != "cpu" and not torch.cuda.is_available():
        print(NO_GPU.format(torch.__version__), file=sys.stderr)
        raise SystemExit(2)
    result = run(chosen.device, quick=chosen.quick, rounds=chosen.rounds)
    text = json.dumps(result, indent=1)
    _ = chosen.out.write_text(text, encoding="utf-8") if chosen.out else print(text)
    wrong = [one for one in result["checks"] if not one["ok"]]
    if wrong:
        print(f"bench.gpu: results differ from the CPU's: {wrong}. Please send the file all the same.", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()

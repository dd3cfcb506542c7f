"""The only place that asks Ray for a process of one of our roles, and that ends one that does not listen."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def start_actor(
    ray: Any,
    role: type,
    resources: Mapping[str, float],
    *,
    given: Sequence[Any] = (),
    restarts: int = 0,
    groups: Mapping[str, int] | None = None,
    methods: Mapping[str, str] | None = None,
) -> Any:
    """An actor of a role; it waits until a node has these resources. `methods` run in the thread of their group.

    With restarts, calls that were lost with it are made again.
    """
    for name, group in (methods or {}).items():
        setattr(role, name, ray.method(concurrency_group=group)(getattr(role, name)))
    own = {name: count for name, count in resources.items() if name not in ("CPU", "GPU", "memory")}
    options: dict[str, Any] = {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "resources": own or None,
        "max_restarts": restarts,
        "max_task_retries": -1 if restarts else 0,
    }
    if groups:
        options["concurrency_groups"] = dict(groups)
    if "memory" in resources:
        options["memory"] = resources["memory"]
    return ray.remote(**options)(role).remote(*given)


def end_process(ray: Any, node: str, pid: int) -> None:
    """Kill an actor's process on its node. Ray asks a process to end itself, and one that hangs does not."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=affinity)(kill_worker).remote(pid)


def kill_worker(pid: int) -> None:
    """On its node: kill it if it is still one of Ray's."""
    with suppress(OSError):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
            os.kill(pid, signal.SIGKILL)

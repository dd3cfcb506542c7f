"""The only place that checks units of a target on other nodes: a task for each portion, and events that come back.

The code of a target is imported there, in guarded child processes as here. A file or a folder of it is sent along; what
is named as a module must be installed on every node.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from trimtab.config.cluster import ClusterSettings
from trimtab.errors import AdapterError
from trimtab.rollout.wire import pack, unpack
from trimtab.sentinel.examination.job import Job
from trimtab.sentinel.examination.limits import Limits
from trimtab.sentinel.examination.process import Event
from trimtab.sentinel.examination.supervise import Examination, Spread
from trimtab.train.cluster.parcel import folder_bytes, write_parcel
from trimtab.train.cluster.role import Scratch
from trimtab.train.cluster.session import open_session

RESTARTS = 3
PORTIONS = 2
"""Tasks for each CPU of the cluster: a slow portion then holds up less."""


def examine_units(message: bytes) -> bytes:
    """A task: check some units of a job, and return what was told."""
    head, files = unpack(message)
    job = Job.from_data(head["job"])
    scratch = Scratch()
    try:
        if files:
            write_parcel(files, scratch.folder)
            here = str(scratch.folder / "code")
            job = replace(job, root=here) if job.root is not None else replace(job, folder=here)
        with Examination(job, Limits(seconds=float(head["seconds"]), processes=1)) as examination:
            _ = examination.chosen()
            examination.run([int(unit) for unit in head["units"]])
        return json.dumps({"heard": examination.heard}).encode()
    except AdapterError as error:
        return json.dumps({"refused": str(error)}).encode()
    finally:
        scratch.close()


def spread_units(address: str) -> Spread:
    """Checks units on a cluster instead of in children of this process."""

    def spread(job: Job, limits: Limits, units: list[int]) -> Iterator[list[Event]]:
        refuse(job)
        with open_session(ClusterSettings(address=address), {"CPU": float(limits.processes)}) as session:
            ray = session.ray
            task = ray.remote(num_cpus=1, max_retries=RESTARTS)(examine_units)
            cores = int(ray.cluster_resources().get("CPU", 1))
            count = min(len(units), PORTIONS * max(1, cores))
            waiting = [task.remote(ray.put(_message(job, limits, units[first::count]))) for first in range(count)]
            while waiting:
                done, waiting = ray.wait(waiting)
                yield _heard(ray, done[0])

    return spread


def refuse(job: Job) -> None:
    """Refuse what cannot travel, before anything is started."""
    if job.findings is not None:
        raise AdapterError(
            "check: --findings writes into one folder, so it cannot run on several nodes. Leave --cluster out."
        )
    if job.commit is not None:
        raise AdapterError(
            f"check: --cluster sends files, and {job.root} is read at commit {job.commit[:9]} from git. Check that "
            "commit out (git worktree add DIR COMMIT) and give --path DIR."
        )


def _message(job: Job, limits: Limits, units: list[int]) -> bytes:
    files: dict[str, Tensor] = {}
    if job.root is not None:
        files = folder_bytes(Path(job.root), "code", "*.py")
    elif job.folder is not None and job.target.endswith(".py"):
        file = Path(job.folder, job.target)
        files = folder_bytes(file.parent, "code", "*.py")
        job = replace(job, target=file.name)
    return pack({"job": job.as_data(), "units": units, "seconds": limits.seconds}, files)


def _heard(ray: Any, done: Any) -> list[Event]:
    try:
        told: dict[str, Any] = json.loads(ray.get(done))
    except ray.exceptions.RayError as error:
        raise AdapterError(f"check: a node was lost, and {RESTARTS} tries did not help ({error}).") from error
    if "refused" in told:
        raise AdapterError(str(told["refused"]))
    return told["heard"]

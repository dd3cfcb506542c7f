"""The only place that opens and closes a Ray session: one that is there, or one of this run's own on loopback.

Of its own session nothing is left: every process of it carries a mark, and a small process ends them all when this one
is gone, however it went. A session of others is connected to and left again; nothing of it is stopped.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from trimtab import marks
from trimtab.errors import ConfigError, EngineError, MissingExtra

if TYPE_CHECKING:
    from trimtab.config.cluster import ClusterSettings

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's own setting: 0 makes every process of a session listen on loopback only. It is read when ray is imported."""
NO_ACCIDENT = "RAY_ENABLE_AUTO_CONNECT"
"""Ray's own setting: 0 keeps a call that comes after a session from opening another one."""
RUNNING = "/tmp/ray/ray_current_cluster"
"""Where `ray start` leaves the address of this machine's cluster."""


@dataclass(frozen=True)
class Session:
    """A cluster that this process is connected to."""

    address: str
    """Where it is; `local` for one of this run's own."""
    ray: Any

    def nodes(self) -> list[dict[str, Any]]:
        """Nodes that are alive, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]


def import_ray() -> Any:
    """The package, or a sentence that says what to install."""
    if find_spec("ray") is None:
        raise MissingExtra(
            'train: runtime "ray" needs the package ray, and it is not installed. Run pip install "trimtab[cluster]", '
            "on every node."
        )
    _ = os.environ.setdefault(NO_ACCIDENT, "0")
    return importlib.import_module("ray")


def find_address(settings: "ClusterSettings") -> str:
    """Which cluster is meant: HOST:PORT, or `local` where there is none. Nothing is connected to."""
    if settings.address != "auto":
        return settings.address
    named = os.environ.get("RAY_ADDRESS", "")
    if named:
        return named
    with suppress(OSError), open(RUNNING, encoding="utf-8") as file:
        return file.read().strip() or "local"
    return "local"


def look_at_nodes(settings: "ClusterSettings") -> list[dict[str, Any]]:
    """Name and resources of every node of a cluster that is there."""
    with open_session(settings, {}) as session:
        return [
            {"name": f"{node['NodeID'][:8]} ({node['NodeManagerHostname']})", "resources": node["Resources"]}
            for node in session.nodes()
        ]


@contextmanager
def open_session(settings: "ClusterSettings", wanted: Mapping[str, float]) -> Generator[Session]:
    """Connect, or start a cluster with the resources that are `wanted`; closed afterwards.

    A process that is connected already stays so.
    """
    address = find_address(settings)
    if address == "local" or address.startswith(("127.", "localhost:")):
        os.environ.setdefault(LOOPBACK, "0")
    ray = import_ray()
    if ray.is_initialized():
        yield Session(ray.get_runtime_context().gcs_address, ray)
    elif address == "local":
        with _own_session(ray, settings, wanted):
            yield Session("local", ray)
    else:
        with _joined_session(ray, address):
            yield Session(address, ray)


@contextmanager
def _joined_session(ray: Any, address: str) -> Generator[None]:
    try:
        ray.init(address=address, namespace=_name(), log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = str(error).strip().splitlines()
        raise ConfigError(
            f"train.cluster: no Ray cluster answers at {address} ({said[0][:200] if said else type(error).__name__}), "
            "so there is nowhere to place the samplers. Look at `ray status` there; the token of a cluster is in "
            "RAY_AUTH_TOKEN or ~/.ray/auth_token, the same on every node; --cluster local starts one on this machine."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _own_session(ray: Any, settings: "ClusterSettings", wanted: Mapping[str, float]) -> Generator[None]:
    # Short, because Unix sockets lie in it: their names have 107 characters at most.
    folder = tempfile.mkdtemp(prefix="trimtab-ray-", dir="/tmp" if os.path.isdir("/tmp") else None)
    mark = uuid.uuid4().hex
    warden = _start_warden(mark, folder)
    before, os.environ[marks.CLUSTER] = os.environ.get(marks.CLUSTER), mark
    extra = {name: count for name, count in wanted.items() if name not in ("CPU", "GPU", "memory")}
    try:
        ray.init(
            address="local",
            num_cpus=max(1, int(-(-wanted.get("CPU", 0) // 1))),
            num_gpus=int(-(-wanted.get("GPU", 0) // 1)),
            resources=extra or None,
            object_store_memory=settings.object_store_mb * 1_000_000,
            include_dashboard=False,
            namespace=_name(),
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )
        yield
    except ray.exceptions.RayError as error:
        raise EngineError(f"train.cluster: Ray failed ({str(error).splitlines()[0][:300]}).") from error
    finally:
        with suppress(Exception):
            ray.shutdown()
        if before is None:
            _ = os.environ.pop(marks.CLUSTER, None)
        else:
            os.environ[marks.CLUSTER] = before
        with suppress(BrokenPipeError):
            _ = warden.communicate()  # it ends what is left, and removes the folder
        shutil.rmtree(folder, ignore_errors=True)


def _start_warden(mark: str, folder: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(marks.__file__), marks.CLUSTER, mark, folder],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _name() -> str:
    """A namespace of this run's own: its actors cannot be mixed up with others'."""
    return f"trimtab-{uuid.uuid4().hex[:12]}"

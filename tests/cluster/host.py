"""The other machines: a Ray cluster of several nodes, in a process that cannot see the driver's files.

Run as `python -m tests.cluster.host HIDDEN`, where HIDDEN is the driver's own folder: an empty file system lies over it
here, so that nothing on a node can read what was not sent. Orders come as lines of JSON, and so do answers.
"""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any


def serve(folder: str) -> None:
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback only
    import ray._common.utils
    import ray._private.utils
    from ray.cluster_utils import Cluster

    # The address of this machine's cluster is not ours to write: another one may be running.
    ray._private.utils.write_ray_address = lambda *_, **__: None
    ray._common.utils.reset_ray_address = lambda *_, **__: None
    common: dict[str, Any] = {"object_store_memory": 100_000_000, "include_dashboard": False}
    head = {**common, "num_cpus": 1, "resources": {"head": 4}, "temp_dir": folder}
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "start":
            cluster = Cluster(initialize_head=True, head_node_args=head | order.get("head", {}))
            nodes: dict[str, Any] = {}
            answer: Any = cluster.address
        elif order["do"] == "add":
            resources = {name: count for name, count in order["resources"].items() if name != "CPU"}
            nodes[order["name"]] = cluster.add_node(
                **common, num_cpus=order["resources"].get("CPU", 0), resources=resources, temp_dir=folder
            )
            answer = nodes[order["name"]].unique_id if hasattr(nodes[order["name"]], "unique_id") else ""
        elif order["do"] == "remove":
            cluster.remove_node(nodes.pop(order["name"]), allow_graceful=False)
            answer = ""
        elif order["do"] == "raylet":
            answer = nodes[order["name"]].all_processes["raylet"][0].process.pid
        else:
            cluster.shutdown()
            return
        print(json.dumps(answer), file=answers, flush=True)


def hidden(folder: str) -> list[str]:
    """The words before a command that make a folder empty for it. Where that is not allowed, nothing is hidden."""
    script = 'mount -t tmpfs tmpfs "$0" && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", script, folder]
    allowed = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    return words if allowed else []


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    _ = os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="tt-", dir="/tmp", ignore_cleanup_errors=True) as place:
        serve(place)

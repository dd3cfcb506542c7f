"""Another framework, called from a test: the only place that talks to the child process."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHILD = Path(__file__).with_name("child.py")


class PeerError(Exception):
    """The peer raised; the message is its traceback."""


class Peer:
    """One framework in a child process of its own, for as long as the test session lasts.

    peer.call("package.module:function", mask=…, config=peer.new("package.config:Config", eps=0.2)) gives its result;
    `gradient=("log_probs",)` gives (result, {"log_probs": …}), the gradient of the (first) result's sum.
    """

    def __init__(
        self, folder: Path, stubs: tuple[str, ...], *, paths: tuple[Path, ...] = (), **environment: str
    ) -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the child lives
        quiet = {"OMP_NUM_THREADS": "1", "VERL_USE_EXTERNAL_PLUGINS": "none"}
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(CHILD), str(folder), ",".join(stubs), *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **quiet, **environment},
        )

    @staticmethod
    def new(path: str, **settings: Any) -> dict[str, Any]:
        """An object of the peer's own making, built in the child."""
        return {"$new": path, "with": settings}

    def call(self, path: str, *, gradient: tuple[str, ...] = (), **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"call": path, "with": _encode(arguments), "gradient": list(gradient)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._stderr.seek(0)
            raise PeerError(f"the child process ended: {self._stderr.read()[-2000:]}")
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
        result = _decode(reply["result"])
        return (result, _decode(reply["gradient"])) if gradient else result

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()  # it has nothing to finish, and torch takes a second to end
        self._process.wait(timeout=120)
        self._stderr.close()


def _encode(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"$tensor": value.detach().tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, np.ndarray):
        return {"$array": value.tolist()}
    if isinstance(value, dict):
        return {name: _encode(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(entry) for entry in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(entry) for entry in value]
    if isinstance(value, dict) and "$tensor" in value:
        return torch.tensor(value["$tensor"], dtype=getattr(torch, value["dtype"]))
    if isinstance(value, dict):
        return {name: _decode(entry) for name, entry in value.items()}
    return value

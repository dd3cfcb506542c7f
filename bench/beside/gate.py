"""The only place where the two processes of a side meet: the child takes a block of steps, says how long each took,
and waits until it is told to take more. So only one side works at a time, and a slow machine slows all of them."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any


class Gate:
    """In the child. `passed` is called at the end of every step."""

    def __init__(self) -> None:
        self._in: IO[str] = os.fdopen(os.dup(0), "r")
        self._out: IO[str] = os.fdopen(os.dup(1), "w")
        _ = os.dup2(2, 1)  # what a library prints must not break a message
        self._left: int = 0
        self._times: list[float] = []
        self._began: float = 0.0

    def ready(self) -> None:
        """Say that everything is open, and wait for the first block."""
        self._say({"ready": True})
        self._wait()

    def passed(self) -> None:
        now = time.perf_counter()
        self._times.append(now - self._began)
        self._left -= 1
        if self._left == 0:
            self._say({"seconds": self._times})
            self._wait()
        self._began = time.perf_counter()

    def _say(self, message: dict[str, Any]) -> None:
        _ = self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def _wait(self) -> None:
        line = self._in.readline()
        # At the end there is nothing to wait for: the run ends by its own count of steps.
        self._left = int(line) if line.strip() else -1
        self._times = []
        self._began = time.perf_counter()


class Side:
    """In the parent: one child, and the seconds of its steps."""

    def __init__(self, module: str, arguments: list[str], environment: dict[str, str]) -> None:
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
        self._child: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, text=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )  # fmt: skip
        _ = self._hear()

    def steps(self, count: int) -> list[float]:
        """Let the child take so many steps; the seconds of each."""
        assert self._child.stdin is not None
        _ = self._child.stdin.write(f"{count}\n")
        self._child.stdin.flush()
        return [float(one) for one in self._hear()["seconds"]]

    def close(self) -> None:
        """Let the child write its model and end."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        code = self._child.wait()
        if code:
            raise RuntimeError(f"a side ended with {code}:\n{self._said()}")

    def kill(self) -> None:
        self._child.kill()
        _ = self._child.wait()

    def _hear(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"a side ended with {self._child.wait()}:\n{self._said()}")
        return json.loads(line)

    def _said(self) -> str:
        _ = self._words.seek(0)
        return "\n".join(self._words.read().decode(errors="replace").splitlines()[-20:])

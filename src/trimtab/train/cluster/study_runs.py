"""The only place that runs the runs of a study on a cluster: each is a process on a node, and its folder comes back.

A run is started there with the same command as here. When it ends, or is asked to stop, its whole folder travels to
the study's own. A run whose node is lost begins again elsewhere, from what the study's folder has of it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trimtab.config.cluster import ClusterSettings
from trimtab.rollout.wire import pack, unpack
from trimtab.train.cluster.parcel import file_bytes, folder_bytes, write_parcel
from trimtab.train.cluster.role import Scratch
from trimtab.train.cluster.session import open_session
from trimtab.train.cluster.start import start_actor
from trimtab.train.study.study import Launch, RunProcess, run_command

RESTARTS = 3
"""How often a run is started on another node."""
RUN, RUN_FILE = "run", "run.toml"


class RunRole:
    """One run of a study, on a node."""

    def __init__(self) -> None:
        self._scratch: Scratch = Scratch()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, opening: bytes) -> bytes:
        """Run to the end; returns the exit code, what was printed, and the run folder."""
        head, files = unpack(opening)
        folder = self._scratch.folder
        write_parcel(files, folder)
        command = run_command(folder / RUN_FILE, folder / RUN, int(head["seed"]), is_begun=bool(head["is_begun"]))
        with (folder / "said.log").open("ab") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )  # fmt: skip
            code = self._process.wait()
        said = (folder / "said.log").read_text(encoding="utf-8", errors="replace")
        return pack({"code": code, "said": said}, folder_bytes(folder / RUN, RUN) if (folder / RUN).is_dir() else {})

    def stop(self, number: int) -> None:
        """Ask it to finish its step and write a checkpoint."""
        while self._process is None:
            time.sleep(0.1)
        with suppress(ProcessLookupError):
            self._process.send_signal(number)


class DistantRun:
    """A run on a node, as the study sees a process."""

    def __init__(self, ray: Any, run_file: Path, place: Path, seed: int, is_begun: bool, log: Path) -> None:
        self._ray: Any = ray
        self._place: Path = place
        self._log: Path = log
        self._left: int = RESTARTS
        self._opening: tuple[Path, int, bool] = (run_file, seed, is_begun)
        self.returncode: int | None = None
        self._start()

    def poll(self) -> int | None:
        if self.returncode is None and self._ray.wait([self._running], timeout=0)[0]:
            self._end()
        return self.returncode

    def wait(self) -> int:
        while self.poll() is None:
            _ = self._ray.wait([self._running], timeout=1.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        self._left = 0
        self._actor.stop.remote(int(number))

    def kill(self) -> None:
        self._ray.kill(self._actor)
        self.returncode = -signal.SIGKILL

    def _start(self) -> None:
        run_file, seed, is_begun = self._opening
        sent = {RUN_FILE: file_bytes(run_file)}
        sent |= folder_bytes(self._place, RUN) if is_begun else {}
        self._actor: Any = start_actor(self._ray, RunRole, {"CPU": 1}, groups={"look": 1}, methods={"stop": "look"})
        self._running: Any = self._actor.run.remote(self._ray.put(pack({"seed": seed, "is_begun": is_begun}, sent)))

    def _end(self) -> None:
        try:
            head, files = unpack(self._ray.get(self._running))
        except self._ray.exceptions.RayError as error:
            self._say(f"the run's node is lost: {str(error).splitlines()[0]}\n")
            if self._left:
                self._left -= 1
                self._start()
                return
            head, files = {"code": -signal.SIGKILL, "said": ""}, {}
        self._say(str(head["said"]))
        write_parcel({name.removeprefix(f"{RUN}/"): content for name, content in files.items()}, self._place)
        with suppress(Exception):
            self._ray.kill(self._actor)
        self.returncode = int(head["code"])

    def _say(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as file:
            _ = file.write(text)


@contextmanager
def runs_on_cluster(address: str, jobs: int) -> Generator[Launch]:
    """Runs of a study as processes of a cluster; one of the study's own has a CPU for each of `jobs`."""
    with open_session(ClusterSettings(address=address), {"CPU": float(jobs)}) as session:

        def launch(run_file: Path, place: Path, seed: int, is_begun: bool, log: Path) -> RunProcess:
            return DistantRun(session.ray, run_file, place, seed, is_begun, log)

        yield launch

"""The only place where a sampler on a node starts a vLLM server of its own, on loopback, and makes it its engine.

The server reads versions from the sampler's own folder, so nothing is shared between nodes. It ends with the sampler.
"""

import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab import marks
from trimtab.rollout.engine import AsyncEngine
from trimtab.rollout.launch import TOKEN, plan, without_critic
from trimtab.rollout.place import Place
from trimtab.train.cluster.parcel import MODEL
from trimtab.train.policy import Policy
from trimtab.train.setup import engine_slots, server_engine

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings


class OwnServer:
    """A server with a token of its own. What it prints goes where the sampler's words go."""

    def __init__(self, folder: Path, settings: "TrainSettings", *, mark: str) -> None:
        self._folder: Path = folder
        self._settings: TrainSettings = settings
        self._proofs: Path = folder / "proofs.jsonl"
        self._read: int = 0
        self._is_closed: bool = False
        self._token: str = secrets.token_urlsafe(24)
        launch = plan(
            without_critic(folder / MODEL),
            host="127.0.0.1",
            port=_free_port(),
            slots=engine_slots(settings),
            dtype=settings.model.dtype,  # left to itself, vLLM rounds float32 to 16 bits, and no small change is proven
            max_length=0,
            lora_rank=0,  # a publication comes whole, with its adapter merged
            environment=None,
            more=(),
            given={**os.environ, TOKEN: self._token},
        )
        self.url: str = launch.url
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            launch.command,
            env={**launch.environment(os.environ), marks.SERVER: mark},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def engine(self, policy: Policy) -> AsyncEngine:
        """The engine that this server is. It waits until the server answers."""
        place = Place(self._folder / "versions", self._folder / MODEL)
        return server_engine(policy, self._settings, self.url, place, token=self._token, proofs=self._proofs)

    def watch(self, say: Callable[[str], None]) -> None:
        """Call `say`, in a thread, when the server ends although nobody closed it: nobody else would hear of it."""

        def wait() -> None:
            code = self._process.wait()
            if not self._is_closed:
                say(
                    f"its vLLM server ended with exit code {code}, so it has no engine. What the server printed is in "
                    "the sampler's log in the run folder"
                )

        threading.Thread(target=wait, daemon=True, name="vLLM server").start()

    def close(self) -> None:
        """Whatever happens to the server now is meant."""
        self._is_closed = True

    def fresh_proofs(self) -> str:
        """Lines that were written since the last call: what each load has shown."""
        if not self._proofs.is_file():
            return ""
        text = self._proofs.read_text(encoding="utf-8")
        fresh, self._read = text[self._read :], len(text)
        return fresh


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""The only place that makes a vLLM server a worker of a run: it connects, connects again, and keeps what was proven.

A server that goes away, restarts or is refused is a lost engine: its prompts are sampled anew, by others or by itself
when it is back and has proven a version. One that speaks another language than the trainer ends the run.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.errors import EngineError, EngineGone, StaleWeights
from trimtab.rollout.engine import Greedy, Request, Sample, Sampling
from trimtab.rollout.http import Server
from trimtab.rollout.meet import Language
from trimtab.rollout.place import Place
from trimtab.rollout.publication import Publication
from trimtab.rollout.remote import Remote
from trimtab.rollout.score import ModelScores

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKEN = "TRIMTAB_TOKEN"
"""Environment variable: the token of every server of a run."""
COMES_BACK_SECONDS = 300.0
"""How long a server that cannot be reached is waited for. Loading a large model takes minutes."""
LOOK_SECONDS = 2.0

Connect = Callable[[], Awaitable[Remote]]


class Distant:
    """An `AsyncEngine`: a server that may not be there yet. It connects with the first load."""

    def __init__(self, url: str, slots: int, connect: Connect, proofs: Path, patience: float) -> None:
        self.url: str = url
        self._slots: int = slots
        self._connect: Connect = connect
        self._proofs: Path = proofs
        self._patience: float = patience
        self._told: int = 0
        self._remote: Remote | None = None

    @property
    def version(self) -> int:
        return -1 if self._remote is None else self._remote.version

    @property
    def dtype(self) -> str:
        return "" if self._remote is None else self._remote.dtype

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def decode(self) -> str:
        return "" if self._remote is None else f"vLLM {self._remote.facts.version}, {self.dtype}"

    async def generate(self, request: Request, how: Sampling | Greedy) -> Sample:
        if self._remote is None:
            raise EngineGone(f"the server {self.url} was asked before it had parameters")
        try:
            return await self._remote.generate(request, how)
        except StaleWeights as error:
            raise EngineGone(str(error)) from error
        except EngineError as error:
            if self._remote.version < 0:  # somebody else saw it go
                raise EngineGone(str(error)) from error
            raise

    async def load(self, publication: Publication) -> int:
        if self._remote is None:
            self._remote = await self._reach()
        try:
            return await self._remote.load(publication)
        except StaleWeights as error:
            raise EngineGone(str(error)) from error
        finally:
            await asyncio.to_thread(self._keep_proofs, self._remote)

    async def close(self) -> None:
        if self._remote is not None:
            await self._remote.close()

    async def _reach(self) -> Remote:
        """Connect; a server that is not there is waited for, one that refuses is not."""
        until = time.monotonic() + self._patience
        while True:
            try:
                return await self._connect()
            except EngineGone:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    def _keep_proofs(self, remote: Remote) -> None:
        """Write down what each load has shown, refused ones too."""
        fresh = remote.proofs[self._told :]
        self._told += len(fresh)
        with self._proofs.open("a", encoding="utf-8") as file:
            for proof in fresh:
                _ = file.write(json.dumps({"server": self.url, **asdict(proof)}) + "\n")


def distant(
    url: str,
    model: "PreTrainedModel",
    language: Language,
    place: Place,
    *,
    token: str,
    slots: int,
    timeout: float,
    proofs: Path,
) -> Distant:
    """An engine that is the server at `url`; `model` is a copy whose parameters nobody changes."""

    async def connect() -> Remote:
        server = Server(url, token=token, timeout=timeout)
        try:
            return await Remote.connect(server, place=place, scores=ModelScores(model), language=language, slots=slots)
        except BaseException:
            await server.close()
            raise

    return Distant(url, slots, connect, proofs, COMES_BACK_SECONDS)

"""A sampler on a node: the worker of a sampler process (`runtimes/worker.py`), whose pipe is Ray.

Everything that comes in and goes out is a message of `rollout/wire.py`, as bytes.
"""

import json
import queue
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trimtab.config.train import TrainSettings
from trimtab.errors import TrimtabError
from trimtab.processor import limit_instructions
from trimtab.rollout.engine import AsyncEngine, Engine
from trimtab.rollout.wire import pack, unpack
from trimtab.train.cluster.parcel import MODEL, settings_here, write_parcel
from trimtab.train.cluster.rewards import Distributed
from trimtab.train.cluster.role import Scratch, Words, here
from trimtab.train.cluster.server import OwnServer
from trimtab.train.policy import Policy, load
from trimtab.train.runtimes.message import read_publication, said_message
from trimtab.train.runtimes.worker import Failed, Gone, Local, Said
from trimtab.train.setup import engine_slots, new_collector, new_engine


class SamplerRole:
    """Opened once; then told what to do, and heard in another thread."""

    def __init__(self) -> None:
        limit_instructions()
        self._scratch: Scratch = Scratch()
        self._words: Words = Words(self._scratch.folder)
        self._said: queue.SimpleQueue[Said] = queue.SimpleQueue()
        self._worker: Local | None = None
        self._server: OwnServer | None = None

    def place(self) -> dict[str, str]:
        """Where it is: the first sign of life."""
        return here()

    def open(self, opening: bytes, rewards: Sequence[Any]) -> None:
        """Write down what came with it, and build engine and collector. What goes wrong is said, not raised."""
        head, files = unpack(opening)
        folder = self._scratch.folder
        try:
            write_parcel(files, folder)
            settings = settings_here(TrainSettings.model_validate_json(json.dumps(head["settings"])), folder)
            torch.set_num_threads(settings.threads)
            policy = load(folder / MODEL, settings.model)
            engine = self._engine(policy, settings, folder)
            pool = Distributed(rewards)
            collector = new_collector(policy, settings, engine=engine, hire=lambda _target, _names, _options: pool)
            self._worker = Local(collector, self._said.put)
        except TrimtabError as error:
            self._said.put(Failed(f"cluster: a sampler could not be opened: {error}"))

    def tell(self, message: bytes) -> None:
        """Parameters to use, or tickets to sample."""
        head, tensors = unpack(message)
        if self._worker is None:
            return
        if head["do"] == "load":
            self._worker.publish(read_publication(head, tensors))
        else:
            self._worker.order([int(ticket) for ticket in head["tickets"]])

    def hear(self, seconds: float) -> bytes:
        """The next thing it says; after this long a sign of life. What was printed comes along."""
        try:
            said = self._said.get(timeout=seconds)
        except queue.Empty:
            return pack({"say": "", "words": self._words.fresh()})
        head, tensors = said_message(said)
        proofs = "" if self._server is None else self._server.fresh_proofs()
        return pack({**head, "words": self._words.fresh(), "proofs": proofs}, tensors)

    def close(self) -> None:
        """End what was started. The process itself is ended from outside."""
        if self._server is not None:
            self._server.close()
        if self._worker is not None:
            self._worker.close(0)
        self._scratch.close()

    def _engine(self, policy: Policy, settings: TrainSettings, folder: Path) -> Engine | AsyncEngine:
        if settings.engine.name != "vllm":
            return new_engine(policy, settings, slots=engine_slots(settings))
        self._server = OwnServer(folder, settings, mark=self._scratch.mark)
        self._server.watch(lambda why: self._said.put(Gone(why)))
        return self._server.engine(policy)

"""A pool of processes that communicate: the only place that starts torch.distributed for a subject.

Each worker is forked with the subject in memory, joins a gloo group through a file, and answers JSON over a pipe.
"""

import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from trimtab.sentinel.batch.case import CannotRepresent, Case
from trimtab.sentinel.binding.calling import Seen, run
from trimtab.sentinel.binding.subject import Result, Subject

ANSWER_SECONDS = 30.0
"""Time after which a rank counts as stuck, for example in a wait for the others."""


class RankFailed(Exception):
    """A rank raised or did not answer."""


class Pool:
    """`with Pool(subject, 2) as pool: pool.run(case, [[0], [1, 2]])` returns the results of each rank on its rows."""

    def __init__(self, subject: Subject, world: int) -> None:
        self.subject, self.world = subject, world
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("fork")
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Any] = []
        self._workers: list[Any] = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(subject, rank, world, store, theirs), daemon=True)
            worker.start()
            theirs.close()
            self._pipes.append(ours)
            self._workers.append(worker)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.terminate()
            worker.join(2)
            if worker.is_alive():
                worker.kill()
        self._folder.cleanup()

    def run(self, case: Case, rows: Sequence[Sequence[int]]) -> list[Seen]:
        """Let every rank call the subject on its rows, all at once."""
        for pipe, own in zip(self._pipes, rows, strict=True):
            pipe.send_bytes(json.dumps({"case": case.as_data(), "rows": list(own)}).encode())
        answers: list[Seen] = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(ANSWER_SECONDS):
                raise RankFailed(f"rank {rank} of {self.world} did not answer within {ANSWER_SECONDS:g} s")
            data = json.loads(pipe.recv_bytes())
            if "cannot" in data:
                raise CannotRepresent(data["cannot"])
            if "error" in data:
                raise RankFailed(f"rank {rank} of {self.world}: {data['error']}")
            answers.append(_seen(_part(case, rows[rank], rank, self.world), data))
        return answers


def _part(case: Case, rows: Sequence[int], rank: int, world: int) -> Case:
    return replace(case.taken(rows, as_part=True), rank=rank, world=world)


def _serve(subject: Subject, rank: int, world: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(seconds=ANSWER_SECONDS)
    )
    while True:
        try:
            asked = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        case = Case.from_data(asked["case"])
        try:
            answer = _answer(run(subject, _part(case, asked["rows"], rank, world)))
        except CannotRepresent as error:
            answer = {"cannot": str(error)}
        except Exception as error:  # the parent turns the error of a rank into a verdict
            answer = {"error": f"{type(error).__name__}: {error}"}
        pipe.send_bytes(json.dumps(answer).encode())


def _answer(seen: Seen) -> dict[str, Any]:
    facts = {n: [r.level, r.kind, str(r.value.dtype), r.adds_up] for n, r in seen.results.items()}
    values = {n: v.double().tolist() for n, v in seen.values.items()}
    gradients = {n: {leaf: g.tolist() for leaf, g in found.items()} for n, found in seen.gradients.items()}
    return {"facts": facts, "values": values, "gradients": gradients}


def _seen(case: Case, data: dict[str, Any]) -> Seen:
    values = {n: _numbers(v) for n, v in data["values"].items()}
    results = {n: Result(values[n], f[0], f[1], adds_up=f[3]) for n, f in data["facts"].items()}
    gradients = {n: {leaf: _numbers(g) for leaf, g in found.items()} for n, found in data["gradients"].items()}
    return Seen(case, values, results, gradients)


def _numbers(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)

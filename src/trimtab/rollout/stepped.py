"""The only place that steps an engine of this process between coroutines: an `AsyncEngine` made of a plain one.

A step is taken only after a turn of the event loop in which nobody asked: every coroutine that could run has run, and
waits. So with environments that answer at once, which rows are in a batch together depends on nothing but the requests.
"""

import asyncio
import itertools
from collections.abc import Collection, Mapping
from typing import Protocol, cast

from torch import Tensor

from trimtab.rollout.engine import AsyncEngine, Engine, Greedy, Request, Sample, Sampling
from trimtab.rollout.publication import Publication

ANY_NUMBER = 2**31 - 1
"""Slots of an engine that keeps those who wait in a queue of its own."""
STEPWISE = ("submit", "step", "abort", "started")


class Stepwise(Protocol):
    """An engine that draws one token of every answer at a time."""

    @property
    def version(self) -> int: ...

    @property
    def dtype(self) -> str: ...

    def load(self, state: Mapping[str, Tensor], version: int, digest: str) -> None: ...

    def submit(self, key: int, request: Request, how: Sampling | Greedy) -> None: ...

    def step(self) -> list[tuple[int, Sample]]: ...

    def abort(self, keys: Collection[int] | None = None) -> list[tuple[int, Sample]]: ...

    @property
    def started(self) -> Collection[int]:
        """The requests whose prompts were read. The others wait, and have nothing of the parameters in use."""
        ...


class Rounds:
    """A `Stepwise` engine made of one that only answers lists: a step is a whole answer to everyone who waits."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine = engine
        self._waiting: dict[int, tuple[Request, Sampling | Greedy]] = {}

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def dtype(self) -> str:
        return self._engine.dtype

    def load(self, state: Mapping[str, Tensor], version: int, digest: str) -> None:
        self._engine.load(state, version, digest)

    def submit(self, key: int, request: Request, how: Sampling | Greedy) -> None:
        self._waiting[key] = (request, how)

    def step(self) -> list[tuple[int, Sample]]:
        """Answer all that are to be drawn like the first of them."""
        order = sorted(self._waiting, key=lambda key: (self._waiting[key][0].order, key))
        how = self._waiting[order[0]][1]
        taken = [key for key in order if self._waiting[key][1] == how]
        requests = [self._waiting.pop(key)[0] for key in taken]
        return list(zip(taken, self._engine.sample(requests, how), strict=True))

    @property
    def started(self) -> Collection[int]:
        return ()

    def abort(self, keys: Collection[int] | None = None) -> list[tuple[int, Sample]]:
        import torch

        stopped = [key for key in self._waiting if keys is None or key in keys]
        for key in stopped:
            del self._waiting[key]
        return [(key, Sample((), torch.zeros(0), (), "abort")) for key in stopped]


class Stepped:
    """An `AsyncEngine` that steps an engine of this process whenever nobody else can do anything."""

    def __init__(self, engine: Stepwise) -> None:
        self._engine: Stepwise = engine
        self._numbers: itertools.count[int] = itertools.count()
        self._asked: dict[int, asyncio.Future[Sample]] = {}
        self._is_asked: bool = False
        self._is_stepping: bool = False

    @property
    def version(self) -> int:
        return self._engine.version

    @property
    def dtype(self) -> str:
        return self._engine.dtype

    @property
    def slots(self) -> int:
        return ANY_NUMBER

    async def generate(self, request: Request, how: Sampling | Greedy) -> Sample:
        loop = asyncio.get_running_loop()
        key, answer = next(self._numbers), loop.create_future()
        self._engine.submit(key, request, how)
        self._asked[key] = answer
        self._is_asked = True
        if not self._is_stepping:
            self._is_stepping = True
            _ = loop.call_soon(self._turn, loop)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._asked.pop(key, None) is not None:
                _ = self._engine.abort([key])
            raise

    async def load(self, publication: Publication) -> int:
        """Stop what is being answered, then take over. Who is stopped hears of it when the new parameters are in use.

        Requests that wait for a place go on waiting.
        """
        stopped = self._engine.abort(self._engine.started)
        try:
            self._engine.load(publication.state, publication.version, publication.digest)
        finally:
            self._answer(stopped)
        return self._engine.version

    async def close(self) -> None:
        self._answer(self._engine.abort())

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """One turn of the loop: step if nobody asked since the last one."""
        if not self._asked:
            self._is_stepping = False
            return
        if not self._is_asked:
            try:
                self._answer(self._engine.step())
            except Exception as error:  # it belongs to everyone who waits, and each of them raises it
                lost, self._asked = self._asked, {}
                for answer in lost.values():
                    if not answer.done():
                        answer.set_exception(error)
        self._is_asked = False
        _ = loop.call_soon(self._turn, loop)

    def _answer(self, samples: list[tuple[int, Sample]]) -> None:
        for key, sample in samples:
            answer = self._asked.pop(key, None)
            if answer is not None and not answer.done():
                answer.set_result(sample)


def as_async(engine: Engine | AsyncEngine) -> AsyncEngine:
    """The engine itself if it is asynchronous; otherwise one that steps it, token by token where it can."""
    if hasattr(engine, "generate"):
        return cast(AsyncEngine, engine)
    if all(hasattr(engine, name) for name in STEPWISE):
        return Stepped(cast(Stepwise, engine))
    return Stepped(Rounds(cast(Engine, engine)))

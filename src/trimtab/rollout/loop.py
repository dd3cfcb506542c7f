"""The only place that runs an event loop: in a thread of its own where the learner works beside it, and in the
caller's thread where the caller waits for it anyway.

Two threads that compute in turn have two teams of OpenMP threads, and those of the one that waits spin on the cores of
the other: with two threads each, both took half as long again.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")
CLOSE_SECONDS = 5.0
"""How long coroutines may take to end when they are cancelled."""


class Loop:
    """Runs coroutines: one after the other in the caller's thread, or, once one was started beside it, in a thread."""

    def __init__(self) -> None:
        self._lock: threading.Lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run one to its end and return its result; if the caller is interrupted, it is cancelled."""
        own = self._own()
        if own is not None:
            return _run_here(own, work)
        running = self.start(work)
        try:
            return running.result()
        except BaseException:
            _ = running.cancel()
            raise

    def _own(self) -> asyncio.AbstractEventLoop | None:
        """The loop, if this thread may run it; None if it has a thread, or this thread runs another one already."""
        with self._lock:
            if self._thread is not None or _runs_a_loop():
                return None
            self._loop = self._loop or asyncio.new_event_loop()
            return self._loop

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Start one beside the others. The thread starts with the first of them."""
        with self._lock:
            self._loop = self._loop or asyncio.new_event_loop()
            if self._thread is None:
                assert not self._loop.is_running(), "a caller runs the loop; what is started would end with its work"
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="episodes", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None:
            return
        if thread is None:
            _end(loop)
            return
        _ = loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            _end(loop)


def _runs_a_loop() -> bool:
    """Whether the caller is inside an event loop, as in a notebook."""
    try:
        _ = asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_here(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    task = loop.create_task(work)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        _cancel(loop, {task})
        raise


def _cancel(loop: asyncio.AbstractEventLoop, tasks: "set[asyncio.Task[Any]]") -> None:
    for task in tasks:
        _ = task.cancel()
    if tasks:
        _ = loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_SECONDS))


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left, and close the loop."""
    try:
        _cancel(loop, asyncio.all_tasks(loop))
    finally:
        loop.close()


def settled(value: "Result | Awaitable[Result]") -> Result:
    """A value as it is; what a coroutine returns, for a caller that runs no loop."""
    if not inspect.isawaitable(value):
        return value
    loop = Loop()
    try:
        return loop.run(_awaited(value))
    finally:
        loop.close()


async def _awaited(value: "Awaitable[Result]") -> Result:
    return await value

"""The only place that runs an event loop: in a thread of its own, so that the learner does not hold it up."""

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
    """Runs coroutines for callers in other threads. The thread starts with the first of them."""

    def __init__(self) -> None:
        self._lock: threading.Lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run one to its end and return its result; if the caller is interrupted, it is cancelled."""
        running = self.start(work)
        try:
            return running.result()
        except BaseException:
            _ = running.cancel()
            raise

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Start one beside the others."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name="episodes", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        _ = loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_SECONDS)

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                _ = task.cancel()
            if left:
                _ = loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))
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

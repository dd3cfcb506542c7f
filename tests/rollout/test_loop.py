"""Where coroutines run: with a caller who waits, in the caller's thread; beside the caller, in one of their own."""

import asyncio
import threading

import pytest

from trimtab.rollout.loop import Loop


async def here() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


def test_a_caller_who_waits_runs_the_loop_itself() -> None:
    loop = Loop()
    assert loop.run(here()) == threading.current_thread().name
    assert loop.run(here()) == threading.current_thread().name  # the same loop once more
    loop.close()


def test_beside_the_caller_there_is_a_thread_and_later_calls_join_it() -> None:
    loop = Loop()
    assert loop.run(here()) == threading.current_thread().name
    assert loop.start(here()).result(5) == "episodes"
    assert loop.run(here()) == "episodes"
    loop.close()


def test_inside_an_event_loop_of_the_caller_a_thread_is_used() -> None:
    async def notebook() -> str:
        loop = Loop()
        try:
            return loop.run(here())
        finally:
            loop.close()

    assert asyncio.run(notebook()) == "episodes"


def test_an_interrupted_caller_leaves_nothing_running() -> None:
    loop, ended = Loop(), []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def work() -> None:
        inner = asyncio.ensure_future(waits())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(_interrupt)
        await inner

    with pytest.raises(KeyboardInterrupt):
        loop.run(work())
    assert ended == ["cancelled"]
    assert loop.run(here()) == threading.current_thread().name  # and the loop can be used again
    loop.close()


def _interrupt() -> None:
    raise KeyboardInterrupt

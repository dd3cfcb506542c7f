"""The only place that judges beside the sampling: each attempt when it ends, without holding up the others."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from trimtab.rollout.reward import Attempt, Scorer, Verdict


@dataclass
class Judge:
    """Verdicts for coroutines. What ends while a call of the scorer runs is judged by the next call, together.

    A scorer that waits for other processes is called in a thread; any other is called at once.
    """

    scorer: Scorer
    _waiting: list[tuple[Attempt, "asyncio.Future[Verdict]"]] = field(
        default_factory=list[tuple[Attempt, "asyncio.Future[Verdict]"]]
    )
    _thread: ThreadPoolExecutor | None = None
    _is_busy: bool = False

    @property
    def waits(self) -> bool:
        """Whether verdicts come from elsewhere, while others go on."""
        return bool(getattr(self.scorer, "waits", False))

    async def verdict(self, attempt: Attempt) -> Verdict:
        if not self.waits:
            return self.scorer.score([attempt])[0]
        found: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append((attempt, found))
        self._call()
        return await found

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        self.scorer.close()

    def _call(self) -> None:
        """Call the scorer for all that wait, unless a call runs: its end is the next beginning."""
        if self._is_busy or not self._waiting:
            return
        taken, self._waiting = self._waiting, []
        self._is_busy = True
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="rewards")
        call = asyncio.get_running_loop().run_in_executor(
            self._thread, self.scorer.score, [attempt for attempt, _ in taken]
        )
        call.add_done_callback(lambda done: self._hear(done, [found for _, found in taken]))

    def _hear(self, done: "asyncio.Future[list[Verdict]]", asked: "list[asyncio.Future[Verdict]]") -> None:
        self._is_busy = False
        error = None if done.cancelled() else done.exception()
        for place, found in enumerate(asked):
            if done.cancelled():
                _ = found.cancel()
            elif not found.done() and error is not None:
                found.set_exception(error)
            elif not found.done():
                found.set_result(done.result()[place])
        if not done.cancelled():
            self._call()

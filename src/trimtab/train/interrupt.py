"""The only place that listens to signals: the first asks the run to finish its step, the second ends it at once.

Ctrl-C, SIGTERM (Slurm, docker, Kubernetes, kill) and SIGHUP (a closed terminal or ssh session) mean the same.
"""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

LISTENED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Whether a signal asked the run to stop. The loop looks between steps, so that no update is left half done."""

    def __init__(self) -> None:
        self.signal: str = ""
        """Its name: SIGINT, SIGTERM or SIGHUP; empty while nobody asked."""

    def __call__(self) -> bool:
        return bool(self.signal)


@contextmanager
def stop_on_signals(*, patient: bool = False) -> Generator[StopRequest]:
    """Signals set the request while this is open; afterwards the caller's own handling is back.

    `patient`: a second signal does not end the process. torchrun hands on what the terminal has already sent to every
    rank, and ends them itself if they take too long.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may listen; elsewhere the caller decides
        return
    before = {number: signal.getsignal(number) for number in LISTENED}
    terminals = [handle for handle in (1, 2) if os.isatty(handle)]

    def ask(number: int, _frame: FrameType | None) -> None:
        request.signal = request.signal or signal.Signals(number).name
        if patient:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # A closing terminal may send it twice, from the kernel and from the shell. That is not a second request.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        mute_closed(terminals)

    for number, handler in before.items():
        if not (number == signal.SIGHUP and handler == signal.SIG_IGN):  # nohup: the run must go on
            signal.signal(number, ask)
    try:
        yield request
    finally:
        mute_closed(terminals)
        for number, handler in before.items():
            signal.signal(number, handler)


def mute_closed(terminals: list[int]) -> None:
    """Discard what is written to a terminal that is gone: a failed write would lose the checkpoint."""
    gone = [handle for handle in terminals if not os.isatty(handle)]
    if gone:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for handle in gone:
            _ = os.dup2(nowhere, handle)
        os.close(nowhere)


def exit_code(name: str) -> int:
    """128 + the number of the signal: what shells report and what Slurm and Kubernetes expect.

    >>> exit_code("SIGINT"), exit_code("SIGTERM"), exit_code("SIGHUP")
    (130, 143, 129)
    """
    return 128 + signal.Signals[name]


@contextmanager
def raise_on_signals() -> Generator[StopRequest]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; the request says which it was."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in LISTENED}

    def ask(number: int, _frame: FrameType | None) -> None:
        request.signal = request.signal or signal.Signals(number).name
        raise KeyboardInterrupt

    for number, handler in before.items():
        if not (number == signal.SIGHUP and handler == signal.SIG_IGN):
            signal.signal(number, ask)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

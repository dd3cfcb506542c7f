"""The only place that listens to Ctrl-C: the first one asks the run to finish, the second one ends it at once."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether somebody asked the run to stop. The loop looks between steps, so that no update is left half done."""

    def __init__(self) -> None:
        self.is_set: bool = False

    def __call__(self) -> bool:
        return self.is_set


@contextmanager
def stop_on_interrupt() -> Generator[StopRequest]:
    """Ctrl-C sets the request while this is open; afterwards the caller's own handling is back."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may listen; elsewhere the caller decides
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(_signal: int, _frame: FrameType | None) -> None:
        request.is_set = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, ask)
    try:
        yield request
    finally:
        signal.signal(signal.SIGINT, before)

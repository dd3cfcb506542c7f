"""The sampler process: loads and samples what it is told, until it is told to close or nobody is left to tell it.

The main thread does nothing but read: when the pipe ends, the process ends, in the middle of sampling too.
"""

import json
import os
import signal
import threading
import traceback
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import torch

from trimtab.config.train import TrainSettings
from trimtab.errors import TrimtabError
from trimtab.rollout.wire import receive, send
from trimtab.train.interrupt import LISTENED
from trimtab.train.runtimes.message import read_publication, said_message
from trimtab.train.runtimes.worker import Failed, Gone, Local, Said


def main() -> int:
    """Serve messages on standard input and output; prints go to standard error, so that they cannot break a message."""
    # A scheduler signals every process of a job, but the learner decides when to stop: it finishes its step, then
    # closes the pipe. A learner that dies closes it too. A handler, not SIG_IGN: an ignored signal would stay ignored
    # in the processes of a reward.
    for number in LISTENED:
        _ = signal.signal(number, _ignore_signal)
    pipe_in = os.fdopen(os.dup(0), "rb")
    pipe_out = os.fdopen(os.dup(1), "wb")
    _ = os.dup2(2, 1)
    try:
        _serve(pipe_in, Mouth(pipe_out))
    except TrimtabError as error:
        send(pipe_out, {"say": "error", "error": str(error)})
        return 1
    except BrokenPipeError:
        return 0
    except Exception:  # the traceback shows where; the parent reports that the sampler died
        traceback.print_exc()
        return 1
    return 0


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing."""


class Mouth:
    """Says on the pipe what the worker says, one whole message at a time."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe: BinaryIO = pipe
        self._lock: threading.Lock = threading.Lock()

    def __call__(self, said: Said) -> None:
        with self._lock:
            if isinstance(said, Gone):
                _ = os.write(2, said.detail.encode() or said.text.encode())
                os._exit(1)
            send(self._pipe, *said_message(said))
            if isinstance(said, Failed):
                os._exit(1)


def _serve(pipe_in: BinaryIO, say: Mouth) -> None:
    """Hand on messages: first the opening, then `load` and `collect` as they come."""
    from trimtab.train.policy import load
    from trimtab.train.setup import new_collector, new_engine

    opening = receive(pipe_in)
    if opening is None:
        return
    settings = TrainSettings.model_validate_json(json.dumps(opening[0]["settings"]))
    torch.set_num_threads(settings.threads)
    policy = load(Path(opening[0]["model"]), settings.model)
    collector = new_collector(policy, settings, engine=new_engine(policy, settings, slots=int(opening[0]["slots"])))
    worker = Local(collector, say)
    try:
        while (message := receive(pipe_in)) is not None and message[0]["do"] != "close":
            head = message[0]
            if head["do"] == "load":
                worker.publish(read_publication(*message))
            else:
                worker.order([int(ticket) for ticket in head["tickets"]])
    finally:
        collector.scorer.close()


if __name__ == "__main__":
    os._exit(main())  # whatever is being sampled is not waited for

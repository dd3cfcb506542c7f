"""The sampler process of the `processes` runtime: loads and samples what it is told, until told to close."""

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import torch

from trimtab.config.train import TrainSettings
from trimtab.errors import TrimtabError
from trimtab.rollout.publication import Publication
from trimtab.rollout.wire import receive, send
from trimtab.train.interrupt import LISTENED


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
        _serve(pipe_in, pipe_out)
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


def _serve(pipe_in: BinaryIO, pipe_out: BinaryIO) -> None:
    """Answer messages: first the opening, then `load` and `collect` in the order in which they come."""
    from trimtab.train.policy import load
    from trimtab.train.runtimes.inline import decode_of
    from trimtab.train.setup import new_collector

    opening = receive(pipe_in)
    if opening is None:
        return
    settings = TrainSettings.model_validate_json(json.dumps(opening[0]["settings"]))
    torch.set_num_threads(settings.threads)
    policy = load(Path(opening[0]["model"]), settings.model)
    collector = new_collector(policy, settings)
    try:
        while (message := receive(pipe_in)) is not None:
            head: dict[str, Any] = message[0]
            began = time.perf_counter()
            if head["do"] == "load":
                collector.load(Publication.received(message[1], int(head["version"]), str(head["digest"])))
                told = {"version": int(head["version"]), "decode": decode_of(collector.engine)}
                send(pipe_out, {"say": "loaded", **told})
            elif head["do"] == "collect":
                rollouts = collector.collect([int(ticket) for ticket in head["tickets"]])
                said = {"say": "rollouts", "head": rollouts.head(), "seconds": time.perf_counter() - began}
                send(pipe_out, said, rollouts.tensors())
            else:
                return
    finally:
        collector.close()


if __name__ == "__main__":
    sys.exit(main())

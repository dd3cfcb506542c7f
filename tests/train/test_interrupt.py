"""Ctrl-C, SIGTERM and SIGHUP: the step is finished, a checkpoint written, and the run can go on. The second ends."""

import json
import os
import pty
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.train.conftest import timeless
from tests.train.kill import in_child
from tests.train.test_runtime import children

from trimtab.config.train import TrainSettings
from trimtab.train import resume, train
from trimtab.train.interrupt import LISTENED, exit_code, stop_on_signals
from trimtab.train.show.progress import Silent

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(autouse=True)
def not_nohup() -> Iterator[None]:
    """A signal that whoever started the tests ignores, as nohup does, is ignored by every run: listen to it here."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    _ = signal.signal(signal.SIGHUP, before)


class Signals(Silent):
    """Does something after the first step."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] = do

    def step(self, line: object) -> None:
        self.do()


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.fixture(scope="module")
def whole(undrawn: None, small: TrainSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    _ = train(small.model_copy(update={"run_dir": folder, "steps": 3}), "grpo", progress=Silent())
    return folder


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.slow if n != signal.SIGTERM else ()) for n in LISTENED]
)
def test_a_signal_finishes_the_step_and_the_run_goes_on_bit_for_bit(
    number: signal.Signals, small: TrainSettings, whole: Path, tmp_path: Path
) -> None:
    handlers = [signal.getsignal(one) for one in LISTENED]
    settings = small.model_copy(update={"run_dir": tmp_path / "run", "steps": 3})
    summary = train(settings, "grpo", progress=Signals(lambda: send(number)))
    assert (summary.outcome, summary.steps, summary.stopped_by) == ("interrupted", 1, number.name)
    assert (tmp_path / "run" / "checkpoints" / "step_000001").is_dir()
    assert [signal.getsignal(one) for one in LISTENED] == handlers
    assert resume(tmp_path / "run", progress=Silent()).outcome == "finished"
    assert timeless(tmp_path / "run") == timeless(whole)


@pytest.mark.parametrize(("numbers", "ends"), [
    ((signal.SIGTERM, signal.SIGTERM), -signal.SIGTERM),
    ((signal.SIGHUP, signal.SIGTERM), -signal.SIGTERM),
    ((signal.SIGTERM, signal.SIGINT), 1),  # KeyboardInterrupt, as ever
    ((signal.SIGHUP, signal.SIGHUP), 0),  # a closing terminal may send it twice
])  # fmt: skip
def test_a_second_signal_ends_at_once(numbers: tuple[int, ...], ends: int) -> None:
    def work() -> None:
        with stop_on_signals() as stopped:
            send(*numbers)
            assert stopped()

    assert in_child(work) == ends


def test_exit_codes_are_those_of_a_shell() -> None:
    assert [exit_code(number.name) for number in LISTENED] == [130, 143, 129]


def test_nohup_stays_nohup() -> None:
    def work() -> None:
        _ = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with stop_on_signals() as stopped:
            send(signal.SIGHUP)
            assert not stopped()

    assert in_child(work) == 0


@pytest.mark.slow
def test_a_job_that_is_signalled_as_a_whole_keeps_its_sampler_until_the_end(
    small: TrainSettings, tmp_path: Path
) -> None:
    """Schedulers signal every process of a job: the sampler must not die before the learner is done."""

    def signal_all() -> None:
        for child in children():
            for number in LISTENED:
                os.kill(child, number)
        send(signal.SIGTERM)

    settings = small.model_copy(update={"run_dir": tmp_path / "run", "steps": 40, "runtime": "processes"})
    summary = train(settings, "grpo", progress=Signals(signal_all))
    assert (summary.outcome, summary.stopped_by) == ("interrupted", "SIGTERM")
    assert (tmp_path / "run" / "checkpoints" / f"step_{summary.steps:06d}").is_dir()
    assert children() == []


def test_a_closed_terminal_costs_neither_checkpoint_nor_summary(small: TrainSettings, tmp_path: Path) -> None:
    """The terminal goes away: SIGHUP comes, and whatever is printed from then on fails."""
    folder = tmp_path / "run"
    child, terminal = pty.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            sys.stdout = os.fdopen(1, "w", closefd=False)  # the terminal, not what pytest keeps
            settings = small.model_copy(update={"run_dir": folder, "steps": 3000, "eval_every": 1000})
            code = exit_code(train(settings, "grpo").stopped_by)
        os._exit(code)
    end = time.monotonic() + 600
    while time.monotonic() < end and not (folder / "metrics.jsonl").exists():
        with suppress(OSError):
            os.set_blocking(terminal, False)
            _ = os.read(terminal, 65536)
        time.sleep(0.01)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["outcome"] == "interrupted"
    assert (folder / "checkpoints" / f"step_{summary['steps']:06d}").is_dir()

"""What a target can do to the process that checks it: die, hang, shout, fork, and replace what others import."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from trimtab.errors import AdapterError
from trimtab.sentinel.examination import limits, process
from trimtab.sentinel.examination.child import Turns
from trimtab.sentinel.examination.job import Job
from trimtab.sentinel.examination.limits import Limits
from trimtab.sentinel.examination.record import report_data
from trimtab.sentinel.examination.supervise import run_job

ONE = Limits(processes=1)
LOSS = "(-advantages * log_probs)[mask.bool()].sum()"


def put(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(dedent(text))
    return folder / name


def statuses(report: Any) -> dict[str, str]:
    return {verdict["subject"]: verdict["status"] for verdict in report["verdicts"]}


def is_gone(pid: int) -> bool:
    """Whether a process ends soon. A zombie that nobody reaps has ended too."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


FORKS = """
import os, re, signal, sys, time
from pathlib import Path

def _fork():
    "A grandchild in a session of its own, which holds every pipe open."
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
    Path(PIDS).write_text(f"{os.getpid()} {pid}")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of other processes")
def test_what_a_target_prints_forks_and_writes_stays_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids, kept = tmp_path / "pids", list[int]()
    put(tmp_path, "torch.py", "raise RuntimeError('this is not torch')\n")
    put(tmp_path, "beside.py", "SCALE = 1\n")
    body = f"""
    import torch, beside
    PIDS = {str(pids)!r}
    Path("log.txt").write_text("where am I?")
    print('{{"event": "failed", "reason": "said by the target"}}', flush=True)
    os.write(2, b'{{"event": "done"}}\\n')
    _fork()

    def shouts(log_probs, advantages, mask):
        print("x" * 300_000, flush=True)
        sys.stdin.read()
        return {LOSS} * beside.SCALE

    def hungry(log_probs, advantages, mask):
        return len(bytearray(3 << 30)) * {LOSS}

    def dies(log_probs, advantages, mask):
        os._exit(3)
    """
    put(tmp_path, "losses_that_shout.py", FORKS + dedent(body))
    monkeypatch.chdir(tmp_path)
    end = process.Child.end

    def ended(self: process.Child) -> None:
        kept.append(len(self._said))  # pyright: ignore[reportPrivateUsage]
        end(self)

    monkeypatch.setattr(process.Child, "end", ended)
    job = Job("losses_that_shout.py", folder=str(tmp_path), examples=1, invariants=("mask_content",))
    report = run_job(job, limits=Limits(processes=1, gibibytes=2))
    assert statuses(report) == {"shouts": "holds", "dies": "could not run"}
    (lost,) = [verdict for verdict in report["verdicts"] if verdict["subject"] == "dies"]
    assert "its process ended with code" in lost["reason"]
    assert [(one["subject"], "MemoryError" in one["reason"]) for one in report["could_not_bind"]] == [("hungry", True)]
    assert all(is_gone(int(pid)) for pid in pids.read_text().split())
    assert max(kept) == process.MAX_WORDS
    assert not (tmp_path / "log.txt").exists()


STUCK = """
def stuck(log_probs, advantages, mask):
    _fork()
    re.match(r"(a+)+$", "a" * 60 + "b")  # for ever, without letting another thread run
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of other processes")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_when_the_parent_ends_everything_ends(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    file = put(tmp_path, "losses_that_hang.py", f"PIDS = {str(pids)!r}\n" + FORKS + STUCK)
    code = f"""
    from trimtab.sentinel.examination.job import Job
    from trimtab.sentinel.examination.limits import Limits
    from trimtab.sentinel.examination.supervise import run_job
    run_job(Job({str(file)!r}), limits=Limits(processes=1))
    """
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", dedent(code)], stderr=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )  # fmt: skip
    while not pids.is_file() or len(pids.read_text().split()) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(number)
    _ = parent.wait()
    assert all(is_gone(int(pid)) for pid in pids.read_text().split())
    deadline = time.monotonic() + 30
    while list(scratch.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(scratch.iterdir())


@pytest.mark.slow
def test_a_function_that_ends_its_process_is_booked_where_it_was(tmp_path: Path) -> None:
    body = f"""
    import os

    class Losses:
        def fine(self, log_probs, advantages, mask):
            return {LOSS}

        def dies_on_nan(self, log_probs, advantages, mask):
            if log_probs.isnan().any():
                os._exit(4)
            return {LOSS}

    def odd(wobble):
        return 0
    """
    file = put(tmp_path, "losses_with_a_death.py", body)
    asked = ("mask_content", "nonfinite_isolation", "permutation")
    job = Job(str(file), examples=1, subjects=("Losses",), invariants=asked)
    report = run_job(job, limits=ONE)
    told = [(v["subject"], v["invariant"], v["status"]) for v in report["verdicts"]]
    assert [one[:2] for one in told[:3]] == [("Losses.fine", name) for name in asked]
    dead = "Losses.dies_on_nan"
    assert told[3:] == [(dead, "mask_content", "holds"), (dead, "nonfinite_isolation", "could not run")]
    reason = report["verdicts"][-1]["reason"]
    assert reason.startswith("its process ended with code 4: ")
    assert reason.endswith("it was not checked any further, and this says nothing about nonfinite_isolation")


@pytest.mark.slow
def test_an_unknown_function_is_answered_with_the_names_there_are(tmp_path: Path) -> None:
    file = put(tmp_path, "losses_by_name.py", f"def loss(log_probs, advantages, mask):\n    return {LOSS}\n")
    with pytest.raises(AdapterError, match=r"no entry is called 'losss'; did you mean 'loss'\? There are: loss\."):
        run_job(Job(str(file), subjects=("losss",)), limits=ONE)


@pytest.mark.slow
def test_a_file_that_does_not_parse_is_an_error_that_says_so(tmp_path: Path) -> None:
    file = put(tmp_path, "losses_with_a_typo.py", "def loss(:\n")
    with pytest.raises(AdapterError, match=r"losses_with_a_typo.py cannot be loaded: SyntaxError: invalid syntax"):
        run_job(Job(str(file)), limits=ONE)


@pytest.mark.slow
def test_a_file_that_ends_the_process_is_an_error_with_its_code(tmp_path: Path) -> None:
    file = put(tmp_path, "losses_that_exit.py", "import os\nos.write(2, b'so long')\nos._exit(5)\n")
    with pytest.raises(AdapterError, match=r"its process ended with code 5: so long"):
        run_job(Job(str(file)), limits=ONE)


@pytest.mark.slow
def test_a_target_that_loads_only_once_costs_the_rest_and_not_the_report(tmp_path: Path) -> None:
    body = f"""
    import os
    from pathlib import Path
    if Path({str(tmp_path / "loaded")!r}).exists():
        raise RuntimeError("not again")
    Path({str(tmp_path / "loaded")!r}).write_text("")

    def fine(log_probs, advantages, mask):
        return {LOSS}

    def dies(log_probs, advantages, mask):
        os._exit(3)

    def later(log_probs, advantages, mask):
        return {LOSS}
    """
    file = put(tmp_path, "losses_once.py", body)
    report = run_job(Job(str(file), examples=1, invariants=("mask_content",)), limits=ONE)
    assert statuses(report) == {"fine": "holds", "dies": "could not run", "later": "could not run"}
    assert "the target could not be loaded again: " in report["verdicts"][-1]["reason"]
    assert "not again" in report["verdicts"][-1]["reason"]


@pytest.mark.slow
def test_modules_of_a_package_that_cannot_be_imported_are_said_once_each(tmp_path: Path) -> None:
    (tmp_path / "half_pkg").mkdir()
    put(tmp_path, "half_pkg/__init__.py", "")
    put(tmp_path, "half_pkg/broken.py", "import nothing_of_the_kind\n")
    put(tmp_path, "half_pkg/dead.py", "import os\nos._exit(5)\n")
    put(
        tmp_path,
        "half_pkg/losses.py",
        f"def odd(x):\n    1 / 0\n\ndef loss(log_probs, advantages, mask):\n    return {LOSS}\n",
    )
    report = run_job(Job("half_pkg", folder=str(tmp_path), examples=1, invariants=("mask_content",)), limits=ONE)
    assert statuses(report) == {"dead": "could not run", "losses.loss": "holds"}
    (broken,) = report["could_not_bind"]
    assert (broken["subject"], "nothing_of_the_kind" in broken["reason"]) == ("broken", True)
    assert [one["subject"] for one in report.get("not_bound", [])] == ["losses.odd"]


@pytest.mark.slow
def test_units_are_shared_out_and_the_report_keeps_their_order(tmp_path: Path) -> None:
    body = f"""
    import time
    from pathlib import Path
    called = Path({str(tmp_path / "called")!r})

    def waits(log_probs, advantages, mask):
        while not called.exists():  # somebody else calls the other one
            time.sleep(0.01)
        return {LOSS}

    def called_later(log_probs, advantages, mask):
        called.write_text("")
        return {LOSS}
    """
    file = put(tmp_path, "losses_that_wait.py", body)
    seen: list[str] = []

    def watch(event: dict[str, Any]) -> None:
        if event["event"] == "subject":
            seen.append(event["subject"]["label"])

    job = Job(str(file), examples=1, invariants=("mask_content",))
    report = run_job(job, limits=Limits(processes=2), watch=watch)
    assert [subject["label"] for subject in report["subjects"]] == ["waits", "called_later"]
    assert sorted(seen) == ["called_later", "waits"]


@pytest.mark.slow
def test_subjects_of_one_unit_are_shared_out_when_no_unit_is_left(tmp_path: Path) -> None:
    body = f"""
    import os, time
    from pathlib import Path
    from trimtab.sentinel import bind
    called = Path({str(tmp_path / "called")!r})

    def waits(log_probs, advantages, mask):
        while not called.exists():  # another process calls the last one
            time.sleep(0.01)
        return {LOSS}

    def fine(log_probs, advantages, mask):
        return {LOSS}

    def called_last(log_probs, advantages, mask):
        called.write_text("")
        return {LOSS}

    SUBJECTS = [bind(fn, role="policy_loss") for fn in (waits, fine, called_last)]
    OTHER = bind(fine, role="policy_loss", name="other")
    """
    file = put(tmp_path, "losses_in_a_list.py", body)
    job = Job(str(file), examples=1, invariants=("mask_content",))
    report = run_job(job, limits=Limits(processes=2, seconds=180))
    assert [v["subject"] for v in report["verdicts"]] == ["waits", "fine", "called_last", "other"]
    assert {v["status"] for v in report["verdicts"]} == {"holds"}


def test_a_subject_is_taken_or_left_and_never_both() -> None:
    turns = Turns()
    turns.open([(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)])
    assert turns.take((0, 0))
    assert turns.leave() == [(0, 3), (0, 4)]
    assert [turns.take((0, n)) for n in range(5)] == [False, True, True, False, False]
    assert turns.leave() == []


def test_a_report_is_in_the_order_of_the_units_whoever_was_faster() -> None:
    def events(unit: int, label: str) -> list[dict[str, Any]]:
        number = [unit, 0, 0]
        return [
            {"event": "verdict", "number": number, "verdict": {"subject": label, "invariant": "split"}},
            {"event": "verdict", "number": number, "verdict": {"subject": label, "invariant": "permutation"}},
            {"event": "subject", "number": number, "subject": {"label": label}, "boundary": None},
        ]

    def unbound(unit: int, *, is_asked: bool) -> dict[str, Any]:
        return {"event": "unbound", "number": [unit, 0, 0], "unbound": {"subject": str(unit)}, "is_asked": is_asked}

    lost = [{"event": "verdict", "number": [1, -1, -1], "verdict": {"subject": "lost", "invariant": "split"}}]
    late = [unbound(5, is_asked=False), unbound(4, is_asked=True), unbound(3, is_asked=True)]
    report = report_data(Job("x"), [*events(2, "last"), *late, *lost, *events(0, "first")], "", 1.0)
    assert [(v["subject"], v["invariant"]) for v in report["verdicts"]] == [
        ("first", "split"), ("first", "permutation"), ("lost", "split"), ("last", "split"), ("last", "permutation"),
    ]  # fmt: skip
    assert [subject["label"] for subject in report["subjects"]] == ["first", "lost", "last"]
    assert [one["subject"] for one in report["could_not_bind"]] == ["3", "4"]
    assert [one["subject"] for one in report.get("not_bound", [])] == ["5"]


def test_memory_is_shared_among_children_and_fewer_run_where_it_is_scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Limits(gibibytes=8, processes=4).share == 2 * 2**30
    scarce = Limits(gibibytes=5, processes=4)
    assert (scarce.processes, scarce.share) == (2, int(2.5 * 2**30))
    assert Limits(gibibytes=1, processes=4).processes == 1
    monkeypatch.setattr(limits, "machine_memory", lambda: 24.0)
    assert Limits(processes=2).share * 2 == 16 * 2**30

"""Rewards of the user's own: what they are given, what they may do wrong, and that nothing is left behind."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimtab.config.train import TaskSettings
from trimtab.errors import ConfigError
from trimtab.marks import REWARD_WORKER, find_marked
from trimtab.rollout.reward import Attempt, Verdict, open_scorer
from trimtab.rollout.reward_pool import GIVE_UP, RewardPool
from trimtab.rollout.task import Problem, open_task

FUNCTIONS = """
import asyncio, ctypes, os, re, signal, subprocess, sys, time

def exact(prompts, completions, completion_ids, answer, **columns):
    return [float(text == right) for text, right in zip(completions, answer)]

def odd(completions, **columns):
    return [act(text) for text in completions]

def act(text):
    if text == "loop":
        while True: pass
    if text == "regex": return float(bool(re.match(r"(a+)+$", "a" * 40 + "b")))  # holds the interpreter's lock
    if text == "sleep": time.sleep(1000)
    if text == "nap":
        time.sleep(20)
        return 5.0
    if text == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: pass
    if text == "exit": os._exit(3)
    if text == "segfault": ctypes.string_at(0)
    if text == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if text == "kill group": os.killpg(0, signal.SIGKILL)
    if text == "raise": raise ValueError("no such thing")
    if text == "system exit": sys.exit(4)
    if text == "interrupt": raise KeyboardInterrupt
    if text == "recursion": return act(text)
    if text == "memory": return float(len(bytearray(1 << 30)))
    if text == "unspeakable": raise Unspeakable
    if text == "close": os.closerange(0, 200)
    if text == "reopen":
        os.closerange(0, 200)
        for number in range(100): os.open("/dev/null", os.O_RDWR)
    if text == "nan": return float("nan")
    if text == "inf": return float("inf")
    if text == "text": return "1.0"
    if text == "list": return [1.0]
    if text == "none": return None
    if text == "fork":
        if os.fork() == 0: return 0.25  # the copy goes on as if it were the worker
    if text == "outlive":
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    if text == "stdout":
        sys.stdout = sys.stderr = None
    if text == "print":
        block = "x" * 65536
        for _ in range(400): print(block, flush=True)
    if text == "chdir": os.chdir("/")
    return 1.0

class Unspeakable(Exception):
    def __str__(self): raise RuntimeError

def short(completions, **columns): return [1.0] * (len(completions) - 1)
def number(completions, **columns): return 1.0
def nothing(completions, **columns): return None
def table(completions, **columns): return dict.fromkeys(completions, 1.0)
def huge(completions, **columns): return [1.0] * (1 << 26)
def huge_text(completions, **columns): return "x" * (1 << 28)
def huge_message(completions, **columns): raise ValueError("x" * (1 << 26))
def slow(completions, **columns):
    if len(completions) > 1: time.sleep(1000)
    return [1.0] * len(completions)
async def later(completions, **columns):
    await asyncio.sleep(0.001)
    return [2.0] * len(completions)
def plain(completions, level, ended): return [l + 10 * e for l, e in zip(level, ended)]
def needs(completions, solution, **columns): return []
def types(prompts, completions, completion_ids, answer, **columns):
    assert isinstance(completion_ids[0], list), completion_ids
    return [float(isinstance(p, list) == isinstance(c, list)) + 10 * (c == [{"role": "assistant", "content": "hi"}])
            for p, c in zip(prompts, completions)]
def pids(completions, **columns): return [os.getpid()] * len(completions)
def forge(completions, **columns):
    for number in range(3, 1024):
        try: os.write(number, b"\\x7f\\xff\\xff\\xff")
        except OSError: pass
    return [1.0] * len(completions)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("reward") / "odd_rewards.py"
    path.write_text(FUNCTIONS)
    return str(path)


PLENTY = 300.0
"""Seconds for a function that ends by itself, on the busiest machine. Only a function that never ends gets less."""


@pytest.fixture(scope="module")
def odd(file: str) -> Iterator[RewardPool]:
    with RewardPool(f"{file}:odd", workers=1, seconds=PLENTY, memory_bytes=1 << 29) as pool:
        yield pool


@pytest.fixture(scope="module")
def hasty(file: str) -> Iterator[RewardPool]:
    with RewardPool(f"{file}:odd", workers=1, seconds=0.5) as pool:
        yield pool


def judged(pool: RewardPool, *texts: str) -> list[Verdict]:
    return pool.judge({"completions": texts}, len(texts))


def group_of(pid: int) -> list[str]:
    """The living processes of a session. A dead one whose parent died waits for the system's first process."""
    found = subprocess.run(["ps", "-eo", "pid=,sess=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in found.splitlines()]
    return [number for number, session, state in rows if session == str(pid) and not state.startswith("Z")]


def is_gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while group_of(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not group_of(pid)


def pid_of(pool: RewardPool) -> int:
    child = pool._slots[0].child  # pyright: ignore[reportPrivateUsage]
    assert child is not None
    return child.pid


ENDLESS = ("loop", "regex", "sleep", "ignore")
WRONG = {
    **dict.fromkeys(ENDLESS, ("timeout", "no reward within 0.5 s")),
    "exit": ("error", "its process ended with code 3"),
    "segfault": ("error", "its process ended with signal SIGSEGV"),
    "kill": ("error", "its process ended with signal SIGKILL"),
    "kill group": ("error", "its process ended with signal SIGKILL"),
    "raise": ("error", 'ValueError: no such thing (odd_rewards.py:25: if text == "raise": raise ValueError'),
    "system exit": ("error", "SystemExit: 4 (odd_rewards.py:26:"),
    "interrupt": ("error", "KeyboardInterrupt"),
    "recursion": ("error", "RecursionError: maximum recursion depth exceeded"),
    "memory": ("error", "MemoryError"),
    "unspeakable": ("error", "Unspeakable: its text cannot be shown"),
    "close": ("error", "its process ended with code 1"),
    "reopen": ("error", "its process ended with code 70"),
    "nan": ("error", "returned nan; only finite numbers can be learned from"),
    "inf": ("error", "returned inf"),
    "text": ("error", "returned the text '1.0' in place of a number"),
    "list": ("error", "returned [1.0] in place of a number"),
    "none": ("abstain", ""),
}


@pytest.mark.parametrize(
    "text", [pytest.param(text, marks=pytest.mark.slow if i % 3 or i == 0 else ()) for i, text in enumerate(WRONG)]
)
def test_only_the_culprit_is_marked_and_the_pool_goes_on(odd: RewardPool, hasty: RewardPool, text: str) -> None:
    pool = hasty if text in ENDLESS else odd
    verdicts = judged(pool, "good", text, "fine")
    assert (verdicts[0], verdicts[2]) == (Verdict("ok", 1.0), Verdict("ok", 1.0))
    status, message = WRONG[text]
    assert verdicts[1].status == status
    assert verdicts[1].message.startswith(message)
    assert verdicts[1].reward != verdicts[1].reward
    assert judged(pool, "again") == [Verdict("ok", 1.0)]


@pytest.mark.parametrize("text", ["fork", "outlive", "stdout", "print", "chdir"])
def test_odd_behaviour_that_still_gives_a_number_is_paid(odd: RewardPool, text: str) -> None:
    assert judged(odd, "good", text, "fine") == [Verdict("ok", 1.0)] * 3
    assert judged(odd, "again") == [Verdict("ok", 1.0)]


def test_a_worker_that_dies_between_two_calls_costs_no_answer(file: str) -> None:
    with RewardPool(f"{file}:odd", workers=1, seconds=PLENTY) as pool:
        assert judged(pool, "good") == [Verdict("ok", 1.0)]
        worker = pid_of(pool)
        os.kill(worker, signal.SIGKILL)
        assert is_gone(worker)
        assert judged(pool, "good") == [Verdict("ok", 1.0)]


def test_nothing_is_left_of_a_worker_nor_of_what_it_forked(file: str) -> None:
    pool = RewardPool(f"{file}:odd", workers=1, seconds=0.5)
    first = pid_of(pool)
    assert judged(pool, "outlive", "outlive")[0].status == "ok"
    assert len(group_of(first)) == 3
    assert judged(pool, "loop")[0].status == "timeout"  # ends the worker, and the two that it forked
    assert is_gone(first)
    assert judged(pool, "outlive")[0].status == "ok"
    second = pid_of(pool)
    pool.close()
    assert is_gone(second)
    with pytest.raises(ChildProcessError):
        _ = os.waitpid(second, os.WNOHANG)
    pool.close()


ESCAPES = """
import os, subprocess, sys, time, mmap

def leaves(completions, **columns):
    sleep = [sys.executable, "-c", "import time; time.sleep(300)"]
    one = subprocess.Popen(sleep, start_new_session=True)
    lost = f"import subprocess, sys; subprocess.Popen({sleep!r}, start_new_session=True)"
    subprocess.run([sys.executable, "-c", lost], start_new_session=True)
    return [1.0] * len(completions)

def shares(completions, **columns):
    room = mmap.mmap(-1, 64 << 20)
    for place in range(64):
        room[place << 20 : place + 1 << 20] = bytes(1 << 20)
    time.sleep(20)
    return [1.0] * len(completions)

def signalled(completions, **columns):
    import signal
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    return [1.0] * len(completions)
"""


@pytest.fixture
def escapes(tmp_path: Path) -> str:
    path = tmp_path / "escapes.py"
    _ = path.write_text(ESCAPES)
    return str(path)


def mark_of(pool: RewardPool) -> str:
    environment = Path(f"/proc/{pid_of(pool)}/environ").read_bytes().split(b"\0")
    return next(one for one in environment if one.startswith(REWARD_WORKER.encode())).decode().partition("=")[2]


def test_what_left_the_session_is_ended_too(escapes: str) -> None:
    with RewardPool(f"{escapes}:leaves", workers=1, seconds=30) as pool:
        mark = mark_of(pool)
        assert judged(pool, "a")[0].status == "ok"
        assert len(find_marked(REWARD_WORKER, mark)) == 3  # the worker, its child, the orphan
    assert left_of(mark) == []


def left_of(mark: str) -> list[int]:
    """Marked processes that are still there once the system had time to take away those that were killed."""
    deadline = time.monotonic() + 30
    while len(find_marked(REWARD_WORKER, mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return find_marked(REWARD_WORKER, mark)


def test_what_left_the_session_is_ended_when_the_parent_is_gone(escapes: str) -> None:
    """The worker sees its pipe close, and sweeps before it goes."""
    pool = RewardPool(f"{escapes}:leaves", workers=1, seconds=30)
    mark = mark_of(pool)
    assert judged(pool, "a")[0].status == "ok"
    child = pool._slots[0].child  # pyright: ignore[reportPrivateUsage]
    assert child is not None
    os.close(child.requests)
    assert left_of(mark) == []
    child.requests = os.open(os.devnull, os.O_WRONLY)
    pool.close()


def test_shared_memory_counts(escapes: str) -> None:
    with RewardPool(f"{escapes}:shares", workers=1, seconds=30, memory_bytes=48 << 20) as pool:
        (verdict,) = judged(pool, "a")
    assert verdict.status == "error"
    assert "MiB of shared memory, and may hold 48 MiB" in verdict.message


def test_the_signals_of_a_scheduler_cost_no_answer(escapes: str) -> None:
    with RewardPool(f"{escapes}:signalled", workers=1, seconds=30) as pool:
        assert judged(pool, "a") == [Verdict("ok", 1.0)]


def test_no_descriptor_is_left_open(file: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for text in ("exit", "loop", "close", "good"):
        with RewardPool(f"{file}:odd", workers=2, seconds=0.2) as pool:
            _ = judged(pool, text)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short", "returned 1 values for 2 answers"),
        ("number", "returned 1.0, not a list of 2 numbers"),
        ("nothing", "returned None, not a list of 2 numbers"),
        ("table", "returned {'a': 1.0, 'b': 1.0}, not a list of 2 numbers"),
        ("huge", "returned 67108864 values for 2 answers"),
        ("huge_text", "returned 'xxx"),
        ("huge_message", "ValueError: xxxx"),
    ],
)
def test_a_result_that_is_no_list_of_numbers_is_an_error_for_every_answer(file: str, name: str, message: str) -> None:
    with RewardPool(f"{file}:{name}", workers=1, seconds=PLENTY) as pool:
        verdicts = judged(pool, "a", "b")
    assert [verdict.status for verdict in verdicts] == ["error", "error"]
    assert verdicts[0].message.startswith(message)
    assert len(verdicts[0].message) < 1000


def test_a_function_that_writes_into_our_pipes_is_an_error(file: str) -> None:
    with RewardPool(f"{file}:forge", workers=1, seconds=PLENTY) as pool:
        (verdict,) = judged(pool, "a")
    assert verdict.status == "error"
    assert "bytes, and at most 67108864 are allowed" in verdict.message


def test_a_batch_that_takes_longer_than_one_answer_may_is_judged_in_smaller_parts(file: str) -> None:
    with RewardPool(f"{file}:slow", workers=1, seconds=0.5) as pool:
        assert judged(pool, *"abcd") == [Verdict("ok", 1.0)] * 4  # four at once do not end: taken apart
        child = pid_of(pool)
        assert judged(pool, *"abcd") == [Verdict("ok", 1.0)] * 4
        assert pid_of(pool) == child  # no time limit was passed again


def test_after_some_endless_answers_the_rest_of_the_call_is_not_tried(file: str) -> None:
    with RewardPool(f"{file}:odd", workers=1, seconds=0.05) as pool:
        verdicts = judged(pool, *["loop"] * 40)
    assert {verdict.status for verdict in verdicts} == {"timeout"}
    tried = [verdict for verdict in verdicts if verdict.message.startswith("no reward within")]
    assert len(tried) == GIVE_UP
    assert verdicts[-1].message.startswith("not tried: the 8 answers before it")


def test_answers_are_spread_over_the_workers_and_come_back_in_order(file: str) -> None:
    with RewardPool(f"{file}:pids", workers=3, seconds=PLENTY) as pool:
        assert len({verdict.reward for verdict in judged(pool, *"abcdef")}) == 3
    with RewardPool(f"{file}:exact", 3, PLENTY, ("answer",)) as pool:
        texts = [str(number) for number in range(50)]
        right = [text if int(text) % 7 else "no" for text in texts]
        columns = {"prompts": texts, "completions": texts, "completion_ids": [[1]] * 50, "answer": right}
        assert [v.reward for v in pool.judge(columns, 50)] == [float(number % 7 != 0) for number in range(50)]
        assert pool.judge({"completions": []}, 0) == []


def test_a_large_call_passes_the_pipes(file: str) -> None:
    with RewardPool(f"{file}:exact", 1, PLENTY, ("answer",)) as pool:
        texts = ["é" * 200_000] * 20
        columns = {"prompts": texts, "completions": texts, "completion_ids": [[1]] * 20, "answer": texts}
        assert {verdict.reward for verdict in pool.judge(columns, 20)} == {1.0}


def test_an_interrupted_call_leaves_no_answer_for_the_next(file: str) -> None:
    with RewardPool(f"{file}:odd", workers=1, seconds=PLENTY) as pool:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            _ = judged(pool, "nap")
        signal.signal(signal.SIGALRM, before)
        assert judged(pool, "good") == [Verdict("ok", 1.0)]


def test_workers_end_when_the_trainer_is_killed(file: str) -> None:
    words, said = os.pipe()
    trainer = os.fork()
    if trainer == 0:
        try:
            pool = RewardPool(f"{file}:odd", workers=1, seconds=60)
            _ = judged(pool, "outlive")
            _ = os.write(said, str(pid_of(pool)).encode())
            _ = signal.pause()
        finally:
            os._exit(1)
    os.close(said)
    worker = int(os.read(words, 100))
    os.close(words)
    assert len(group_of(worker)) == 2
    os.kill(trainer, signal.SIGKILL)
    _ = os.waitpid(trainer, 0)
    assert is_gone(worker)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module_y:f", "reward: no_such_module_y:f: there is no module 'no_such_module_y' in this folder"),
        ("gone.py:f", "reward: gone.py:f: there is no file gone.py"),
        (":f", "reward: ':f' is not module:function"),
        ("bad.py:f", r"bad.py:f: does not import: NameError: name 'nothing' is not defined \(bad.py:1: nothing\)"),
        ("needs.py:f", "does not import: ModuleNotFoundError: No module named 'not_there'"),
        ("leaves.py:f", "does not import: SystemExit: 3"),
        ("dies.py:f", r"dies.py:f: does not import: its process ended with code 5 \(last words\)"),
        ("good.py:g", "good.py has no 'g'. It has: f"),
        ("good.py:n", "n has type int, so it is not a function"),
        (
            "good.py:needs",
            r"needs: needs solution, and no column has that name. There are: prompts, .*, answer",
        ),
    ],
)
def test_a_function_that_cannot_be_loaded_is_said_before_the_run(
    target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("nothing")
    Path("needs.py").write_text("import not_there")
    Path("leaves.py").write_text("raise SystemExit(3)")
    Path("dies.py").write_text("import os\nprint('last words', flush=True)\nos._exit(5)")
    Path("good.py").write_text("def f(**c): return []\nn = 3\ndef needs(prompts, solution): return []")
    settings = TaskSettings(name="sort", reward=target)
    with pytest.raises(ConfigError, match=message):
        _ = open_scorer(settings, open_task(settings, 0))


def scored(reward: str, *attempts: Attempt) -> list[Verdict]:
    settings = TaskSettings(name="sort", reward=reward)
    task = open_task(settings, 0)
    scorer = open_scorer(settings, task)
    try:
        return scorer.score(attempts)
    finally:
        scorer.close()


def test_completions_are_text_for_text_and_messages_for_chat(file: str) -> None:
    chat = Problem(({"role": "user", "content": "say hi"},), "hi")
    attempts = [Attempt(chat, "hi", "hi", (1, 2), True), Attempt(Problem("say hi", "hi"), "hi", "hi", (1, 2), True)]
    assert [verdict.reward for verdict in scored(f"{file}:types", *attempts)] == [11.0, 1.0]


def test_a_function_gets_all_that_the_policy_wrote(file: str) -> None:
    problem = Problem("?", "[1]1")
    assert scored(f"{file}:exact", Attempt(problem, "1", "[1]1", (1,), True))[0].reward == 1.0


def test_a_function_gets_only_the_columns_it_names(file: str) -> None:
    with RewardPool(f"{file}:plain", 1, PLENTY, ("level",)) as pool:
        columns = {"completions": ["a", "b"], "prompts": ["", ""], "level": [1, 2], "ended": [True, False]}
        assert [verdict.reward for verdict in pool.judge(columns, 2)] == [11.0, 2.0]


def test_a_function_may_be_a_coroutine(file: str) -> None:
    with RewardPool(f"{file}:later", 1, PLENTY) as pool:
        assert judged(pool, "a") == [Verdict("ok", 2.0)]


def test_numbers_of_other_packages_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "arrays.py"
    path.write_text("import numpy\ndef f(completions, **c): return numpy.arange(len(completions))\n")
    with RewardPool(f"{path}:f", 1, PLENTY) as pool:
        assert [verdict.reward for verdict in judged(pool, "a", "b")] == [0.0, 1.0]


def test_a_module_of_the_folder_may_be_called_like_one_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text("from seed import one\ndef f(completions, **c): return [one] * len(completions)\n")
    Path("seed.py").write_text("one = 1\n")
    assert scored("task:f", Attempt(Problem("?", ""), "", "", (), True)) == [Verdict("ok", 1.0)]

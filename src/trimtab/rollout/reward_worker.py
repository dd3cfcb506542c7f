"""The child process of a reward: loads a function once, then answers calls with one status for each answer.

`reward_process` starts it as a file, not as a module, and it needs the standard library only: it must start fast, also
after a crash. Frames of JSON go over two pipes of its own, so the function may print, or close other files.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import reprlib
import runpy
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

MAX_MESSAGE = 400
"""Characters of a message that are kept; an exception can quote a whole answer."""
GRACE_SECONDS = 30
"""How long past its limit a call may run when no parent is there to end it."""

Call = Mapping[str, Any]
Judgement = tuple[str, float | None, str]
"""Status, reward, message."""


class CannotLoad(Exception):
    """A `module:function` that is not there or does not import."""


class WrongResult(Exception):
    """A function returned something that is not one number or None for each answer."""


def locate(target: str) -> Callable[..., Any]:
    """The function named by `module:function` or `path/to/file.py:function`."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise CannotLoad(f"{target!r} is not module:function. Write for instance my_reward:score.")
    module = _module(target, place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = sorted(n for n in vars(module) if callable(getattr(module, n)) and not n.startswith("_"))
            raise CannotLoad(f"{target}: {place} has no {name!r}. It has: {', '.join(known) or 'no functions'}.")
        found = getattr(found, part)
    if not callable(found):
        raise CannotLoad(f"{target}: {name} has type {type(found).__name__}, so it is not a function.")
    return found


def _module(target: str, place: str) -> ModuleType:
    is_file = place.endswith(".py")
    path = Path(place).resolve()
    if is_file and not path.is_file():
        raise CannotLoad(f"{target}: there is no file {place}.")
    # The import path of a script lacks the current folder; people expect that their module is found there.
    sys.path[:] = [*sys.path, *(p for p in [str(path.parent) if is_file else os.getcwd()] if p not in sys.path)]
    try:
        if not is_file:
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        if error.name and place.startswith(error.name):
            text = f"{target}: there is no module {place!r} in this folder or on the import path."
            raise CannotLoad(text) from error
        raise CannotLoad(f"{target}: does not import: {error_text(error)}.") from error
    except BaseException as error:  # SystemExit too: a script that exits must not end this process
        raise CannotLoad(f"{target}: does not import: {error_text(error)}.") from error


def error_text(error: BaseException, file: str | None = None) -> str:
    """Type, text and the last line of the user's file that an exception passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if (frame.filename == file if file else frame.filename != __file__)]
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line})" if own else ""
    try:
        text = str(error)
    except Exception:  # the user's own exception class may fail to print
        text = "its text cannot be shown"
    return _cut(f"{type(error).__name__}: {_cut(text)}") + where[:MAX_MESSAGE]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


# ------------------------------------------------------------------------------------------------------------- one call


def choose_arguments(function: Callable[..., Any], names: list[str], target: str) -> Callable[[Call], dict[str, Any]]:
    """A function that selects the arguments of a call. Refuses a function that needs one that no call has."""
    offered = ["prompts", "completions", "completion_ids", "ended", *names]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a C function has no signature to read
        return lambda call: dict(call)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [name for name in needed if name not in offered]
    if missing:
        raise CannotLoad(
            f"{target}: needs {', '.join(missing)}, and no column has that name. There are: {', '.join(offered)}."
        )
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    taken = {p.name for p in parameters}
    return lambda call: {name: value for name, value in call.items() if takes_all or name in taken}


def judge(function: Callable[..., Any], arguments: dict[str, Any], count: int) -> list[Judgement]:
    """Call the function on some answers; one status for each."""
    returned = function(**arguments)
    if inspect.isawaitable(returned):
        returned = asyncio.run(_await(returned))
    if isinstance(returned, (str, bytes, Mapping)) or not hasattr(returned, "__len__"):
        raise WrongResult(f"returned {reprlib.repr(returned)}, not a list of {count} numbers")
    if len(returned) != count:
        raise WrongResult(f"returned {len(returned)} values for {count} answers")
    return [judgement(value) for value in returned]


async def _await(returned: Any) -> Any:
    return await returned


def judgement(value: Any) -> Judgement:
    """A finite number is a reward, None abstains, anything else is an error."""
    if value is None:
        return "abstain", None, ""
    if isinstance(value, (str, bytes)):
        return "error", None, _cut(f"returned the text {reprlib.repr(value)} in place of a number")
    try:
        reward = float(value)
    except Exception:  # the user's object decides what its `__float__` raises
        return "error", None, _cut(f"returned {reprlib.repr(value)} in place of a number")
    if reward != reward or reward in (float("inf"), float("-inf")):
        return "error", None, f"returned {reward}; only finite numbers can be learned from"
    return "ok", reward, ""


def load_function(job: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that a job names: one of a known package, or the user's own."""
    target = str(job["target"])
    if target == "math_verify":
        return beside("reward_package.py")["math_judge"]()
    if target.startswith("reasoning_gym."):
        return beside("reward_package.py")["gym_judge"](target.removeprefix("reasoning_gym."), job["options"])
    return locate(target)


# ---------------------------------------------------------------------------------------------------------- the process


def beside(name: str) -> dict[str, Any]:
    """Run a file, named from this folder; returns its functions by name. An import would load all of trimtab."""
    return runpy.run_path(str(Path(__file__).parent / name))


class Line:
    """Frames over the two pipes: four bytes of length, then JSON."""

    def __init__(self, requests: int, results: int) -> None:
        self.requests, self.results = requests, results
        self._same = [(os.fstat(fd).st_dev, os.fstat(fd).st_ino) for fd in (requests, results)]

    def read(self) -> Any:
        (size,) = struct.unpack(">I", self._exactly(4))
        return json.loads(self._exactly(size))

    def write(self, message: Any) -> None:
        self._check()
        body = json.dumps(message).encode()
        frame = memoryview(struct.pack(">I", len(body)) + body)
        while frame:
            frame = frame[os.write(self.results, frame) :]

    def _exactly(self, size: int) -> bytes:
        self._check()
        parts: list[bytes] = []
        while size:
            part = os.read(self.requests, min(size, 1 << 20))
            if not part:  # the parent is gone: end this process and all that it started
                marks = beside("../marks.py")
                marks["end_marked"](marks["REWARD_WORKER"])
                os.killpg(0, signal.SIGKILL)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _check(self) -> None:
        """Exit if our pipes were replaced: a function may close them and open a file under the same number."""
        for fd, same in zip((self.requests, self.results), self._same, strict=True):
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != same:
                os._exit(70)


def limit_memory(memory_bytes: int) -> None:
    """Limit memory, so that a runaway function fails and the machine does not. Some systems have no such limit."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def ignore_signal(_number: int, _frame: object) -> None:
    """Do nothing."""


def run_call(function: Callable[..., Any], take: Callable[[Call], dict[str, Any]], call: Call, count: int) -> Any:
    """Run one call; returns the reply to the parent."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code is not None else None
    try:
        return {"judgements": judge(function, take(call), count)}
    except WrongResult as error:
        return {"wrong": _cut(str(error))}
    except BaseException as error:  # SystemExit and KeyboardInterrupt are one answer's error too
        return {"raised": error_text(error, file)}


def main() -> None:
    """Load the function, say so, then answer calls until the parent is gone."""
    # A scheduler signals every process of a job, but the learner decides when to stop. A handler, not SIG_IGN: an
    # ignored signal would stay ignored in the processes that a reward starts.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ignore_signal)
    line = Line(int(sys.argv[1]), int(sys.argv[2]))
    job = line.read()
    limit_memory(job["memory_bytes"])
    try:
        function = load_function(job)
        take = choose_arguments(function, job["columns"], job["target"])
    except CannotLoad as error:
        return line.write({"failed": str(error)})
    line.write({"ready": True})
    owner = os.getpid()
    while True:
        call = line.read()
        # The parent ends this process at the limit. The alarm is for a parent that was killed; code cannot block it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, job["seconds"] + GRACE_SECONDS)
        reply = run_call(function, take, call["arguments"], call["count"])
        if os.getpid() != owner:  # the function forked, and this is the copy: nobody waits for its reply
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        line.write({"id": call["id"], **reply})


if __name__ == "__main__":
    main()

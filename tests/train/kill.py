"""Runs that are killed, for real: in a forked child, at a chosen write, before it, half-way through it, or after it."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from trimtab.config.train import TrainSettings
from trimtab.train import resume, train
from trimtab.train.record import disk
from trimtab.train.show.progress import Silent

Phase = Literal["before", "half", "after"]


def uninterrupted(settings: TrainSettings, folder: Path, recipe: str) -> None:
    _ = train(settings.model_copy(update={"run_dir": folder}), recipe, progress=Silent())


def go_on(folder: Path) -> None:
    _ = resume(folder, progress=Silent())


def in_child(work: Callable[[], None]) -> int:
    """What the child ended with: 0, or minus the signal that killed it."""
    _, status = os.waitpid(_forked(work), 0)
    return os.waitstatus_to_exitcode(status)


def killed_at(work: Callable[[], None], write: int, phase: Phase) -> Callable[[], None]:
    """The same work, which dies at its n-th write to disk."""

    def fused() -> None:
        _fuse(write, phase)
        work()

    return fused


def count_writes(work: Callable[[], None], note: Path) -> list[str]:
    """What is written in the course of the work, in order."""

    def counted() -> None:
        seen: list[str] = []
        _watch(lambda what, when: seen.append(what) if when == "before" else None)
        work()
        _ = note.write_text("\n".join(seen))

    assert in_child(counted) == 0
    return note.read_text().splitlines()


def killed_after(work: Callable[[], None], seconds: float) -> int:
    """The work, killed from outside after this long wherever it is; 0 if it was faster."""
    child = _forked(work)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _forked(work: Callable[[], None]) -> int:
    """A child process that does the work and ends, 0 if it came through."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def _fuse(write: int, phase: Phase) -> None:
    remaining = [write]

    def burn(_: str, when: str) -> None:
        if when == "before":
            remaining[0] -= 1
        if remaining[0] == -1 and when == phase:
            os.kill(os.getpid(), signal.SIGKILL)

    _watch(burn)


def _watch(seen: Callable[[str, str], None]) -> None:
    """Tell of every write of the trainer, files, lines, renames and removals: before, half-way and after."""
    write, append, replace, remove = disk.write_durably, disk.append_line, os.replace, shutil.rmtree

    def write_watched(path: Path, content: bytes) -> None:
        seen(f"file {path.name}", "before")
        write(path, content[: len(content) // 2])
        seen(f"file {path.name}", "half")
        write(path, content)
        seen(f"file {path.name}", "after")

    def append_watched(path: Path, line: Any) -> None:
        seen(f"line {path.name}", "before")
        whole = path.read_bytes() if path.exists() else b""
        append(path, line)
        done = path.read_bytes()
        _ = path.write_bytes(done[: (len(whole) + len(done)) // 2])
        seen(f"line {path.name}", "half")
        _ = path.write_bytes(done)
        seen(f"line {path.name}", "after")

    def replace_watched(source: Any, target: Any) -> None:
        seen(f"rename {Path(target).name}", "before")
        replace(source, target)
        seen(f"rename {Path(target).name}", "after")

    def remove_watched(path: Any, ignore_errors: bool = False) -> None:
        if not Path(path).is_dir():
            return
        seen(f"remove {Path(path).name}", "before")
        next(iter(sorted(Path(path).iterdir())), Path("nothing")).unlink(missing_ok=True)
        seen(f"remove {Path(path).name}", "half")
        remove(path, ignore_errors=ignore_errors)
        seen(f"remove {Path(path).name}", "after")

    import trimtab.train.record.record as record

    disk.write_durably = write_watched
    disk.append_line = append_watched
    record.append_line = append_watched  # pyright: ignore[reportPrivateImportUsage]
    os.replace = replace_watched  # type: ignore[assignment]
    shutil.rmtree = remove_watched  # type: ignore[assignment]


def random_phase(stream: random.Random) -> Phase:
    return stream.choice(("before", "half", "after"))

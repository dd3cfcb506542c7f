"""The only place that claims a run folder: one process at a time, and nothing is written before it is claimed.

The lock belongs to an open file, so the kernel releases it when the process ends, however it ends.
"""

import fcntl
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from trimtab.errors import ConfigError
from trimtab.train.record.disk import make_folder, writing

LOCK = ".lock"


@contextmanager
def claim_new(run_dir: Path | None, seed: int) -> Generator[Path]:
    """A folder for a new run. One that holds anything is refused: two runs would mix in it."""
    folder = _new_folder(Path("runs"), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-seed{seed}") if run_dir is None else run_dir
    with writing(folder):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"run_dir: {folder} is a file, so a run cannot be written into it. Give a folder.")
    make_folder(folder)
    if not (folder / LOCK).exists():
        _refuse_filled(folder)  # a folder that holds something else gets no lock file
    with claim(folder):
        _refuse_filled(folder)
        yield folder


@contextmanager
def claim(folder: Path) -> Generator[None]:
    """Two processes that train in one folder would write over each other: the second is refused."""
    with writing(folder / LOCK):
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"train: another process is training in {folder}, so two runs would write over each other. Wait for "
                "it, stop it, or give another folder."
            ) from error
        except OSError as error:  # some network disks have no locks; a run without a lock is better than no run
            warnings.warn(
                f"train: {folder} cannot be locked ({error.strerror}), so nothing stops a second run from writing "
                "into it. Make sure that there is none.",
                stacklevel=3,
            )
        yield
    finally:
        os.close(handle)


def _refuse_filled(folder: Path) -> None:
    held = sorted(path.name for path in folder.iterdir() if path.name != LOCK)
    if held:
        raise ConfigError(
            f"run_dir: {folder} already holds {', '.join(held[:4])}{', …' if len(held) > 4 else ''}, so this run "
            "would mix with it. Give another folder, delete this one, or continue its run: "
            f"trimtab train --resume {folder}"
        )


def _new_folder(parent: Path, name: str) -> Path:
    """A folder nobody else has: runs started in the same second get -2, -3, …"""
    make_folder(parent)
    attempt = 1
    while True:
        folder = parent / (name if attempt == 1 else f"{name}-{attempt}")
        with writing(folder):
            try:
                folder.mkdir()
            except FileExistsError:
                attempt += 1
            else:
                return folder

"""The only place of the trainer that writes to disk: whole files and whole folders, or nothing.

A reader, and a run that resumes after a kill at any point, sees the old content or the new one, never half of either.
A refusal of the disk is one sentence with what to do, never a bare OSError.
"""

import errno
import json
import math
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from trimtab.errors import DiskError

DRAFT, OLD = ".draft", ".old"
"""Endings of hidden names: content that is not in place yet, and content that will be deleted."""
ADVICE = {
    errno.ENOSPC: "Make room on the disk.",
    errno.EDQUOT: "Make room within your quota.",
    errno.EROFS: "Give a folder on a disk that can be written to.",
    errno.EACCES: "Give a folder that you may write to.",
    errno.EPERM: "Give a folder that you may write to.",
    errno.ENAMETOOLONG: "Give a shorter name.",
}


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn an error of the system about writing here into one sentence."""
    try:
        yield
    except OSError as error:
        raise DiskError(_refusal(path, error.strerror or str(error), error.errno)) from error
    except Exception as error:
        # The savers of safetensors and tokenizers are written in Rust and hide the system's number in their text.
        hidden_number = re.search(r"\(os error (\d+)\)", str(error))
        if hidden_number is None:
            raise
        number = int(hidden_number[1])
        raise DiskError(_refusal(path, os.strerror(number), number)) from error


def _refusal(path: Path, why: str, number: int | None) -> str:
    shown = str(path) if len(str(path)) < 200 else f"{str(path)[:200]}…"
    advice = ADVICE.get(number or 0, "Look at the disk and the folder's permissions.")
    return (
        f"disk: {shown} cannot be written ({why}), so the run cannot save its work and stops. {advice} What was "
        "written before is whole: trimtab train --resume RUN continues from the last checkpoint, if there is one."
    )


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file. At every moment the old or the new content is there, never half of either."""
    draft = hidden(path, DRAFT)
    with writing(path):
        write_durably(draft, content.encode() if isinstance(content, str) else content)
        os.replace(draft, path)
        sync_folder(path.parent)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    write_whole(path, json.dumps(plain(content), indent=2, sort_keys=True) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name, as safetensors. Tied ones are written once per name."""
    from safetensors.torch import save

    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_whole(path, save(content, metadata={"format": "pt"}))


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """Append one line in one write. Only a kill inside that write can leave half of it, as the file's last line."""
    with writing(path), path.open("ab") as file:
        _ = file.write((json.dumps(plain(line)) + "\n").encode())


def make_folder(path: Path) -> None:
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


def hidden(path: Path, ending: str) -> Path:
    """The name beside `path` under which its content waits: `.step_000002.draft`."""
    return path.with_name(f".{path.name}{ending}")


@contextmanager
def whole_folder(path: Path) -> Generator[Path]:
    """A draft folder to fill; when the block ends without an error, the draft replaces `path`.

    If `path` exists, it is renamed first: a kill between the two renames leaves both contents under hidden names, and
    `restore_folder` puts one back. This never happens to checkpoints: each has a name of its own.
    """
    draft, old = hidden(path, DRAFT), hidden(path, OLD)
    with writing(path):
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    yield draft
    with writing(path):
        for one in draft.rglob("*"):
            (sync_folder if one.is_dir() else sync_file)(one)
        sync_folder(draft)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(path, old)
        os.replace(draft, path)
        sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(path: Path) -> None:
    """After a kill: put the old content back where nothing is in its place, and delete what is left over."""
    draft, old = hidden(path, DRAFT), hidden(path, OLD)
    with writing(path):
        if not path.exists() and old.is_dir():
            os.replace(old, path)
    for leftover in (draft, old):
        shutil.rmtree(leftover, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Hide the folder by one rename, then delete it: a kill in between leaves no half folder under its name."""
    old = hidden(path, OLD)
    with writing(path):
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path, old)
    shutil.rmtree(old, ignore_errors=True)


def plain(content: object) -> object:
    """JSON has no nan and no infinity: such numbers become null, which no reader mistakes for a value."""
    if isinstance(content, Mapping):
        return {str(key): plain(value) for key, value in content.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if isinstance(content, list | tuple):
        return [plain(value) for value in content]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return str(content) if isinstance(content, Path) else content


def write_durably(path: Path, content: bytes) -> None:
    """Write bytes. They are on the disk when this returns."""
    with path.open("wb") as file:
        _ = file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Put what was written to a file on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Put the renames in a folder on the disk. Some systems cannot do that; then it does nothing."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)

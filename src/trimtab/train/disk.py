"""The only place of the trainer that writes to disk: whole files and whole folders, or nothing.

A reader, and a run that resumes after a kill at any point, sees the old content or the new one, never half of either.
"""

import json
import math
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor


def write_whole(path: Path, content: str | bytes) -> None:
    """The new file or the old one, never half of either."""
    draft = path.with_name(f".{path.name}.draft")
    write_durably(draft, content.encode() if isinstance(content, str) else content)
    os.replace(draft, path)


def write_json(path: Path, content: Mapping[str, object]) -> None:
    write_whole(path, json.dumps(plain(content), indent=2, sort_keys=True) + "\n")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors by name, as safetensors; tied ones are written out each."""
    from safetensors.torch import save

    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_whole(path, save(content, metadata={"format": "pt"}))


def append_line(path: Path, line: Mapping[str, object]) -> None:
    """One line in one write; only a kill inside that write can leave half of it, as the file's last line."""
    with path.open("ab") as file:
        _ = file.write((json.dumps(plain(line)) + "\n").encode())


@contextmanager
def whole_folder(path: Path) -> Generator[Path]:
    """A draft folder to fill; when the block ends well it takes the place of `path`, in one rename."""
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    yield draft
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        os.replace(path, old)
    os.replace(draft, path)
    _sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Out of sight in one rename, then deleted: a kill in between leaves no half folder under its name."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    os.replace(path, old)
    shutil.rmtree(old, ignore_errors=True)


def keep_lines(path: Path, *, before_step: int) -> None:
    """Cut a file of JSON lines back to those of earlier steps; a torn last line goes too."""
    if not path.is_file():
        return
    kept: list[bytes] = []
    for line in path.read_bytes().splitlines():
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            break
        if step >= before_step:
            break
        kept.append(line + b"\n")
    write_whole(path, b"".join(kept))


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
    """Bytes that are on the disk when this returns."""
    with path.open("wb") as file:
        _ = file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Renames are durable once their folder is; not every system lets one say so."""
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

"""The only place that cuts the logs of a run: files of JSON lines, each with its step.

A line that cannot be read never costs other lines. What is removed from a log is kept beside it, unless it will be
written again.
"""

import json
from pathlib import Path

from trimtab.train.record.disk import sync_file, write_whole, writing


def cut_lines(path: Path, *, before_step: int) -> str:
    """Keep the lines of earlier steps; later ones will be written again. Returns a sentence if a line was damaged.

    A kill inside a write leaves half a line at the end of the file: it is removed silently. Any other line that cannot
    be read was damaged by something else, so the old file is kept beside, under a new name.
    """
    if not path.is_file():
        return ""
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    steps = [_step(line) for line in lines]
    if steps and steps[-1] is None and not content.endswith(b"\n"):
        del lines[-1], steps[-1]
    damaged = [number for number, step in enumerate(steps, 1) if step is None]
    kept = b"".join(
        line.rstrip(b"\r\n") + b"\n"
        for line, step in zip(lines, steps, strict=True)
        if step is not None and step < before_step
    )
    if kept == content:
        return ""
    said = ""
    if damaged:
        backup = _free_name(path)
        write_whole(backup, content)
        said = (
            f"{path.name}: line {damaged[0]} cannot be read"
            f"{f', and {len(damaged) - 1} more' if len(damaged) > 1 else ''}, so the log lacks "
            f"{'it' if len(damaged) == 1 else 'them'}. The file as it was is kept as {backup.name}."
        )
    write_whole(path, kept)
    return said


def has_trained(path: Path) -> bool:
    """Whether a log has a line of a trained step. A line that cannot be read counts as one."""
    if not path.is_file():
        return False
    return any(_step(line) is None or b'"train/' in line for line in path.read_bytes().splitlines())


def sync_lines(path: Path) -> None:
    """Put a log on the disk."""
    if path.is_file():
        with writing(path):
            sync_file(path)


def _step(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _free_name(path: Path) -> Path:
    number = 1
    while (name := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return name

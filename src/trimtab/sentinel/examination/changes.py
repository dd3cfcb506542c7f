"""Which lines a range of commits changed: the only place that reads a diff."""

import re
from pathlib import Path

from trimtab.errors import AdapterError
from trimtab.sentinel.loading import CouldNotLoad
from trimtab.sentinel.loading.tree import git

_HUNK = re.compile(rb"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def changed_lines(root: str, span: str) -> dict[str, list[list[int]]]:
    """Line ranges of the newer side by file: {"a.py": [[3, 5], [9, 9]]}; a pure deletion touches the line before it."""
    if span.startswith("-") or ".." not in span:
        raise AdapterError(f"check: --changed {span} is not a range of commits. Write BASE..HEAD.")
    try:
        diff = git(Path(root), "diff", "--unified=0", "--no-color", "--no-ext-diff", span, "--", "*.py")
    except CouldNotLoad as error:
        raise AdapterError(f"check: --changed {span}: {error}") from error
    found: dict[str, list[list[int]]] = {}
    file = ""
    for line in diff.splitlines():
        if line.startswith(b"+++ "):
            file = line[4:].decode(errors="replace").strip().removeprefix("b/").strip('"')
        hunk = _HUNK.match(line)
        if hunk and file != "/dev/null":
            first, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(file, []).append([first, first + max(count, 1) - 1])
    return found

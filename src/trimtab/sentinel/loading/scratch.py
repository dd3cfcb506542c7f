"""A scratch folder for code that is imported: the only place that changes the current folder.

A framework may write logs into the current folder while it is imported. That folder is yours.
"""

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Generator


@functools.cache
def _folder(_process: int) -> tempfile.TemporaryDirectory[str]:
    """One folder per process, removed at its end: a target may remember the path."""
    return tempfile.TemporaryDirectory(prefix="trimtab-", ignore_cleanup_errors=True)


@contextlib.contextmanager
def in_scratch_folder() -> Generator[None]:
    """Run the inside in a scratch folder. The import path stays what it was, also where it is relative."""
    here = os.getcwd()
    relative = {os.path.join(here, one) if one else here: one for one in sys.path if not os.path.isabs(one)}
    sys.path[:] = [one if os.path.isabs(one) else os.path.join(here, one) if one else here for one in sys.path]
    os.chdir(_folder(os.getpid()).name)
    try:
        yield
    finally:
        os.chdir(here)
        sys.path[:] = [relative.get(one, one) for one in sys.path]

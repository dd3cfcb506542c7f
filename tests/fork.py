"""A process that has torch already and has forgotten Trimtab: a fork takes a tenth of the time of a new interpreter."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import TextIO


def run_in_fork(code: str, forgotten: Sequence[str] = ()) -> str:
    """What `code` prints in a fork that imports Trimtab, and the packages named, as if for the first time.

    No type checker is put into what it imports.
    """
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        with os.fdopen(ours, "w") as out:
            status = _run(code, ("trimtab", *forgotten), out)
        os._exit(status)
    os.close(ours)
    with os.fdopen(theirs) as words:
        said = words.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, said
    return said


def _run(code: str, forgotten: tuple[str, ...], out: TextIO) -> int:
    sys.stdout = sys.stderr = out
    sys.meta_path[:] = [finder for finder in sys.meta_path if "jaxtyping" not in type(finder).__module__]
    for name in [name for name in sys.modules if name.split(".")[0] in forgotten]:
        del sys.modules[name]
    try:
        exec(compile(code, "fork", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc(file=out)
        return 1
    return 0

"""The command line: the only place that prints for people and turns errors into exit codes.

0 fine, 1 findings, 2 could not run.
"""

import os
import sys
import warnings

from trimtab.cli import training as _training  # registers its commands
from trimtab.cli.app import app
from trimtab.config.plain import cut
from trimtab.errors import RankError, TrimtabError
from trimtab.processor import limit_instructions


def main() -> None:
    """Run the command; a refusal is one message on stderr, never a traceback."""
    warnings.showwarning = _show
    limit_instructions()
    try:
        app()
    except TrimtabError as error:
        if isinstance(error, RankError) or os.environ.get("RANK", "0") == "0":  # the others would say the same again
            print(f"trimtab: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a name that is too long, a full disk, a folder that is not yours
        if error.filename is None:
            raise
        print(f"trimtab: {cut(str(error.filename))}: the system refuses it ({error.strerror}).", file=sys.stderr)
        sys.exit(2)


def _show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    print(f"trimtab: {message}", file=sys.stderr)


_ = _training
__all__ = ["app", "main"]

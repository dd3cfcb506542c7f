"""One bad or unusual input, what is expected of it, and what became of it.

refused   one of our sentences, and it names what is wrong
right     accepted, and it means exactly what the canonical input means
silent    accepted, but it was to be refused, or it means something else
raw       a traceback of Python's, torch's or pydantic's own
vague     one of our errors, but its sentence does not name what is wrong
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trimtab.errors import TrimtabError

OUTCOMES = ("refused", "right", "silent", "raw", "vague")


@dataclass(frozen=True)
class Row:
    """`make` is called; `says` is what the refusal names, or None where the input is to be accepted."""

    name: str
    make: Callable[[], Any]
    says: str | None = None
    means: Any = None
    """What an accepted input gives, compared by ==."""


def outcome(row: Row) -> tuple[str, str]:
    """What became of it, and the words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = row.make()
        except TrimtabError as error:
            return _refusal(row, str(error))
        except Exception as error:
            return "raw", f"{type(error).__name__}: {error}"
    if row.says is not None:
        return "silent", f"accepted, gives {result!r:.200}"
    return ("right", "") if result == row.means else ("silent", f"gives {result!r:.300}, not {row.means!r:.300}")


def _refusal(row: Row, message: str) -> tuple[str, str]:
    if row.says is None:
        return "silent", f"refused although it has one obvious meaning: {message}"
    ours = ": " in message and message.rstrip().endswith((".", "?", "…"))
    return ("refused" if ours and row.says in message else "vague"), message

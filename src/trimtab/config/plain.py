"""The only place that turns text into plain tables: TOML files, and the values of overrides.

What comes out can be shown, stored and passed on: bounded in size and depth, whole numbers of 64 bits, real text.
"""

import reprlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from trimtab.errors import ConfigError

MAX_BYTES = 4 << 20
"""A run file has some kilobytes. The bound also ends the reading of a device that never ends."""
MAX_DEPTH = 32
"""Tables and lists inside each other; a run file needs six."""
MAX_SHOWN = 80
"""Characters of a value in a message."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, or a sentence about why not."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"{path}: is longer than {MAX_BYTES >> 20} MiB, so it is not a run file. Name a TOML file."
            )
        return _parse(content.decode("utf-8-sig"), str(path))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file. Name a TOML run file.") from error
    except UnicodeDecodeError as error:
        text = f"{path}: is not TOML: byte {error.start} is not UTF-8. Save it as UTF-8."
        raise ConfigError(text) from error
    except OSError as error:  # a folder, no permission, a name that is too long, links that lead in a circle
        raise ConfigError(f"{cut(str(path))}: cannot be read ({error.strerror}). Name a TOML run file.") from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{cut(str(path))!r}: is not a file name ({error}).") from error


def parse_value(text: str, where: str) -> Any:
    """A TOML value; a bare word is a string, null is nothing."""
    if "\n" in text or "\r" in text:
        raise ConfigError(f"{where}: has more than one line, so it is not clear what belongs to the value. Write one.")
    if text in ("null", "None"):
        return None
    try:
        return _parse(f"value = {text}", where)["value"]
    except NotToml:
        check_plain(text, where)
        return text


class NotToml(ConfigError):
    """Text that does not follow TOML's grammar."""


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise NotToml(f"{where}: is not TOML ({error}).") from error
    except RecursionError as error:
        raise ConfigError(_too_deep(where)) from error
    except ValueError as error:  # a number with more digits than Python reads
        raise ConfigError(f"{where}: holds a number that cannot be read ({error}).") from error
    check_plain(table, where)
    return table


def check_plain(value: Any, where: str) -> None:
    """Refuse what no setting can be and what would break later: in a message, a file name, a record."""
    waiting: list[tuple[Any, tuple[str, ...]]] = [(value, ())]
    while waiting:
        one, path = waiting.pop()
        if len(path) > MAX_DEPTH:
            raise ConfigError(_too_deep(where))
        if isinstance(one, dict):
            for key, inner in cast("dict[str, Any]", one).items():
                waiting += [(key, (*path, "a key")), (inner, (*path, str(key)))]
        elif isinstance(one, list):
            waiting += [(inner, (*path, str(place))) for place, inner in enumerate(cast("list[Any]", one))]
        elif isinstance(one, int) and one.bit_length() > 63:
            raise ConfigError(
                f"{where}: {_named(path)}is a number of {one.bit_length()} bits; 64 are read. Write a smaller one."
            )
        elif isinstance(one, str) and ("\0" in one or any("\ud800" <= character <= "\udfff" for character in one)):
            raise ConfigError(f"{where}: {_named(path)}{shown(one)} holds a character that is not text. Leave it out.")


def _named(path: tuple[str, ...]) -> str:
    return f"{cut('.'.join(path))} = " if path else ""


def _too_deep(where: str) -> str:
    return f"{where}: nests tables or lists more than {MAX_DEPTH} deep. No setting needs that. Write it flat."


def shown(value: Any) -> str:
    """A value for a message: never long, and never an error of its own."""
    text = reprlib.repr(cast("object", value)) if isinstance(value, Mapping | list | tuple) else repr(value)
    return cut(text)


def cut(text: str) -> str:
    """Text for a message: its beginning, and how much there is."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text)} characters)"

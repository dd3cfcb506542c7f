"""Which files of the frameworks' repositories are example configurations, and whether an option of one was dropped.

A second reader lists each file's options without the converter: bash for scripts, YAML's own nodes, TOML's tables,
Python's tokens. Every name it finds must have been told, and every value must be the one that was read.
"""

import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.convert.real import shell
from tests.convert.real.reading import ENTRIES, value

from trimtab.convert import Converted, convert
from trimtab.convert.source import read
from trimtab.errors import ConfigError


@dataclass(frozen=True)
class Examples:
    """Where a framework keeps its examples: folders, a file's ending, and a pattern that one for RL holds."""

    title: str
    folders: tuple[str, ...]
    ending: str
    holds: str


EXAMPLES = {
    "verl": Examples("verl", ("examples",), ".sh", r"main_ppo|fully_async_main"),
    "skyrl": Examples("SkyRL", ("examples",), ".sh", r"trainer\.algorithm\."),
    "areal": Examples("AReaL", ("examples",), ".yaml", r"^\s+eps_clip:"),
    "openrlhf": Examples("OpenRLHF", ("examples",), ".sh", r"train_ppo_ray"),
    "slime": Examples("slime", ("scripts", "examples"), ".sh", r"train(_async)?\.py"),
    "nemo_rl": Examples("NeMo-RL", ("examples",), ".yaml", r"^(grpo|loss_fn):"),
    "trl": Examples("TRL", ("examples",), ".py", r"GRPOConfig\("),
    "prime_rl": Examples("prime-rl", ("examples", "configs"), ".toml", r"^\[(trainer|orchestrator|loss)"),
}


@dataclass
class Count:
    """What became of a framework's files."""

    title: str
    files: int = 0
    converted: int = 0
    read_twice: int = 0
    options: int = 0
    unknown: int = 0
    refused: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def files(framework: str, folder: Path) -> Iterator[Path]:
    """The example configurations in a checkout."""
    asked = EXAMPLES[framework]
    for place in asked.folders:
        for path in sorted((folder / place).rglob(f"*{asked.ending}")):
            if re.search(asked.holds, path.read_text(encoding="utf-8", errors="ignore"), re.MULTILINE):
                yield path


def count(framework: str, folder: Path) -> Count:
    """Convert every example, and compare its options with what the second reader finds."""
    found = Count(EXAMPLES[framework].title)
    for path in files(framework, folder):
        name = path.relative_to(folder).as_posix()
        found.files += 1
        try:
            made = convert(framework, path)
        except ConfigError as error:
            found.refused.append(f"{name}: {error}")
            continue
        found.converted += 1
        found.options += len(made.told)
        found.unknown += made.count("unknown")
        second = second_reading(framework, path)
        found.read_twice += bool(second)
        found.unread += [] if second else [name]
        found.dropped += [f"{name}: {said}" for said in dropped(second, made, path)]
    return found


def second_reading(framework: str, path: Path) -> dict[str, Any]:
    """The options of a file by name, read without the converter; empty where that cannot be done."""
    match path.suffix:
        case ".sh":
            given = shell.read(path, ENTRIES[framework])
            return {name if "." in name else name.replace("-", "_"): word for name, word in given.items()}
        case ".yaml":
            return dict(_nodes(yaml.compose(path.read_text(encoding="utf-8")), ""))
        case ".toml":
            return dict(_leaves(tomllib.loads(path.read_text(encoding="utf-8")), ""))
        case _:
            return dict.fromkeys(_keywords(path.read_text(encoding="utf-8"), "GRPOConfig"), UNKNOWN)


UNKNOWN = object()
"""A value that the second reader does not have."""


def _nodes(node: yaml.Node | None, start: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, held in node.value:
            under = key.value if not start else start if key.value == "<<" else f"{start}.{key.value}"
            yield from _nodes(held, under)
    elif start:
        yield start, UNKNOWN


def _leaves(table: Any, start: str) -> Iterator[tuple[str, Any]]:
    if isinstance(table, dict) and table:
        for name, held in table.items():
            yield from _leaves(held, f"{start}.{name}" if start else name)
    else:
        yield start, UNKNOWN


def _keywords(text: str, called: str) -> Iterator[str]:
    """Names before an `=` in the brackets of every call of this name."""
    words = [one for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.string.strip()]
    depth = 0
    for before, one, after in zip(words, words[1:], words[2:], strict=False):
        if depth == 0 and (before.string != called or one.string != "("):
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(one.string, 0)
        if depth == 1 and one.type == tokenize.NAME and after.string == "=" and before.string in ("(", ","):
            yield one.string


def dropped(second: dict[str, Any], made: Converted, path: Path) -> list[str]:
    """Options that nobody told of, and values that are not what was handed over."""
    told = {one.given.key: one.given for one in made.told}
    times = Counter(one.key for one in read(path))
    said = [f"{key} is not told" for key in second if key not in told]
    for key, found in second.items():
        given = told.get(key)
        if given is None or found is UNKNOWN or times[key] > 1 or given.depends or "$" in str(given.value):
            continue
        if not _same(found, given.value):
            said.append(f"{key} is {found!r}, and was read as {given.value!r}")
    return said


def _same(word: Any, told: Any) -> bool:
    """A word and what it was read as. The converter takes `none` for null, and leaves tables as they are written."""
    word = word[0] if isinstance(word, list) and len(word) == 1 else word
    if isinstance(word, str) and ((word.lower() in ("", "none") and told is None) or word.strip("'\"") == str(told)):
        return True
    return value(word) == told

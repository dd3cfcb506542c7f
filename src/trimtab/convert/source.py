"""The only place that reads another framework's configuration: YAML, TOML, JSON, shell scripts, Python files, flags.

Scripts and Python files are read as text. Nothing is executed, imported or unpickled. What cannot be known without
running it (a command's output, an argument of the script) is said to be unknown.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from trimtab.convert.given import Given, number
from trimtab.convert.shell import from_shell, from_words
from trimtab.errors import ConfigError


def read(source: str | Path, flags: tuple[str, ...] = ()) -> list[Given]:
    """All options of a file, then those of flags; the last one of a name counts, and the others are given too."""
    found: list[Given] = []
    if str(source):
        path = Path(source)
        if not path.is_file():
            raise ConfigError(f"convert: {path} is no file. Give a configuration file, or flags after --.")
        found += _read_file(path)
    return [*found, *from_words(list(flags), line=0)]


def _read_file(path: Path) -> list[Given]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"convert: {path} is not a text file ({error.reason}).") from error
    match path.suffix.lower():
        case ".yaml" | ".yml":
            return _flat(_yaml(text, path))
        case ".toml":
            return _flat(_toml(text, path))
        case ".json":
            return _flat(json.loads(text))
        case ".py":
            return _from_python(text, path)
        case ".sh" | ".bash" | ".sbatch" | ".slurm" | "":
            return from_shell(text)
        case other:
            raise ConfigError(
                f"convert: {path} ends in {other}, which is not read here. Give .yaml, .toml, .json, .sh or .py."
            )


def _yaml(text: str, path: Path) -> Any:
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("convert: YAML needs PyYAML, which is not installed. Run: pip install pyyaml") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"convert: {path} is not plain YAML, and only plain YAML is read: {error}") from error


def _toml(text: str, path: Path) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"convert: {path} is not TOML: {error}") from error


def _flat(table: Any, prefix: str = "") -> list[Given]:
    """Dotted keys of nested tables; `${a.b}` is looked up in the same file."""
    plain = dict(_leaves(table, prefix))
    return [Given(key, _looked_up(value, plain)) for key, value in plain.items()]


def _leaves(table: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(table, Mapping) and table:
        for name, value in cast("Mapping[Any, Any]", table).items():
            yield from _leaves(value, f"{prefix}.{name}" if prefix else str(name))
    elif prefix:
        yield prefix, table


def _looked_up(value: Any, plain: Mapping[str, Any], depth: int = 0) -> Any:
    if isinstance(value, str) and depth < 5 and (found := re.fullmatch(r"\$\{([\w.]+)\}", value)):
        return _looked_up(plain.get(found[1], value), plain, depth + 1)
    return number(value) if isinstance(value, str) else value


def _from_python(text: str, path: Path) -> list[Given]:
    """Keywords of every call of a name that ends in Config, where they are plain values."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"convert: {path} is not Python that can be read: {error}") from error
    names = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: list[Given] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called.endswith(("Config", "Arguments")) and called not in ("LoraConfig", "BitsAndBytesConfig"):
            found += [Given(one.arg, _literal(one.value, names), one.value.lineno) for one in node.keywords if one.arg]
            found += [Given("trainer", called, node.lineno)] if called == "GMPOConfig" else []
    if not found:
        raise ConfigError(f"convert: {path} calls no …Config(…) with options, so there is nothing to read.")
    return found


def _literal(node: ast.AST, names: Mapping[str, ast.AST]) -> Any:
    node = names.get(node.id, node) if isinstance(node, ast.Name) else node
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return f"${{{ast.unparse(node)}}}"

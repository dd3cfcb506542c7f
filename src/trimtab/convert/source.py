"""The only place that reads another framework's configuration: YAML, TOML, JSON, shell scripts, Python files, flags.

Scripts and Python files are read as text. Nothing is executed, imported or unpickled. What cannot be known without
running it (a command's output, an argument of the script) is said to be unknown.
"""

import ast
import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trimtab.errors import ConfigError


@dataclass(frozen=True)
class Given:
    """One option as it was written."""

    key: str
    value: Any
    line: int = 0
    """Where it stands in its file; 0: not known."""

    @property
    def is_known(self) -> bool:
        """Whether its value can be known without running anything."""
        return not (isinstance(self.value, str) and ("$" in self.value or "`" in self.value))


def read(source: str | Path, flags: tuple[str, ...] = ()) -> list[Given]:
    """All options of a file, then those of flags; the last one of a name counts, and the others are given too."""
    found: list[Given] = []
    if str(source):
        path = Path(source)
        if not path.is_file():
            raise ConfigError(f"convert: {path} is no file. Give a configuration file, or flags after --.")
        found += _read_file(path)
    return [*found, *_from_words(list(flags), line=0)]


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
            return _from_shell(text)
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
    return _number(value) if isinstance(value, str) else value


# ---------------------------------------------------------------------------------------------------------------- shell

ASSIGNMENT = re.compile(r"^(?:export\s+|local\s+|readonly\s+)*([A-Za-z_]\w*)=(.*)$", re.DOTALL)
ONE_WORD = re.compile(r"\$\(\(.*?\)\)|\$\{[^{}]*\}|\"[^\"]*\"|'[^']*'")
"""What may hold a space and is still one word."""
ARRAY = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\+?=\(")
OPTION = re.compile(r"^(\+{0,2}|~)([A-Za-z_][\w-]*(?:[./][\w-]+)+|[a-z_]\w*)=(.*)$", re.DOTALL)


def _from_shell(text: str) -> list[Given]:
    """Options in calls and arrays of a script, with variables that the script itself sets."""
    known: dict[str, str] = {}
    found: list[Given] = []
    inside = False
    for line, words in _commands(text):
        if inside or ARRAY.match(words):
            opens = not inside
            body = words.split("(", 1)[1] if opens else words
            inside = not _closes(body)
            found += _from_words(_split(body.rsplit(")", 1)[0] if not inside else body, known), line)
            continue
        bare = words.strip()
        single = ASSIGNMENT.match(bare)
        if single and not re.search(r"\s", ONE_WORD.sub("", ONE_WORD.sub("", single[2].strip()))):
            known[single[1]] = _substituted(single[2].strip().strip("\"'"), known)
            continue
        found += _from_words(_split(words, known), line)
    return found


def _closes(body: str) -> bool:
    return body.rstrip().endswith(")") and not body.rstrip().endswith("\\)") and body.count("(") < body.count(")")


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, without comments."""
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*$", "", line) if line.count('"') % 2 == 0 else line
        start = start or number
        if bare.rstrip().endswith("\\"):
            held += bare.rstrip()[:-1] + " "
            continue
        if (held + bare).strip():
            yield start, held + bare
        held, start = "", 0
    if held.strip():
        yield start, held


def _split(words: str, known: Mapping[str, str]) -> list[str]:
    try:
        parts = shlex.split(words, comments=False, posix=True)
    except ValueError:  # a quote that ends on another line
        parts = words.replace('"', " ").replace("'", " ").split()
    found: list[str] = []
    for part in parts:
        told = _substituted(part, known)
        found += told.split() if told != part and part.startswith("$") and " " in told else [told]
    return found


VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^${}]*|\"[^\"]*\"))?\}|\$(\w+)")
SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")


def _substituted(text: str, known: Mapping[str, str]) -> str:
    """Variables by what the script sets them to, or by their default; plain sums are worked out."""
    for _ in range(6):
        before = text
        text = VARIABLE.sub(lambda m: known.get(m[1] or m[3], m[2] if m[2] is not None else m[0]).strip("\"'"), text)
        text = SUM.sub(lambda m: _worked_out(m[1], known) or m[0], text)
        if text == before:
            break
    return text


def _worked_out(sum_: str, known: Mapping[str, str]) -> str | None:
    """Whole numbers with + - * / % only."""
    told = re.sub(r"[A-Za-z_]\w*", lambda m: known.get(m[0], m[0]), sum_.replace("$", ""))
    try:
        return str(_sum(ast.parse(told.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _sum(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_sum(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _sum(node.left), _sum(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div() | ast.FloorDiv():
                return left // right
            case ast.Mod():
                return left % right
            case _:
                pass
    raise ValueError(ast.dump(node))


def _from_words(words: list[str], line: int) -> list[Given]:
    """`a.b=1`, `--a-b 1 2`, `--a-b=1` and `--a-b` in the words of a command."""
    found: list[Given] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            while not equals and place < len(words) and not _begins(words[place]):
                values.append(words[place])
                place += 1
            if re.fullmatch(r"[A-Za-z][\w.-]*", name):
                told = [_number(one) for one in values]
                found.append(
                    Given(name.replace("-", "_"), True if not told else told[0] if len(told) == 1 else told, line)
                )
        elif (option := OPTION.match(word)) and ("." in option[2] or "/" in option[2]):
            found.append(Given(option[2], _number(option[3]), line))
    return found


def _begins(word: str) -> bool:
    is_flag = word.startswith("-") and not re.fullmatch(r"-\d.*", word)
    is_array = word.startswith("${") and "[@]" in word
    return (
        is_flag
        or is_array
        or word in ("\\", "|", "&&", "2>&1", ";", ">")
        or bool(OPTION.match(word) and "." in word.split("=")[0])
    )


def _number(text: str) -> Any:
    """A word as the number, switch or text it stands for."""
    bare = text.strip().strip("\"'")
    if bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    if bare.lower() in ("null", "none", "~", ""):
        return None
    for kind in (int, float):
        try:
            return kind(bare)
        except ValueError:
            continue
    if bare.startswith("[") and bare.endswith("]"):
        return [_number(one) for one in bare[1:-1].split(",") if one.strip()]
    return bare


# --------------------------------------------------------------------------------------------------------------- python


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

"""The only place that reads the words of a command: options in scripts, in arrays and in flags.

Scripts are read as text, branch by branch; nothing of them is executed.
"""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from trimtab.convert.given import Given, number

ASSIGNMENT = re.compile(r"^(?:export\s+|local\s+|readonly\s+)*([A-Za-z_]\w*)=(.*)$", re.DOTALL)
DEFAULTED = re.compile(r"^:\s+\"?\$\{(\w+):?=(.*)\}\"?\s*$")
"""`: "${NAME:=value}"`, which sets a variable that the user has not set."""
ONE_WORD = re.compile(r"\$\(\(.*?\)\)|\$\{[^{}]*\}|\"[^\"]*\"|'[^']*'")
"""What may hold a space and is still one word."""
DECLARES = ("export", "local", "readonly", "declare", "typeset", "env", "then", "else", "do", "&&", ";")
ARRAY = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\+?=\(")
OPTION = re.compile(r"^(\+{0,2}|~)([A-Za-z_][\w-]*(?:[./@][\w-]+)+|[a-z_]\w*)=(.*)$", re.DOTALL)
OPENS, CLOSES = re.compile(r"^\s*(if|case)\b"), re.compile(r"(?:^|[\s;])(?:fi|esac)\b")
TURNS = re.compile(r"^\s*(else|elif)\b|;;\s*$")


@dataclass
class _Known:
    """Variables that the script sets: as the last branch of each choice leaves them, and as the first one does."""

    last: dict[str, str] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    _choices: list["_Choice"] = field(default_factory=list)

    def follow(self, words: str) -> None:
        """See a choice begin, turn to its next branch, or end."""
        if OPENS.match(words):
            self._choices.append(_Choice(dict(self.last), dict(self.first), is_case=words.strip().startswith("case")))
        if self._choices and TURNS.search(words):
            choice = self._choices[-1]
            choice.earlier |= {name: value for name, value in self.last.items() if choice.last.get(name) != value}
            choice.has_else = choice.has_else or not words.strip().startswith("elif")
            self.last = dict(choice.last)
        for _ in CLOSES.findall(words):
            if self._choices:
                self._end(self._choices.pop())

    def _end(self, choice: "_Choice") -> None:
        for name, value in choice.earlier.items():
            if self.last.get(name) == choice.last.get(name):
                self.last[name] = value
        if not (choice.has_else or choice.is_case):
            self.first |= choice.first

    def put(self, name: str, value: str) -> None:
        if not any(name in choice.earlier for choice in self._choices):
            self.first[name] = substituted(value, self.first)
        before, self.last[name] = self.last.get(name), substituted(value, self.last)
        if (self._choices and before != self.last[name]) or self.doubtful & _names(value):
            self.doubtful.add(name)
        elif not self._choices:
            self.doubtful.discard(name)

    def options(self, words: str, line: int, *, inside: bool = False) -> list[Given]:
        found = from_words(_split(words, self.last, self.doubtful), line, inside=inside)
        firsts = {one.key: one.value for one in from_words(_split(words, self.first), line, inside=inside)}
        return [
            replace(one, other=firsts[one.key]) if firsts.get(one.key, one.value) != one.value else one for one in found
        ]


class _Doubtful(str):
    """A word that holds a variable which another branch may set to something else."""


@dataclass
class _Choice:
    """An `if` or `case` that is being read: what was set before it, and in its branches so far."""

    last: dict[str, str]
    first: dict[str, str]
    is_case: bool
    earlier: dict[str, str] = field(default_factory=dict)
    has_else: bool = False


def from_shell(text: str) -> list[Given]:
    """Options in calls and arrays of a script, with variables that the script itself sets."""
    known = _Known()
    found: list[Given] = []
    inside = False
    for line, words in _commands(text):
        if not inside:
            known.follow(words)
        if inside or ARRAY.match(words):
            opens = not inside
            body = words.split("(", 1)[1] if opens else words
            inside = not _closes(body)
            found += known.options(body.rsplit(")", 1)[0] if not inside else body, line, inside=True)
            continue
        bare = words.strip()
        if own := DEFAULTED.match(bare):
            if not known.last.get(own[1]):
                known.put(own[1], own[2].strip("\"'"))
            continue
        single = ASSIGNMENT.match(bare)
        if single and not re.search(r"\s", ONE_WORD.sub("", ONE_WORD.sub("", single[2].strip()))):
            known.put(single[1], single[2].strip().strip("\"'"))
            continue
        found += known.options(words, line)
    return found


def _closes(body: str) -> bool:
    return body.rstrip().endswith(")") and not body.rstrip().endswith("\\)") and body.count("(") < body.count(")")


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations, without comments."""
    held, start = "", 0
    for place, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*$", "", line) if line.count('"') % 2 == 0 else line
        start = start or place
        if bare.rstrip().endswith("\\"):
            held += bare.rstrip()[:-1] + " "
            continue
        if (held + bare).strip():
            yield start, held + bare
        held, start = "", 0
    if held.strip():
        yield start, held


def _split(words: str, known: Mapping[str, str], doubtful: AbstractSet[str] = frozenset()) -> list[str]:
    try:
        parts = shlex.split(words, comments=False, posix=True)
    except ValueError:  # a quote that ends on another line
        parts = words.replace('"', " ").replace("'", " ").split()
    found: list[str] = []
    for part in parts:
        told = substituted(part, known)
        is_several = told != part and part.startswith("$") and " " in told and f'"{part}"' not in words
        kind = _Doubtful if doubtful & _names(part) else str
        found += [kind(one) for one in (told.split() if is_several else [told])]
    return found


VARIABLE = re.compile(r"\$\{(\w+)(?::?-((?:[^${}]|\$\w+)*|\"[^\"]*\"))?\}|\$(\w+)")
"""An empty variable has its default as well: scripts write `X=${X:-}` and later `${X:-256}`."""
SUM = re.compile(r"\$\(\(([^()]*(?:\([^()]*\)[^()]*)*)\)\)")


def substituted(text: str, known: Mapping[str, str]) -> str:
    """Variables by what the script sets them to, or by their default; plain sums are worked out."""
    for _ in range(6):
        before = text
        text = VARIABLE.sub(lambda m: _value(m, known).strip("\"'"), text)
        text = SUM.sub(lambda m: _worked_out(m[1], known) or m[0], text)
        if text == before:
            break
    return text


def _names(text: str) -> set[str]:
    return {found[1] or found[3] for found in VARIABLE.finditer(text)}


def _value(found: re.Match[str], known: Mapping[str, str]) -> str:
    held = known.get(found[1] or found[3])
    return held if held or (found[2] is None and held is not None) else found[0] if found[2] is None else found[2]


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


def from_words(words: list[str], line: int, *, inside: bool = False) -> list[Given]:
    """`a.b=1`, `--a-b 1 2`, `--a-b=1` and `--a-b` in the words of a command, or of an array (`inside`).

    `a=1` is an option as well, but before the command's name, or behind `export`, it sets a variable.
    """
    found: list[Given] = []
    place = 0
    has_begun = inside or line == 0
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
                told = [number(one) for one in values]
                value = True if not told else told[0] if len(told) == 1 else told
                depends = any(isinstance(one, _Doubtful) for one in (word, *values))
                found.append(Given(name.replace("-", "_"), value, line, depends))
        elif (option := OPTION.match(word)) and (has_begun or re.search("[./@]", option[2])):
            found.append(Given(option[2], number(option[3]), line, isinstance(word, _Doubtful)))
        has_begun = has_begun or ("=" not in word and word not in DECLARES)
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

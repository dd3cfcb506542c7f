"""Small planted bugs of a Python file: the only place that knows what can be changed, and how.

Each mutant is one replaced piece of text. Text that nobody computes with is left alone: docstrings, messages,
annotations, assertions, imports, what only a type checker reads.
"""

import ast
import copy
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

KINDS = (
    "operator", "constant", "comparison", "logic", "detach", "copy", "precision", "sign", "minmax", "where", "index",
    "dim", "flag", "guard",
)  # fmt: skip

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
EXTREMES = {"min": "max", "amin": "amax", "minimum": "maximum", "argmin": "argmax"}
EXTREMES |= {high: low for low, high in EXTREMES.items()}
COPIES = ("clone",)
SAYS = ("warn", "append")
"""Calls that take a message; nothing inside them is changed."""
REFUSES = ("check", "refuse", "_check", "_refuse")
"""How functions are named that raise or stay silent; a call of one is a guard."""


@dataclass(frozen=True)
class Mutant:
    """One planted bug: in `file`, the bytes from `start` to `stop` become `new`."""

    file: Path
    line: int
    kind: str
    start: int
    stop: int
    old: str
    new: str
    text: str
    """The line it begins on, without indentation: how a mutant is known when lines have moved."""
    nth: int = 0
    """Which of the line's mutants with this old and new text it is, counted from 0."""

    @cached_property
    def source(self) -> bytes:
        """The whole mutated file."""
        whole = self.file.read_bytes()
        return whole[: self.start] + self.new.encode() + whole[self.stop :]

    @property
    def where(self) -> str:
        return f"{self.file.name}:{self.line}"

    @property
    def diff(self) -> str:
        first = self.line - 1
        was = self.file.read_text(encoding="utf-8").splitlines()
        now = self.source.decode().splitlines()
        removed = [f"    - {line.strip()}" for line in was[first : first + 1 + self.old.count("\n")]]
        return "\n".join([*removed, f"    + {now[first].strip()}"])


def mutants_of(file: Path) -> list[Mutant]:
    """Every mutant of a file that is valid Python, in the order of its text."""
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: dict[tuple[int, int, str], Mutant] = {}
    for kind, node, new in _changes(ast.parse(whole)):
        start, stop = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        old, text = whole[start:stop].decode(), lines[node.lineno - 1].decode().strip()
        mutant = Mutant(file, node.lineno, kind, start, stop, old, new, text)
        if (start, stop, new) not in found and old != new and _compiles(mutant):
            found[start, stop, new] = mutant
    seen = Counter[tuple[int, str, str]]()
    numbered: list[Mutant] = []
    for one in sorted(found.values(), key=lambda one: (one.start, one.stop, one.new)):
        numbered.append(replace(one, nth=seen[one.line, one.old, one.new]))
        seen[one.line, one.old, one.new] += 1
    return numbered


def sample(mutants: dict[Path, list[Mutant]], num: int, seed: int) -> list[Mutant]:
    """`num` mutants: from every file at least one, and otherwise by how many it has."""
    everywhere = sum(len(own) for own in mutants.values())
    chosen: list[Mutant] = []
    spare: list[Mutant] = []
    for file, own in mutants.items():
        mixed = random.Random(f"{seed}/{file.name}").sample(own, len(own))
        share = min(max(1, num * len(own) // everywhere), len(own))
        chosen += mixed[:share]
        spare += mixed[share:]
    mixed = random.Random(f"{seed}").sample(chosen, len(chosen))[:num]
    more = random.Random(f"{seed}/more").sample(spare, min(max(0, num - len(mixed)), len(spare)))
    return sorted([*mixed, *more], key=lambda one: (one.file.name, one.start, one.new))


def _compiles(mutant: Mutant) -> bool:
    try:
        _ = ast.parse(mutant.source)
    except SyntaxError:
        return False
    return True


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    """Kind, what is replaced, and by which text; then the same of everything inside."""
    for kind, where, new in _of_node(node):
        yield kind, where, new if isinstance(new, str) else f"({ast.unparse(new)})"
    for child in _inside(node):
        yield from _changes(child)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                yield child


def _is_text(node: ast.AST) -> bool:
    """What nobody computes with."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Assign) and _name(node.targets[0]) == "__all__":
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return _name(node.value.func) in SAYS and any(isinstance(part, ast.JoinedStr) for part in ast.walk(node))
    # zip(…, strict=True) asserts that lengths agree.
    return isinstance(node, ast.keyword) and node.arg in ("stacklevel", "strict")


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _of_node(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST | str]]:
    match node:
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            if not any(_is_words(side) or _is_type(side) for side in (left, right)):
                yield "operator", node, _with(node, op=OPERATORS[type(op)]())
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield "comparison", node, _with(node, ops=[*ops[:place], other(), *ops[place + 1 :]])
        case ast.BoolOp(op=op):
            yield "logic", node, _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            yield "logic", node, operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "sign", node, operand
        case ast.Constant(value=value):
            yield from _of_constant(node, value)
        case ast.Call():
            yield from _of_call(node)
        case ast.Attribute(attr="float64"):
            yield "precision", node, _with(node, attr="float32")
        case ast.Slice(lower=lower, upper=upper):
            for end in (lower, upper):
                if end is not None and not isinstance(end, ast.Constant):
                    yield "index", end, f"({ast.unparse(end)} + 1)"
        case ast.If(test=test, body=body, orelse=[]) if isinstance(body[-1], ast.Raise) or _warns(body[-1]):
            yield "guard", test, "False"
        case ast.Expr(value=ast.Call(func=func) as call) if _name(func).startswith(REFUSES):
            yield "guard", call, "None"
        case _:
            pass


def _of_constant(node: ast.Constant, value: object) -> Iterator[tuple[str, ast.AST, str]]:
    if isinstance(value, bool):
        yield "flag", node, str(not value)
    elif isinstance(value, int):
        yield "constant", node, str(value + 1)
        if value != 0:  # of 0 only 1: as an axis, -1 and 0 are one and the same wherever tensors are flat
            yield "constant", node, f"({value - 1})"
    elif isinstance(value, float):
        others = (1.0,) if value == 0 else (0.0, 2.0) if value == 1 else (2 * value,)
        for other in others:
            yield "constant", node, repr(other)
    elif isinstance(value, str) and value in EXTREMES:
        yield "minmax", node, f'"{EXTREMES[value]}"'


def _of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST, ast.AST | str]]:
    name = _name(node.func)
    held = node.func.value if isinstance(node.func, ast.Attribute) else None
    if held is not None and name in ("detach", "double", *COPIES) and not node.args:
        kind = {"detach": "detach", "double": "precision"}.get(name, "copy")
        yield kind, node, held
    if name == "where" and len(node.args) == 3:
        test, yes, no = node.args
        yield "where", node, _with(node, args=[test, no, yes])
    if name in EXTREMES and isinstance(node.func, ast.Attribute | ast.Name):
        field = {"attr": EXTREMES[name]} if isinstance(node.func, ast.Attribute) else {"id": EXTREMES[name]}
        yield "minmax", node, _with(node, func=_with(node.func, **field))
    for place, given in enumerate(node.keywords):
        if given.arg in ("min", "max") and name == "clamp":
            swapped = [*node.keywords[:place], _with(given, arg=EXTREMES[given.arg]), *node.keywords[place + 1 :]]
            yield "minmax", node, _with(node, keywords=swapped)
        if given.arg == "dim":
            number = ast.unparse(given.value)
            yield "dim", given.value, "0" if number != "0" else "-1"


def _is_words(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_type(node: ast.AST) -> bool:
    """A side of `int | None`."""
    is_none = isinstance(node, ast.Constant) and node.value is None
    return is_none or _name(node) in ("int", "float", "str", "bytes", "list", "tuple", "dict", "Mapping")


def _warns(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value.func) == "warn"

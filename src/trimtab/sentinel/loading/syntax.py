"""Find definitions, statements, expressions and lines in the syntax tree of a file. Reads source, runs nothing."""

import ast
import inspect
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any

from trimtab.sentinel.loading.tree import CouldNotLoad, near

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINITIONS = (*_FUNCTIONS, ast.ClassDef)
_SCOPES = (*_DEFINITIONS, ast.Lambda)
# They compile, or check annotations, which a cut file does not have. The arithmetic is the same without them.
_DROPPED_DECORATORS = ("torch.compile", "torch.jit", "torch._dynamo", "jaxtyped", "jaxtyping.jaxtyped", "beartype")
_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as Python counts them: a form feed ends none."""
_CATCHES_IMPORT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


def definitions(body: Iterable[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Every function and class with its dotted name, nested ones too, also inside if, try, with and loops."""
    for statement in body:
        if isinstance(statement, _DEFINITIONS):
            name = f"{prefix}{statement.name}"
            yield name, statement
            yield from definitions(statement.body, f"{name}.")
        else:
            for inner in bodies(statement):
                yield from definitions(inner, prefix)


def bodies(statement: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements directly inside a statement."""
    for name in ("body", "orelse", "finalbody"):
        inner = getattr(statement, name, None)
        if isinstance(inner, list) and inner:
            yield inner
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def definition(module: ast.Module, name: str, where: str) -> Definition:
    """The definition with this dotted name; the last one of several, as in Python."""
    wanted = name.replace(".<locals>", "")
    known = dict(definitions(module.body))
    if wanted not in known:
        peers = [other for other in known if other.count(".") == wanted.count(".")]
        raise CouldNotLoad(f"{where}: no definition {wanted}; {near(wanted, peers or known)}")
    return known[wanted]


def bound_names(statement: ast.stmt) -> set[str]:
    """The module-level names a statement defines or changes in place."""
    if isinstance(statement, _DEFINITIONS):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    found: set[str] = set()
    for node in _own_scope([statement]):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            found.add(node.id)
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
        elif node is not statement and isinstance(node, ast.stmt):
            found |= bound_names(node) if isinstance(node, (*_DEFINITIONS, ast.Import, ast.ImportFrom)) else set()
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func  # REGISTRY.update(...)
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            found.add(function.value.id)
    return found


def _own_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield node
        if not isinstance(node, _SCOPES):
            yield from _own_scope(ast.iter_child_nodes(node))


def class_level_names(statement: ast.AST, *, annotations: bool = False) -> set[str]:
    """Names that are read while a class body runs. Python looks these up without our dictionary."""
    found: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.ClassDef):
            for part in _body_time(node.body, annotations):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
                    found.add(part.id)
    return found


def _body_time(nodes: Iterable[ast.AST], annotations: bool) -> Iterator[ast.AST]:
    for node in nodes:
        yield node
        if isinstance(node, _FUNCTIONS):
            yield from _body_time([*node.decorator_list, *node.args.defaults], annotations)
            yield from _body_time([value for value in node.args.kw_defaults if value], annotations)
        elif isinstance(node, ast.AnnAssign):
            parts = [node.value, node.annotation if annotations else None]
            yield from _body_time([part for part in parts if part], annotations)
        elif not isinstance(node, ast.Lambda):
            yield from _body_time(ast.iter_child_nodes(node), annotations)


def guarded_imports(module: ast.Module) -> set[int]:
    """Lines of imports whose failure the file handles itself. There, an absent module must stay absent."""
    lines: set[int] = set()
    for node in ast.walk(module):
        caught = False
        if isinstance(node, ast.Try):
            kinds = [handler.type for handler in node.handlers]
            named = {getattr(part, "id", "") for kind in kinds if kind for part in ast.walk(kind)}
            caught = None in kinds or bool(named & _CATCHES_IMPORT)
        elif isinstance(node, ast.With):
            caught = any("suppress" in ast.unparse(item.context_expr) for item in node.items)
        if caught and isinstance(node, ast.Try | ast.With):
            inner = (part for statement in node.body for part in ast.walk(statement))
            lines |= {part.lineno for part in inner if isinstance(part, ast.Import | ast.ImportFrom)}
    return lines


class Simplified(ast.NodeTransformer):
    """The same file without compilers and annotation checkers, and with one import statement per name."""

    def _without(self, node: Any) -> Any:
        self.generic_visit(node)
        node.decorator_list = [part for part in node.decorator_list if not _is_dropped(part)]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _without  # noqa: N815

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        compiles = node.args and ast.unparse(node.func) in ("torch.compile", "torch.jit.script")
        return node.args[0] if compiles else node

    def _one_a_name(self, node: Any) -> list[ast.stmt]:
        return [ast.copy_location(type(node)(**{**vars(node), "names": [alias]}), node) for alias in node.names]

    visit_Import = visit_ImportFrom = _one_a_name  # noqa: N815


def _is_dropped(decorator: ast.expr) -> bool:
    name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
    if name in ("partial", "functools.partial") and isinstance(decorator, ast.Call) and decorator.args:
        name = ast.unparse(decorator.args[0])
    return any(name == dropped or name.startswith(f"{dropped}.") for dropped in _DROPPED_DECORATORS)


def changed(node: Any, **changes: Any) -> Any:
    """The same node, at the same place, with some of its parts replaced."""
    return ast.copy_location(
        type(node)(**{**{name: getattr(node, name, None) for name in node._fields}, **changes}), node
    )


def reduced(node: ast.ClassDef) -> ast.ClassDef:
    """The same class without bases and keywords; of its body, methods and constants."""
    kept: list[ast.stmt] = []
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            known = [
                deco for deco in part.decorator_list if ast.unparse(deco) in ("staticmethod", "classmethod", "property")
            ]
            kept.append(changed(part, decorator_list=known))
        elif isinstance(part, ast.Assign | ast.AnnAssign) and isinstance(part.value, ast.Constant):
            kept.append(part)
    return changed(node, bases=[], keywords=[], decorator_list=[], body=kept or [ast.Pass()])


class Source:
    """The text of one file, whose pieces are found by their content."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        self.lines = text.splitlines()
        self._encoded = text.encode()
        """Places of nodes count bytes."""
        self._starts = [0]
        for line in _LINES.findall(self._encoded):
            self._starts.append(self._starts[-1] + len(line))

    def says(self, node: ast.AST) -> str:
        """The source of a node with every run of white space replaced by one blank."""
        if not isinstance(node, ast.stmt | ast.expr) or node.end_lineno is None or node.end_col_offset is None:
            return ""
        begin = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[node.end_lineno - 1] + node.end_col_offset
        return " ".join(self._encoded[begin:end].decode().split())

    def statements(self, inside: Definition, first: str, last: str, nth: int = 0) -> list[ast.stmt]:
        """From the statement with the first text to the one with the last, in the innermost body that holds both.

        Where several places fit, `nth` says which one, counted from 1.
        """
        every = list(self._ranges(inside.body, " ".join(first.split()), " ".join((last or first).split())))
        if len(every) > 1 and not 0 < nth <= len(every):
            where = ", ".join(str(one[0].lineno) for one in every)
            raise CouldNotLoad(
                f"{self.where}: {first!r} fits {len(every)} places of {inside.name}, at lines {where}. "
                "Give a longer text, or say which one: Spec(…, nth=1) is the first."
            )
        found = every[max(nth - 1, 0)] if every else []
        if not found:
            said = [self.says(node)[:90] for node in ast.walk(inside) if isinstance(node, ast.stmt) and node != inside]
            what = f"no statements from {first!r} to {(last or first)!r} in one body of {inside.name}"
            raise CouldNotLoad(f"{self.where}: {what}; {near(first, said, limit=3)}")
        return found

    def _ranges(self, body: list[ast.stmt], first: str, last: str) -> Iterator[list[ast.stmt]]:
        for begin, statement in enumerate(body):
            if first not in self.says(statement):
                continue
            inner = [found for held in bodies(statement) for found in self._ranges(held, first, last)]
            if inner:
                yield from inner
                continue
            end = next((end for end in range(begin, len(body)) if last in self.says(body[end])), None)
            if end is not None:
                yield body[begin : end + 1]

    def expression(self, inside: Definition, said: str, keyword: str, nth: int = 0) -> ast.expr:
        """The smallest expression with this text, or the value of one keyword in a call with this text.

        Where several are equally small, `nth` says which one, counted from 1.
        """
        text = " ".join(said.split())
        if keyword:
            calls = [node for node in ast.walk(inside) if isinstance(node, ast.Call)]
            pairs = [(self.says(call), part) for call in calls for part in call.keywords]
            values = [(len(around), part.value) for around, part in pairs if part.arg == keyword and text in around]
            known = [part.arg or "**" for _, part in pairs]
        else:
            nodes = [node for statement in inside.body for node in ast.walk(statement) if isinstance(node, ast.expr)]
            spoken = [(self.says(node), node) for node in nodes]
            values = [(len(around), node) for around, node in spoken if text in around]
            known = [around for around, _ in spoken]
        if not values:
            raise CouldNotLoad(
                f"{self.where}: no {f'keyword {keyword}=' if keyword else 'expression'} {said!r} in {inside.name}; "
                f"{near(keyword or said, known, limit=3)}"
            )
        smallest = [node for size, node in values if size == min(size for size, _ in values)]
        if len(smallest) > 1 and not 0 < nth <= len(smallest):
            where = ", ".join(str(node.lineno) for node in smallest)
            raise CouldNotLoad(
                f"{self.where}: {said or keyword!r} fits {len(smallest)} places of {inside.name}, at lines {where}. "
                "Give a longer text, or say which one: Spec(…, nth=1) is the first."
            )
        return smallest[max(nth - 1, 0)]


def executable_lines(text: str, filename: str, first: int, last: int) -> set[int]:
    """Lines of function bodies between first and last that Python can execute; def lines and docstrings are not."""
    lines: set[int] = set()
    waiting = [compile(text, filename, "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        waiting += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        if code.co_flags & inspect.CO_OPTIMIZED:  # a function's, not a class body's
            own = {line for _, _, line in code.co_lines() if line}
            lines |= (own - {code.co_firstlineno}) or own
    return {line for line in lines if first <= line <= last}

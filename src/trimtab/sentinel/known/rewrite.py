"""Runs a function with a small change in its source: the only place that exchanges the code of foreign functions.

Nothing on disk changes. The code of the function object is exchanged for one call, and put back.
"""

import ast
import gc
import linecache
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.known.edits import Edit, edits
from trimtab.sentinel.known.source import Around

OURS = str(Path(__file__).resolve().parents[2])
PYTHON = str(Path(sysconfig.get_paths()["stdlib"]).resolve())
FOREIGN = tuple(str(Path(one.__file__ or "").resolve().parent) for one in (torch, np))


@dataclass
class Ran:
    """A function that ran: its object, its syntax tree, and what its variables held when it returned."""

    made: Any
    """The function object, whose code is exchanged."""
    tree: ast.FunctionDef
    held: dict[str, Any] = field(default_factory=dict[str, Any])

    def edits(self) -> Iterator[Edit]:
        """Small changes to its source."""
        kinds = _kinds(self.tree, self.held)
        yield from edits(
            self.tree,
            Around(
                _alike(self.tree, kinds),
                masks=tuple(name for name, value in self.held.items() if _is_mask(value))[:3],
                numbers=tuple(name for name, kind in kinds.items() if kind == "number")[:3],
                settings=tuple(name for name, kind in kinds.items() if kind in ("number", "count"))[:4],
                arrays=frozenset(name for name, kind in kinds.items() if isinstance(kind, tuple)),
                counts=frozenset(name for name, kind in kinds.items() if kind == "count"),
                modules=tuple(name for name in ("math", "np", "numpy") if name in self.made.__globals__),
            ),
        )

    @contextmanager
    def with_edit(self, edit: Edit) -> Generator[bool]:
        """While entered, the function runs with the change; yields False where it cannot be compiled."""
        edit.hold()
        try:
            code = _compiled(self.tree, self.made)
        finally:
            edit.release()
        before = self.made.__code__
        if code is None:
            yield False
            return
        self.made.__code__ = code
        try:
            yield True
        finally:
            self.made.__code__ = before

    def freezes(self, edit: Edit, call: Callable[[], object]) -> bool:
        """Whether something that varies in a call no longer does with the change: it switches a part off.

        `call` is the one that the variables were noted in.
        """
        with self.with_edit(edit) as is_code:
            now = _variables(call).get(self.made.__code__, {}) if is_code else {}
        return any(_varies(value) and name in now and not _varies(now[name]) for name, value in self.held.items())


def functions_of(call: Callable[[], object]) -> list[Ran]:
    """The functions outside of torch, Python and this package that a call runs, in the order in which they return."""
    found: list[Ran] = []
    held = _variables(call)
    for code, variables in held.items():
        if any(isinstance(value, Case) for value in variables.values()):
            continue  # part of a binding, not of the function that is bound
        tree = _tree_of(code)
        function = _function_of(code)
        if tree is not None and function is not None:
            # A function inside of it is made anew in each call. Its text and its variables belong to the outer one.
            inner = [held[one] for one in code.co_consts if isinstance(one, CodeType) and one in held]
            found.append(Ran(function, tree, {**{n: v for one in inner for n, v in one.items()}, **variables}))
    return found


def _variables(call: Callable[[], object]) -> dict[CodeType, dict[str, Any]]:
    """What the variables of each foreign function hold when it returns."""
    held: dict[CodeType, dict[str, Any]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and _is_theirs(frame.f_code.co_filename):
            held[frame.f_code] = dict(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return held


@cache
def _is_theirs(filename: str) -> bool:
    if not linecache.getlines(filename):
        return False
    place = str(Path(filename).resolve())
    installed = "site-packages" in place.removeprefix(PYTHON)
    return not place.startswith((OURS, *FOREIGN)) and (installed or not place.startswith(PYTHON))


def _function_of(code: CodeType) -> FunctionType | None:
    """The function object with this code. One that is made anew in each call is changed with the one around it."""
    found = [one for one in gc.get_referrers(code) if isinstance(one, FunctionType) and one.__code__ is code]
    return found[0] if len(found) == 1 else None


def _tree_of(code: CodeType) -> ast.FunctionDef | None:
    whole = _parsed(code.co_filename)
    found = (
        node
        for node in ast.walk(whole)
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name
        and min([node.lineno, *(one.lineno for one in node.decorator_list)]) == code.co_firstlineno
    )  # fmt: skip
    return next(found, None)


def _parsed(filename: str) -> ast.Module:
    with suppress(SyntaxError):
        return ast.parse("".join(linecache.getlines(filename)))
    return ast.Module([], [])


def _compiled(tree: ast.FunctionDef, function: FunctionType) -> CodeType | None:
    """The code of a changed function, if it can stand in for that of the function."""
    before = function.__code__
    bare = ast.FunctionDef(tree.name, tree.args, tree.body, [], None)
    around = f"def around({', '.join(before.co_freevars)}):\n  pass"
    outer = ast.parse(around)
    shell = outer.body[0]
    assert isinstance(shell, ast.FunctionDef)
    shell.body = [ast.copy_location(bare, tree)]
    try:
        module = compile(ast.fix_missing_locations(outer), before.co_filename, "exec")
    except (SyntaxError, ValueError, TypeError):
        return None
    inside = next(one for one in module.co_consts if isinstance(one, CodeType))
    made = next((one for one in inside.co_consts if isinstance(one, CodeType) and one.co_name == tree.name), None)
    return made if made is not None and made.co_freevars == before.co_freevars else None


# --- what a variable held ------------------------------------------------------------------------------------------


def _kind(value: object) -> object:
    """Type and shape of something that could be confused with another; None for all else."""
    if isinstance(value, Tensor | np.ndarray):
        return (type(value).__name__, tuple(value.shape), "f" if _floats(value) else "i")
    if isinstance(value, bool):
        return "switch"
    if isinstance(value, float):
        return "number"
    if isinstance(value, int):
        return "count"
    if isinstance(value, list) and value:
        inner = _kind(value[0])
        return None if inner is None else ("list", inner)
    return None


def _varies(value: object) -> bool:
    """Whether it holds more than one number."""
    if not isinstance(value, Tensor | np.ndarray):
        return False
    numbers = torch.as_tensor(value).detach()
    return numbers.numel() > 1 and not numbers.is_complex() and bool((numbers != numbers.reshape(-1)[0]).any())


def _floats(value: Any) -> bool:
    return bool(value.dtype.is_floating_point) if isinstance(value, Tensor) else value.dtype.kind == "f"


def _is_mask(value: object) -> bool:
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value) if value.dtype.kind in "bif" else None
    if not isinstance(value, Tensor) or value.ndim == 0 or value.is_complex():
        return False
    found = value.detach().double()
    return bool(((found == 0) | (found == 1)).all()) and bool(found.any()) and value.numel() > 1


def _kinds(tree: ast.AST, held: Mapping[str, Any]) -> dict[str, object]:
    """Type and shape of every variable and setting."""
    return {name: _kind(value) for name, value in [*held.items(), *_looked_up(tree, held)]}


def _alike(tree: ast.AST, kinds: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    """What can be confused: variables and settings of one type and shape. What one is made from is simpler than it."""
    made = _made_from(tree)
    return {
        name: tuple(
            other
            for other, theirs in kinds.items()
            if other != name and theirs == kind and other not in made.get(name, ())
        )
        for name, kind in kinds.items()
        if kind is not None
    }


def _looked_up(tree: ast.AST, held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """`self.low`, `cfg["high"]`, `batch["ref"]`: what a body reads of the objects that it is given."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        owner: Any = held.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if owner is None or isinstance(owner, Tensor | np.ndarray):
            continue
        with suppress(Exception):  # whatever their classes do on access
            if isinstance(node, ast.Attribute):
                yield ast.unparse(node), getattr(owner, node.attr)
            elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                yield ast.unparse(node), owner[node.slice.value]


def _made_from(tree: ast.AST) -> dict[str, set[str]]:
    """For each variable, everything that it is computed from."""
    made: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For):
            value = node.iter if isinstance(node, ast.For) else node.value
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if value is None:
                continue
            read = {ast.unparse(n) for n in ast.walk(value) if isinstance(n, ast.Name | ast.Attribute | ast.Subscript)}
            for target in targets:
                for one in ast.walk(target):
                    if isinstance(one, ast.Name):
                        made.setdefault(one.id, set()).update(read - {one.id})
    for _ in made:  # until nothing is added: a chain is at most as long as there are variables
        for read in made.values():
            read |= {further for name in tuple(read) for further in made.get(name, ())}
    return made

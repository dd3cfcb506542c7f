"""Who calls a function of a target: the only place that looks for the path from a trainer to a finding.

It reads text and runs nothing. A call through a table or a registry has another name, and is not found.
"""

import ast
import functools
from collections.abc import Iterator

from trimtab.sentinel.loading import CouldNotLoad, Tree
from trimtab.sentinel.loading.tree import git

MOST = 4
"""How many callers are named."""
CALLED_AS_CLASS = ("forward", "__call__", "__init__")


def callers_of(tree: Tree, file: str, name: str) -> list[str]:
    """`trl/trainer/grpo_trainer.py:2710 in compute_loss`, the places of a tree that call a function; code before tests.

    For `Loss.forward` these are the places that make a `Loss`.
    """
    owner, _, leaf = name.rpartition(".")
    called = owner.rpartition(".")[2] if leaf in CALLED_AS_CLASS and owner else leaf
    if not called.isidentifier() or called.startswith("__"):
        return []
    found = [
        f"{where}:{line} in {around}" if around else f"{where}:{line}"
        for where in _files_with(tree, f"{called}(")
        for line, around, on_itself in _calls(_text(tree, where), called)
        if not (where == file and around == name) and (not on_itself or around.startswith(f"{owner}."))
    ]
    return sorted(found, key=_is_a_test)[:MOST]


def _is_a_test(place: str) -> bool:
    return any(part.startswith("test") for part in place.split(":")[0].split("/"))


def _files_with(tree: Tree, text: str) -> list[str]:
    if tree.commit is None:
        return [file for file in tree.files() if text in _text(tree, file)]
    try:
        told = git(tree.root, "grep", "-l", "-F", "--full-name", text, tree.commit, "--", "*.py").decode()
    except CouldNotLoad:  # git says so where nothing is found
        return []
    return sorted(line.partition(":")[2] for line in told.splitlines())


@functools.lru_cache(maxsize=4096)
def _text(tree: Tree, file: str) -> str:
    try:
        return tree.read(file)
    except (CouldNotLoad, OSError, UnicodeDecodeError):
        return ""


Called = tuple[int, str, bool]
"""Line, enclosing function, and whether an object calls a method of its own: `self.loss()`, `super().loss()`."""


def _calls(text: str, called: str) -> Iterator[Called]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    yield from _calls_in(tree, called, "")


def _calls_in(node: ast.AST, called: str, around: str) -> Iterator[Called]:
    for child in ast.iter_child_nodes(node):
        inside = around
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{around}.{child.name}" if around else child.name
        if isinstance(child, ast.Call) and _name(child.func) == called:
            on = child.func.value if isinstance(child.func, ast.Attribute) else None
            yield child.lineno, around, on is not None and ast.unparse(on) in ("self", "super()", "cls")
        yield from _calls_in(child, called, inside)


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""

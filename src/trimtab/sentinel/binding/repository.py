"""Units of a repository without bindings: every file that holds a function with known argument names.

Files are read before anything runs. Only a file with such a function is imported, with stubs for absent modules. If
that fails, its functions are cut out of it.
"""

import ast
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from trimtab.sentinel.binding.callable import Found, found_in
from trimtab.sentinel.binding.discover import boundary_of, guessed
from trimtab.sentinel.binding.words import field_of
from trimtab.sentinel.loading import Boundary, CouldNotLoad, Spec, Tree, load
from trimtab.sentinel.targets.target import Part, Unbound, Unit

OTHERS = frozenset({
    "tests", "test", "docs", "doc", "examples", "example", "scripts", "benchmarks", "build", "dist", "site-packages",
    "node_modules", "venv",
})  # fmt: skip
"""Folders whose functions train nothing."""
FEWEST = 2
"""A function of the signal has at least this many arguments whose names tell a field."""


def units_in(tree: Tree, only: Collection[str] | None = None) -> list[Unit]:
    """One unit per file (or per named one) that may hold a function of the training signal."""
    packages = {str(PurePosixPath(file).parent) for file in tree.files() if file.endswith("__init__.py")}
    found: list[Unit] = []
    for file in tree.files():
        path = PurePosixPath(file)
        if only is not None and not any(f"/{one}".endswith(f"/{file}") for one in only):
            continue
        if any(part in OTHERS or part.startswith(".") for part in path.parts) or path.name in (
            "setup.py",
            "conftest.py",
        ):
            continue
        names = candidates(tree.read(file))
        if names:
            root = _root(path, packages)
            inside = str(path.relative_to(root)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found.append(Unit(inside, functools.partial(_parts, tree, file, root, inside, names)))
    return found


def _root(path: PurePosixPath, packages: set[str]) -> str:
    """The folder that the file is imported from: the first one above it that is no package."""
    root = path.parent
    while str(root) in packages and str(root) != ".":
        root = root.parent
    return str(root)


def candidates(text: str) -> list[str]:
    """Public functions and classes of a file with enough argument names that tell a field."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return []
    named = [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]
    return [node.name for node in named if _is_candidate(node)]


def _is_candidate(node: ast.FunctionDef | ast.ClassDef) -> bool:
    if isinstance(node, ast.FunctionDef):
        return _tells(node)
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    return any(_tells(one) for one in methods if one.name == "__call__" or not one.name.startswith("__"))


def _tells(node: ast.FunctionDef) -> bool:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len({field for one in every if (field := field_of(one.arg)) is not None}) >= FEWEST


def _parts(tree: Tree, file: str, root: str, module: str, names: list[str]) -> Iterator[Part]:
    spec = Spec(names[0], file=file, roots=() if root == "." else (root,), how="stubs")
    try:
        first = load(spec, tree)
    except CouldNotLoad as error:
        yield from _cut(tree, file, module, names, str(error))
        return
    top = Path(first.keeps.name).resolve() if first.keeps is not None else tree.root
    for name in names:
        with first.around:
            value = first.namespace(name)
        for label, find in found_in(ModuleType(module), name, value):
            found = functools.partial(_found, first.around, find)
            bounded = functools.partial(_bounded, first, replace(spec, name=label), top)
            yield _part(module, label, found, bounded)


def _part(module: str, label: str, find: Callable[..., Found], bounded: Callable[[Found], Boundary | None]) -> Part:
    name = f"{module}.{label}"
    make = functools.partial(guessed, module, name, find, bounded, is_asked=False)
    return Part(name, make, where=lambda: bounded(find()))


def _found(around: AbstractContextManager[Any], find: Callable[..., Found], *, bounds: bool = False) -> Found:
    """A function of an imported file. The modules of its target are there only while it is called."""
    with around:
        found = find(bounds=bounds)

    def call(given: Mapping[str, Any], chosen: Mapping[str, Any]) -> Any:
        with around:
            return found.call(given, chosen)

    return replace(found, call=call)


def _bounded(first: Boundary, spec: Spec, top: Path, found: Found) -> Boundary | None:
    own = boundary_of(found.function, top)
    return own and replace(own, spec=spec, record=first.record, around=first.around, keeps=first.keeps)


def _cut(tree: Tree, file: str, module: str, names: list[str], why: str) -> Iterator[Part]:
    """Each function on its own, where the file cannot be imported."""
    for name in names:
        try:
            boundary = load(Spec(name, file=file), tree)
        except CouldNotLoad as error:
            unbound = Unbound(f"{module}.{name}", f"{file}:{name}", f"{why}; and {error}", is_asked=False)
            yield Part(f"{module}.{name}", lambda unbound=unbound: (unbound,))
            continue
        for label, find in found_in(ModuleType(module), name, boundary.function):
            whole = boundary if label == name else None
            yield _part(module, label, find, lambda _, whole=whole: whole)

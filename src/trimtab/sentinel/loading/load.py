"""From a spec and a tree to a boundary: the only place that chooses between import, import with stubs, and cut."""

import ast
import builtins
import contextlib
import copy
import functools
import inspect
import linecache
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.sentinel.loading.boundary import Boundary, unknown
from trimtab.sentinel.loading.cutting import CutFile, Cutter
from trimtab.sentinel.loading.importing import Imported
from trimtab.sentinel.loading.scratch import in_scratch_folder
from trimtab.sentinel.loading.stubs import Stub, StubRecord
from trimtab.sentinel.loading.syntax import Definition, Source, definition, definitions
from trimtab.sentinel.loading.tree import CouldNotLoad, Spec, Tree


def load(spec: Spec, tree: Tree, given: Mapping[str, Any] | None = None) -> Boundary:
    """Load the function that a spec names. `given` replaces names of the target (dotted: modules) by the caller's.

    What runs while it is loaded runs in a scratch folder. Calls of the function run in the caller's folder.
    """
    with in_scratch_folder():
        return _loaded(spec, tree, StubRecord(given))


def _loaded(spec: Spec, tree: Tree, record: StubRecord) -> Boundary:
    if spec.how != "cut":
        return _import(spec, tree, record)
    missing: list[str] = []
    for file in spec.places or ("",):
        try:
            if not file:
                raise CouldNotLoad(f"{spec.name}: a cut needs a file")
            return _cut(spec, tree, file, record)
        except CouldNotLoad as error:
            missing.append(str(error))
    raise CouldNotLoad("; or ".join(missing))


def _cut(spec: Spec, tree: Tree, file: str, record: StubRecord) -> Boundary:
    where = f"{file} at {tree}"
    cut = Cutter(tree, record, [stub for stub in spec.stubs if stub != "auto"]).file(file)
    if spec.first or spec.expression or spec.keyword:
        return _cut_inside(spec, cut, where)
    owner = None
    known = dict(definitions(cut.syntax.body))
    try:
        if _is_nested(spec.name.replace(".<locals>", ""), known):
            function = cut.define(definition(cut.syntax, spec.name, where), {})  # the caller provides free names
        else:
            owner, function = _walked(cut, spec.name, where, list(known))
    except CouldNotLoad:
        raise
    except Exception as error:
        raise CouldNotLoad(f"{where}: {spec.name} could not be defined: {type(error).__name__}: {error}") from error
    return _boundary(spec, function, owner, record, cut.__getitem__, file)


def _is_nested(name: str, known: Mapping[str, Definition]) -> bool:
    """Whether it is defined inside a function, or inside a method."""
    parts = name.split(".")
    around = (known.get(".".join(parts[:i])) for i in range(1, len(parts)))
    return any(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in around)


def _walked(cut: CutFile, name: str, where: str, known: list[str]) -> tuple[type | None, Any]:
    top, *rest = name.split(".")
    try:
        value, owner = cut[top], None
    except KeyError:
        raise unknown(name, where, [other for other in known if other.count(".") == name.count(".")] or known) from None
    if isinstance(value, Stub):
        raise CouldNotLoad(
            f"{where}: {top} could not be defined: {cut.cutter.record.replaced.get(f'{cut.dotted}.{top}')}"
        )
    for part in rest:
        if not isinstance(value, type):
            raise unknown(name, where, known)
        try:
            owner, value = value, method(value, part)
        except CouldNotLoad:
            raise unknown(name, where, [other for other in known if other.startswith(f"{top}.")]) from None
    return owner, value


def method(owner: type, name: str) -> Any:
    """A method as a plain function, from the class or one of its ancestors."""
    for klass in owner.__mro__:
        if name in vars(klass):
            found: Any = vars(klass)[name]
            if isinstance(found, property):
                return found.fget
            return found.__func__ if isinstance(found, staticmethod | classmethod) else found  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    raise CouldNotLoad(f"{owner.__name__} has no method {name}")


def _cut_inside(spec: Spec, cut: CutFile, where: str) -> Boundary:
    """Statements of a function as `fn(**names) -> dict`, or one expression of it as `fn(**names) -> value`."""
    node = definition(cut.syntax, spec.name, where)
    source = Source(cut.cutter.tree.read(cut.file), where)
    if spec.expression or spec.keyword:
        value = source.expression(node, spec.expression or spec.first, spec.keyword, spec.nth)
        body: list[ast.stmt] = [ast.copy_location(ast.Return(value), value)]
        first, last = value.lineno, value.end_lineno or value.lineno
    else:
        body = source.statements(node, spec.first, spec.last, spec.nth)
        first, last = body[0].lineno, body[-1].end_lineno or body[-1].lineno
        body = _ending([_Returning().visit(copy.deepcopy(part)) for part in body])
    function = _Named(cut, node, body, spec, where)
    return Boundary(spec, function, cut.file, source.text, cut.shown, first, last, cut.cutter.record, cut.__getitem__)


class _Returning(ast.NodeTransformer):
    """`return x` ends the statements with {"return": x}; nonlocal names are plain ones here."""

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        value = node.value or ast.Constant(None)
        return ast.copy_location(ast.Return(ast.Dict([ast.Constant("return")], [value])), node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.stmt:
        return ast.copy_location(ast.Pass(), node)

    def _untouched(self, node: Any) -> Any:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _untouched  # noqa: N815


def _ending(body: list[ast.stmt]) -> list[ast.stmt]:
    at = ast.copy_location
    # A loop with one iteration, because the statements may contain break or continue of an outer loop.
    if any(_is_loose(part) for part in body):
        once = ast.For(ast.Name("_once", ast.Store()), ast.Tuple([ast.Constant(0)], ast.Load()), body, [])
        body = [at(once, body[0])]
    ending = ast.Return(ast.Call(ast.Name("locals", ast.Load()), [], []))
    return [*body, at(ending, body[-1])]


def _is_loose(node: ast.AST) -> bool:
    if isinstance(node, ast.Break | ast.Continue):
        return True
    closed = (ast.For, ast.While, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return not isinstance(node, closed) and any(_is_loose(part) for part in ast.iter_child_nodes(node))


class _Named:
    """Statements or an expression as a function of the names they read; one code object per set of names."""

    def __init__(self, cut: CutFile, node: Definition, body: list[ast.stmt], spec: Spec, where: str) -> None:
        self.cut, self.node, self.body, self.spec, self.where = cut, node, body, spec, where
        self._made = functools.lru_cache(maxsize=64)(self._compiled)

    def _compiled(self, names: tuple[str, ...]) -> Any:
        arguments = ast.arguments([], [], None, [ast.arg(name) for name in names], [None] * len(names), None, [])
        kind = ast.AsyncFunctionDef if isinstance(self.node, ast.AsyncFunctionDef) else ast.FunctionDef
        told: dict[str, Any] = {"name": self.node.name, "args": arguments, "body": self.body, "decorator_list": []}
        if "type_params" in kind._fields:  # Python 3.12
            told["type_params"] = []
        function = kind(**told)
        into: dict[str, Any] = {}
        self.cut.execute([ast.copy_location(function, self.node)], into)
        return into[self.node.name]

    def __call__(self, /, **names: Any) -> Any:
        function = self._made(tuple(sorted(names)))
        try:
            found = function(**names)
        except NameError as error:
            if error.name and error.name not in names:
                raise CouldNotLoad(
                    f"{self.where}: what was cut from {self.spec.name} reads {error.name!r}, which was not given; "
                    f"it reads {', '.join(self.reads)}"
                ) from error
            raise
        return found if inspect.isawaitable(found) else self._chosen(found)

    @property
    def reads(self) -> list[str]:
        """Names that are read and that are neither globals of the file nor builtins."""
        seen = [part for statement in self.body for part in ast.walk(statement) if isinstance(part, ast.Name)]
        names = dict.fromkeys(part.id for part in seen if isinstance(part.ctx, ast.Load))
        return [name for name in names if self.cut.get(name) is None and not hasattr(builtins, name)]

    def _chosen(self, found: Any) -> Any:
        if self.spec.expression or self.spec.keyword:
            return found
        found.pop("_once", None)
        if not self.spec.results or "return" in found:
            return found
        if absent := [name for name in self.spec.results if name not in found]:
            raise CouldNotLoad(
                f"{self.where}: after these statements there is no {', '.join(absent)}; there are {', '.join(found)}"
            )
        return {name: found[name] for name in self.spec.results}


def _import(spec: Spec, tree: Tree, record: StubRecord) -> Boundary:
    keeps, root, name = None, tree.root, spec.module or _dotted(spec)
    tops = _tops(spec, tree, name)
    if tree.commit:
        keeps = tempfile.TemporaryDirectory(prefix="trimtab-")
        root = tree.extract(tops, Path(keeps.name).resolve())
    stubs = spec.how == "stubs"
    named = [stub for stub in spec.stubs if stub != "auto"]
    auto = stubs and (not named or "auto" in spec.stubs)
    folders = [root / part for part in spec.roots or ("",)]
    own = name.partition(".")[0]
    imported = Imported(folders, own, record, named=named if stubs else (), auto=auto, bare=spec.bare_packages)
    module = imported.module(name)
    imported.give({part: value for part, value in record.given.items() if "." not in part})
    where = f"{name} at {tree}"
    owner, value = None, module
    for part in spec.name.split("."):
        owner = value if isinstance(value, type) else None
        try:
            value = method(value, part) if isinstance(value, type) else getattr(value, part)
        except (AttributeError, CouldNotLoad):
            raise unknown(spec.name, where, [other for other in dir(value) if not other.startswith("__")]) from None
    file = _relative(module, root)
    boundary = _boundary(spec, value, owner, record, functools.partial(getattr, module), file)
    boundary.around, boundary.keeps = imported, keeps
    return boundary


def _tops(spec: Spec, tree: Tree, name: str) -> list[str]:
    top = name.partition(".")[0]
    places = [f"{root}/{top}".strip("/") for root in spec.roots or ("",)]
    found = [place for place in places if tree.has_folder(place)] + [
        f"{place}.py" for place in places if tree.has(f"{place}.py")
    ]
    if not found:
        raise CouldNotLoad(
            f"{name} at {tree}: no package {' or '.join(places)}. Name the folder that holds it in roots."
        )
    return found


def _dotted(spec: Spec) -> str:
    inside = next(
        (spec.file.removeprefix(f"{root}/") for root in spec.roots if spec.file.startswith(f"{root}/")), spec.file
    )
    if not inside:
        raise CouldNotLoad(f"{spec.name}: an import needs a module or a file")
    return inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _relative(module: Any, root: Path) -> str:
    with contextlib.suppress(ValueError, TypeError):
        return Path(module.__file__).relative_to(root).as_posix()
    return str(getattr(module, "__file__", module.__name__))


def _boundary(spec: Spec, function: Any, owner: type | None, record: StubRecord, namespace: Any, file: str) -> Boundary:
    """The place of the code itself, behind decorators and inheritance."""
    if not callable(function):
        raise CouldNotLoad(f"{file}: {spec.name} is a {type(function).__name__}, which cannot be called")
    plain = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    code = getattr(plain, "__code__", None)
    if code is None and isinstance(plain, type):
        inner = [getattr(inspect.unwrap(part), "__code__", None) for part in vars(plain).values() if callable(part)]
        code = next((part for part in inner if part is not None and part.co_filename.endswith(file)), None)
    shown = code.co_filename if code else file
    text = "".join(linecache.getlines(shown))
    first, last = _lines(text, spec.name, code.co_firstlineno if code else 0)
    if not shown.endswith(file) and text:
        file = shown  # inherited or imported from elsewhere
    return Boundary(spec, function, file, text, shown, first, last, record, namespace, owner=owner)


def _lines(text: str, name: str, begins: int) -> tuple[int, int]:
    known = list(definitions(ast.parse(text).body))
    for other, node in known:
        starts = {node.lineno, *(part.lineno for part in node.decorator_list)}
        if (begins in starts and not isinstance(node, ast.ClassDef)) or (
            other == name and isinstance(node, ast.ClassDef)
        ):
            return node.lineno, node.end_lineno or node.lineno
    return begins, begins

"""Cut a definition out of one file: the only place that runs parts of a target's file without importing it.

Each file of the tree becomes a dictionary of globals that defines a name when the name is first read, by running the
statements of the file that bind it, at their own line numbers. Names that are never read never run, so an old commit or
a heavy file needs only what the definition needs. Imports of the target's own package are cut in the same way. Other
imports are real if they are installed, and stubs if not.
"""

import __future__

import ast
import builtins
import itertools
import linecache
import sys
import types
import weakref
from collections.abc import Sequence
from typing import Any

from trimtab.sentinel.loading.importing import gives, leaf, unregister
from trimtab.sentinel.loading.scratch import in_scratch_folder
from trimtab.sentinel.loading.stubs import PatchedModule, Stub, StubModule, StubRecord, with_given
from trimtab.sentinel.loading.syntax import (
    Simplified,
    bound_names,
    changed,
    class_level_names,
    guarded_imports,
    reduced,
)
from trimtab.sentinel.loading.tree import CouldNotLoad, Tree

_FUTURE = __future__.annotations.compiler_flag
_COUNT = itertools.count()
_SKIPPED_TESTS = ("TYPE_CHECKING", "typing.TYPE_CHECKING", "__name__ == '__main__'")


class _Module(types.ModuleType):
    """A cut file in the form of a module, because dataclasses and pydantic look up their module by name."""

    _cut_file: "CutFile"
    __dict__ = property(lambda self: self._cut_file)  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._cut_file[name]
        except KeyError:
            found = self._cut_file.part(name)
            if found is None:
                raise AttributeError(f"{self._cut_file.dotted} has no {name}") from None
            return found

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_cut_file", "__spec__", "__loader__"):
            super().__setattr__(name, value)
        else:
            self._cut_file[name] = value


class CutFile(dict[str, Any]):
    """The globals of one file, each defined when first read."""

    def __init__(self, cutter: "Cutter", file: str, dotted: str, folder: str = "") -> None:
        super().__init__()
        self.cutter, self.file, self.dotted = cutter, file, dotted
        self.folder = file.rpartition("/")[0] if file else folder
        text = cutter.tree.read(file) if file else ""
        self.shown = cutter.tree.shown(file)
        linecache.cache[self.shown] = (len(text), None, text.splitlines(keepends=True), self.shown)
        try:
            parsed = ast.parse(text, self.shown)
        except SyntaxError as error:
            raise CouldNotLoad(f"{file} at {cutter.tree}: not Python {sys.version_info[:2]}: {error}") from error
        self.guarded = guarded_imports(parsed)
        self.syntax: ast.Module = ast.fix_missing_locations(Simplified().visit(parsed))
        self._binding: dict[str, list[ast.stmt]] = {}
        self._stars: list[ast.ImportFrom] = []
        self._done: set[int] = set()
        self._index(self.syntax.body)
        self.module = _Module(f"_cut{next(_COUNT)}.{dotted}")
        self.module._cut_file = self  # pyright: ignore[reportPrivateUsage]
        self.update({"__name__": self.module.__name__, "__file__": self.shown, "__builtins__": self._builtins()})
        self.update({name: value for name, value in cutter.record.given.items() if "." not in name})

    def _builtins(self) -> dict[str, Any]:
        return {**vars(builtins), "__import__": self._import}

    def _index(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.If) and ast.unparse(statement.test) in _SKIPPED_TESTS:
                self._index(statement.orelse)
            elif isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                self._stars.append(statement)
            elif not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
                for name in bound_names(statement):
                    self._binding.setdefault(name, []).append(statement)

    def __missing__(self, name: str) -> Any:
        if name.startswith("__") and name not in self._binding:
            raise KeyError(name)
        record = self.cutter.record
        was, record.running = record.running, False  # a definition does not count as a run
        try:
            with in_scratch_folder():
                self._resolve(name)
        finally:
            record.running = was
        if name not in self:
            raise KeyError(name)
        if isinstance(self[name], Stub):
            record.touch(self[name]._stub_path)  # pyright: ignore[reportPrivateUsage]
        return self[name]

    def _resolve(self, name: str) -> None:
        for statement in self._binding.get(name, ()):
            try:
                self.run(statement)
            except Exception as error:
                if name not in self:
                    why = f"line {statement.lineno} failed: {type(error).__name__}: {error}"[:200]
                    self[name] = self.cutter.record.value(f"{self.dotted}.{name}", why)
        if name not in self and not hasattr(builtins, name):
            self._from_stars(name)

    def _from_stars(self, name: str) -> None:
        for star in self._stars:
            module = self._import(star.module or "", self, None, ("*",), star.level)
            if not isinstance(module, StubModule) and hasattr(module, name):
                self[name] = getattr(module, name)

    def run(self, statement: ast.stmt) -> None:
        """Run one statement of the file, once."""
        if id(statement) in self._done:
            return
        self._done.add(id(statement))
        self._define_for_classes(statement)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.define(statement)
        else:
            self.execute([statement])

    def _define_for_classes(self, statement: ast.stmt) -> None:
        # A class body reads globals without __missing__, so they must exist before it runs.
        for name in class_level_names(statement, annotations=self._has_fields(statement)):
            self.get(name)

    def _has_fields(self, statement: ast.stmt) -> bool:
        bases = statement.bases if isinstance(statement, ast.ClassDef) else []
        return any(hasattr(self.get(base.id), "model_fields") for base in bases if isinstance(base, ast.Name))

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def execute(self, body: Sequence[ast.stmt], names: dict[str, Any] | None = None) -> None:
        module = ast.fix_missing_locations(ast.Module(list(body), []))
        exec(compile(module, self.shown, "exec", flags=_FUTURE, dont_inherit=True), self, names)

    def define(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, names: dict[str, Any] | None = None
    ) -> Any:
        """Run a definition, then each available decorator. A class that fails is run again without its bases."""
        into = self if names is None else names
        bare = changed(node, decorator_list=[])
        try:
            self.execute([bare], names)
        except Exception as error:
            if not isinstance(node, ast.ClassDef):
                raise
            self.cutter.record.replaced[f"{self.dotted}.{node.name}(bases)"] = f"{type(error).__name__}: {error}"[:200]
            self.execute([reduced(node)], names)
        for decorator in reversed(node.decorator_list):
            try:
                code = compile(ast.Expression(decorator), self.shown, "eval", flags=_FUTURE, dont_inherit=True)
                made = eval(code, self)  # the target's own decorator, as importing the target would run it
                into[node.name] = into[node.name] if isinstance(made, Stub) else made(into[node.name])
            except Exception as error:
                why = f"decorator dropped: {type(error).__name__}: {error}"[:200]
                self.cutter.record.replaced[f"{self.dotted}.{node.name}@{ast.unparse(decorator)}"[:120]] = why
        return into[node.name]

    def part(self, name: str) -> types.ModuleType | None:
        """A submodule, when this file is a package."""
        if self.file and not self.file.endswith("__init__.py"):
            return None
        return self.cutter.at(f"{self.folder}/{name}".lstrip("/"), f"{self.dotted}.{name}")

    def _import(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        guarded = sys._getframe(1).f_lineno in self.guarded  # pyright: ignore[reportPrivateUsage]
        path = ""
        if level:  # by folders, since a package without __init__ does not show its full name
            folders = self.folder.split("/")
            path = "/".join([*folders[: len(folders) - level + 1], *name.split(".")]).rstrip("/")
            name = path.replace("/", ".").removeprefix("src.")
        return self.cutter.imported(name, tuple(fromlist or ()), guarded=guarded, path=path)


class Cutter:
    """The cut files of one tree, each once, and the results of its imports."""

    def __init__(self, tree: Tree, record: StubRecord, named: Sequence[str] = ()) -> None:
        self.tree, self.record, self.named = tree, record, tuple(named)
        self.files: dict[str, CutFile] = {}
        self.roots: list[str] = []
        self.tops: set[str] = set()
        self._listed: list[str] | None = None
        self._registered: list[str] = []
        weakref.finalize(self, unregister, self._registered)

    def file(self, file: str) -> CutFile:
        """A file to cut from. Its outermost folder with an __init__ is its package."""
        parts = file.removesuffix(".py").split("/")
        start = 1 if parts[0] == "src" else 0  # for packages without any __init__
        for cut in range(len(parts)):
            root = "/".join(parts[:cut])
            if cut and self.tree.has(f"{root}/__init__.py"):
                start = start or cut - 1
                break
            if root not in self.roots:
                self.roots.append(root)
        dotted = ".".join(parts[start:]).removesuffix(".__init__")
        self.tops.add(parts[start])
        return self._open(file, dotted)

    def _open(self, file: str, dotted: str, folder: str = "") -> CutFile:
        key = file or f"{folder}/"
        if key not in self.files:
            cut = self.files[key] = CutFile(self, file, dotted, folder)
            sys.modules[cut.module.__name__] = cut.module
            self._registered.append(cut.module.__name__)
        return self.files[key]

    def own(self, dotted: str) -> types.ModuleType | None:
        """The module with this name in the tree, cut; None when the tree has no such file."""
        path = dotted.replace(".", "/")
        rooted = [f"{root}/{path}".lstrip("/") for root in self.roots]
        found = next((found for base in rooted if (found := self.at(base, dotted, folders=False)) is not None), None)
        if found is None and dotted.partition(".")[0] in self.tops:
            found = self._elsewhere(path, dotted)
        if found is None:
            found = next((found for base in rooted if (found := self.at(base, dotted)) is not None), None)
        return found

    def _elsewhere(self, path: str, dotted: str) -> types.ModuleType | None:
        """A package in several folders of one repository, such as packages/configs/src and src."""
        if self._listed is None:
            self._listed = self.tree.files()
        endings = (f"/{path}.py", f"/{path}/__init__.py")
        file = next((file for file in self._listed if file.endswith(endings)), "")
        return self._open(file, dotted).module if file else None

    def at(self, path: str, dotted: str, *, folders: bool = True) -> types.ModuleType | None:
        """The module at a path without its file ending; a folder is a module too."""
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if self.tree.has(file):
                return self._open(file, dotted).module
        return self._open("", dotted, path).module if folders and self.tree.has_folder(path) else None

    def imported(self, name: str, wanted: tuple[str, ...], *, guarded: bool, path: str) -> Any:
        """Resolve an import: the caller's object, a file of the tree, the real module, or a stub, in this order."""
        given = self.record.given
        if wanted and name in given:
            return given[name]
        module = self._module(name, wanted, guarded, path)
        replaced = {part: given[part] for part in wanted if part in given}
        if not isinstance(module, StubModule):
            for part in wanted:
                if part != "*" and part not in replaced and f"{name}.{part}" not in given and not gives(module, part):
                    if guarded:
                        raise ImportError(f"cannot import name {part!r} from {name!r}")
                    replaced[part] = self.record.value(f"{name}.{part}", "the module does not have it")
        module = with_given(module, name if wanted else name.partition(".")[0], given)
        return PatchedModule(module, replaced) if replaced else module

    def _module(self, name: str, wanted: tuple[str, ...], guarded: bool, path: str) -> Any:
        top = name.partition(".")[0]
        if any(name == stub or name.startswith(f"{stub}.") for stub in self.named):
            return self.record.module(name if wanted else top, "named")
        found = self.at(path, name) if path else None if top in sys.stdlib_module_names else self.own(name)
        if found is not None:
            return found if wanted else self.own(top) or found
        try:
            if path:
                raise ModuleNotFoundError(f"no file for {name} in the tree")
            return leaf(name) if wanted else __import__(name)
        except Exception as error:
            if guarded and not any(given.startswith(f"{top}.") for given in self.record.given):
                raise ImportError(str(error)) from error
            return self.record.module(name if wanted else top, f"{type(error).__name__}: {error}"[:200])

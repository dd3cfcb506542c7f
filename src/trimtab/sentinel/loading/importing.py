"""Import a target with stubs for absent modules: the only place that touches sys.modules and sys.path.

The modules of the target and the stubs are in sys.modules only while an `Imported` is entered. So two targets, or two
commits of one target, never share modules.
"""

import ast
import contextlib
import functools
import importlib
import importlib.machinery
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trimtab.sentinel.loading.stubs import StubModule, StubRecord
from trimtab.sentinel.loading.syntax import guarded_imports
from trimtab.sentinel.loading.tree import CouldNotLoad

_RETRIES = 40


@functools.lru_cache(maxsize=512)
def _guarded(file: str) -> frozenset[int]:
    try:
        return frozenset(guarded_imports(ast.parse(Path(file).read_text("utf-8-sig"))))
    except (OSError, SyntaxError, ValueError):
        return frozenset()


class _BarePackage(types.ModuleType):
    """A package without running its __init__: submodules exist, and names that __init__ would export are stubs."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"bare package {self.__name__} has no {name}")
        full = f"{self.__name__}.{name}"
        if any(
            (Path(folder) / name).with_suffix(".py").is_file() or (Path(folder) / name).is_dir()
            for folder in self.__path__
        ):
            return importlib.import_module(full)
        record: StubRecord = self.__dict__["_stub_record"]
        self.__dict__.setdefault("_stub_parts", {}).setdefault(
            name, record.value(full, "its package was imported bare")
        )
        return self.__dict__["_stub_parts"][name]


class _Finder:
    """Serves stub modules and bare packages: first in the path for named ones, last for absent ones."""

    def __init__(self, imported: "Imported", *, last: bool) -> None:
        self.imported, self.last = imported, last

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        imported = self.imported
        if not self.last and name in imported.bare:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # pyright: ignore[reportArgumentType]
        parent = sys.modules.get(name.rpartition(".")[0])
        if isinstance(parent, StubModule):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # pyright: ignore[reportArgumentType]
        named = any(name == stub or name.startswith(f"{stub}.") for stub in imported.named)
        if named if not self.last else (imported.auto and "." not in name and imported.is_asked_by_target()):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # pyright: ignore[reportArgumentType]
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        record = self.imported.record
        if spec.name in self.imported.bare:
            module = _BarePackage(spec.name)
            module.__dict__["_stub_record"] = record
            return module
        if spec.name in record.given:
            return record.given[spec.name]
        if isinstance(sys.modules.get(spec.name.rpartition(".")[0]), StubModule):
            return StubModule(spec.name, record)  # its parent is already recorded
        return record.module(spec.name, "absent" if self.last else "named")

    def exec_module(self, module: types.ModuleType) -> None:
        if isinstance(module, _BarePackage):
            places = [folder / module.__name__.replace(".", "/") for folder in self.imported.folders]
            module.__path__ = [str(place) for place in places if place.is_dir()]


class Imported:
    """The modules of one target. `with imported:` makes them importable; on exit they are removed again."""

    def __init__(
        self,
        folders: Sequence[Path],
        own: str,
        record: StubRecord,
        *,
        named: Sequence[str] = (),
        auto: bool = False,
        bare: Sequence[str] = (),
    ) -> None:
        self.folders, self.own = tuple(folders), own
        self.record, self.auto = record, auto
        self.named = {*named, *(name for name in record.given if "." in name)}
        self.bare = frozenset(bare)
        self._mine: dict[str, Any] = {}
        self._displaced: dict[str, Any] = {}
        self._patched: list[tuple[dict[str, Any], str, Any]] = []
        self._before: set[str] = set()
        self._tops: dict[str, bool] = {}
        self._depth = 0
        self._finders = (_Finder(self, last=False), _Finder(self, last=True))

    def __enter__(self) -> "Imported":
        self._depth += 1
        if self._depth == 1:
            self._displaced = {name: sys.modules.pop(name) for name in list(sys.modules) if self._collides(name)}
            sys.modules.update(self._mine)
            for names, name, stub in self._patched:
                names[name] = stub
            self._before = set(sys.modules)
            sys.path[:0] = [str(folder) for folder in self.folders]
            sys.meta_path.insert(0, self._finders[0])  # pyright: ignore[reportArgumentType]
            sys.meta_path.append(self._finders[1])  # pyright: ignore[reportArgumentType]
        return self

    def __exit__(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            for finder in self._finders:
                sys.meta_path.remove(finder)  # pyright: ignore[reportArgumentType]
            for folder in self.folders:
                with contextlib.suppress(ValueError):
                    sys.path.remove(str(folder))
            for names, name, _ in self._patched:
                names.pop(name, None)
            new = {name: sys.modules[name] for name in set(sys.modules) - self._before}
            self._mine |= {name: module for name, module in new.items() if self._is_mine(module)}
            for name in self._mine:
                sys.modules.pop(name, None)
            sys.modules.update(self._displaced)

    def _collides(self, name: str) -> bool:
        top = name.partition(".")[0]
        if top == self.own or top in self.named or name in self.named or top in self.bare:
            return True
        if top not in self._tops:  # this runs for every loaded module at every call
            self._tops[top] = self._is_top(top)
        return self._tops[top]

    def _is_top(self, top: str) -> bool:
        return top not in sys.stdlib_module_names and any(
            (folder / top / "__init__.py").is_file() or (folder / f"{top}.py").is_file() for folder in self.folders
        )

    def _is_mine(self, module: Any) -> bool:
        if isinstance(module, StubModule | _BarePackage):
            return True
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
        return any(self._is_inside(str(place)) for place in places if place)

    def _is_inside(self, place: str) -> bool:
        return any(Path(folder) in Path(place).parents for folder in self.folders)

    def is_asked_by_target(self) -> bool:
        """Whether the target itself imports without a guard. An optional import of a library must fail as usual."""
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        while frame and _is_machinery(frame.f_code.co_filename):
            if frame.f_code.co_name == "find_spec" and frame.f_code.co_filename.endswith(("util.py", "util>")):
                return False  # importlib.util.find_spec only tests whether it exists
            frame = frame.f_back
        if frame is None:
            return False
        file = frame.f_code.co_filename
        return self._is_inside(file) and frame.f_lineno not in _guarded(file)

    def module(self, name: str) -> types.ModuleType:
        """Import a module of the target. With `auto`, failing third-party imports become stubs, one per attempt."""
        with self:
            importlib.invalidate_caches()
            for _ in range(_RETRIES):
                try:
                    return importlib.import_module(name)
                except Exception as error:
                    if not (self.auto and self._stand_in(error)):
                        raise CouldNotLoad(
                            f"import {name} from {self.folders[0].name}: {type(error).__name__}: {error}, so nothing "
                            "of it can be called. Name what fails in stubs or bare_packages, or cut the definition out."
                        ) from error
                    self._forget()
            raise CouldNotLoad(
                f"import {name}: more than {_RETRIES} modules needed stubs; cut the definition out instead"
            )

    def _forget(self) -> None:
        for name, module in list(sys.modules.items()):
            if name not in self._before and self._is_mine(module):
                del sys.modules[name]

    def _stand_in(self, error: BaseException) -> bool:
        """Make a stub of the third-party module whose import failed in a file of the target."""
        absent = re.match(r"cannot import name '(\w+)' from '([\w.]+)'", str(error))
        module = sys.modules.get(absent[2]) if absent else None
        if absent and module and not self._is_mine(module):
            stub = self.record.value(f"{absent[2]}.{absent[1]}", "the module here does not have it")
            self._patched.append((vars(module), absent[1], stub))
            vars(module)[absent[1]] = stub
            return True
        trace, line = error.__traceback__, ("", 0)
        while trace:
            file = trace.tb_frame.f_code.co_filename
            line = (file, trace.tb_lineno) if self._is_inside(file) else line
            trace = trace.tb_next
        name = _imported_at(*line)
        if not name or name in self.named or self._collides(name):
            return False
        self.named.add(name)
        self.record.replaced[name] = f"its import failed: {type(error).__name__}: {error}"[:200]
        for loaded in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
            del sys.modules[loaded]
        return True

    def give(self, given: dict[str, Any]) -> None:
        """Replace names in the target's modules by the caller's objects."""
        for module in self._mine.values():
            vars(module).update({name: value for name, value in given.items() if name in vars(module)})


def _is_machinery(file: str) -> bool:
    return file == __file__ or file.startswith("<frozen importlib") or Path(file).parent.name == "importlib"


def _imported_at(file: str, line: int) -> str:
    if not file:
        return ""
    for node in ast.walk(ast.parse(Path(file).read_text("utf-8-sig"))):
        if isinstance(node, ast.Import) and node.lineno <= line <= (node.end_lineno or line):
            return node.names[0].name
        if isinstance(node, ast.ImportFrom) and node.lineno <= line <= (node.end_lineno or line) and not node.level:
            return node.module or ""
    return ""


def leaf(name: str) -> Any:
    """The module itself, not its topmost package."""
    __import__(name)
    return sys.modules[name]


def gives(module: Any, part: str) -> bool:
    """Whether `from module import part` would work."""
    try:
        if hasattr(module, part):
            return True
        leaf(f"{module.__name__}.{part}")
    except Exception:  # a module may raise anything on import; then it counts as not having this part
        return False
    return hasattr(module, part)


def unregister(names: list[str]) -> None:
    """Remove our modules from sys.modules again."""
    for name in names:
        sys.modules.pop(name, None)

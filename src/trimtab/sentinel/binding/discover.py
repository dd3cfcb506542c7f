"""Units of your own module or package: subjects that it declares, and functions whose argument names are known.

Nothing is bound before its unit is made: binding a function by a guess calls it.
"""

import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab.errors import AdapterError, TrimtabError
from trimtab.sentinel.binding.callable import CannotCall, Found, found_in
from trimtab.sentinel.binding.reading import subject_of
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.loading.stubs import StubRecord
from trimtab.sentinel.targets.target import Part, Unbound, Unit

_FILES: dict[Path, ModuleType] = {}
"""Files that were loaded as modules."""


def subjects_of(target: str) -> Iterator[Subject | Unbound]:
    """Every subject of `mypkg`, `mypkg.losses`, `mypkg.losses:my_function` or `losses.py`, bound."""
    for unit in units_of(target):
        yield from unit.subjects()


def units_of(target: str, folder: str | None = None) -> list[Unit]:
    """What there is to check in your own code. `folder` is where it is looked for; by default the current one."""
    where, _, attribute = target.partition(":")
    module = load_module(where, folder)
    if attribute:
        value = getattr(module, attribute, None)
        if value is None:
            raise AdapterError(f"{where} has no {attribute}; it has {', '.join(sorted(_public(module))[:12])}.")
        if not callable(value) and not _is_declared(value):
            raise AdapterError(f"{where}:{attribute} is neither a subject nor a function.")
        return [Unit.of(part) for part in _parts(module, attribute, value)]
    if hasattr(module, "__path__") and not where.endswith(".py"):
        return list(_package(module))
    return [Unit.of(part) for part in parts_of(module)]


def _package(package: ModuleType) -> Iterator[Unit]:
    """One unit per module. A module is not imported before its turn, since that may fail, or end the process."""
    for name in (package.__name__, *_modules(package.__path__, package.__name__)):
        inside = name.removeprefix(package.__name__).lstrip(".")
        parts = functools.partial(_module_parts, name, f"{inside}." if inside else "")
        yield Unit(inside or name, parts)


def _modules(folders: Iterable[str], package: str) -> Iterator[str]:
    """Names of all modules below a package, without importing any."""
    for found in sorted(pkgutil.iter_modules(folders), key=lambda one: one.name):
        if found.name == "__main__":
            continue
        yield f"{package}.{found.name}"
        if found.ispkg:
            yield from _modules([str(Path(folder) / found.name) for folder in folders], f"{package}.{found.name}")


def _module_parts(name: str, prefix: str) -> list[Part]:
    return list(parts_of(importlib.import_module(name), prefix, is_asked=False))


def parts_of(module: ModuleType, prefix: str = "", *, is_asked: bool = True) -> Iterator[Part]:
    """The declared subjects of a module; or, where none is declared, its functions and the methods of its classes."""
    declared = {name: value for name, value in vars(module).items() if _is_declared(value)}
    for name, value in (declared or _public(module)).items():
        yield from _parts(module, name, value, prefix, is_asked=is_asked)


def _parts(module: ModuleType, name: str, value: Any, prefix: str = "", *, is_asked: bool = True) -> Iterator[Part]:
    if hasattr(value, "__trimtab__"):
        yield Part(name, lambda: (value.__trimtab__(boundary_of(value, root_of(module.__name__))),), is_exact=False)
    elif isinstance(value, Subject):
        yield Part(value.name, lambda: (value,))
    elif isinstance(value, list | tuple):
        yield Part(name, lambda: [one for one in value if isinstance(one, Subject)], is_exact=False)
    else:

        def bounded(found: Found) -> Boundary | None:
            return boundary_of(found.function, root_of(module.__name__))

        for label, find in found_in(module, name, value):
            shown = f"{prefix}{label}"
            make = functools.partial(guessed, module.__name__, shown, find, bounded, is_asked=is_asked)
            yield Part(shown, make, where=lambda find=find: bounded(find()))


def guessed(
    where: str, name: str, find: Callable[..., Found], bounded: Callable[[Found], Boundary | None], *, is_asked: bool
) -> Iterator[Subject | Unbound]:
    """A binding from names, shapes and what runs. It is a guess, and every report says so."""
    try:
        found = find()
        subject = subject_of(find)
    except (CannotCall, TrimtabError) as error:
        yield Unbound(name, f"{where}:{name}", str(error), is_asked)
        return
    except Exception as error:  # it was called, and may raise anything
        yield Unbound(name, f"{where}:{name}", f"{type(error).__name__}: {error}", is_asked)
        return
    yield replace(subject, name=name, boundary=bounded(found))


def load_module(where: str, folder: str | None = None) -> ModuleType:
    """Your module. Its folder comes last on the import path, so that no file in it replaces an installed package."""
    here = str(Path(folder or Path.cwd()).resolve())
    if where.endswith(".py"):
        return _load_file(Path(here, where).resolve(), where)
    if folder is not None and here not in sys.path:
        sys.path.append(here)
    try:
        _prefer_own(where.partition(".")[0], here)
        return importlib.import_module(where)
    except ImportError as error:
        raise AdapterError(
            f"{where} cannot be imported: {error}. Check that its folder is on the import path."
        ) from error


def _prefer_own(top: str, folder: str) -> None:
    """The package that was asked for is the one in the folder, even where another version of it is installed."""
    if top in sys.modules or top in sys.stdlib_module_names:
        return
    spec = importlib.machinery.PathFinder.find_spec(top, [folder])
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[top] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[top]
        raise


def _load_file(path: Path, where: str) -> ModuleType:
    if path in _FILES:
        return _FILES[path]
    if not path.is_file():
        raise AdapterError(f"{where}: no such file.")
    name = path.stem
    while name in sys.modules or name in sys.stdlib_module_names:  # a file may be called torch.py
        name = f"your_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    _FILES[path] = module
    return module


def root_of(target: str, folder: str | None = None) -> Path:
    """The folder that your own target is imported from. Its files are shown relative to it."""
    where = target.partition(":")[0]
    module = sys.modules[where] if where in sys.modules else load_module(where, folder)
    file = Path(str(module.__file__)).resolve()
    depth = len(module.__name__.split(".")) - (0 if file.name == "__init__.py" else 1)
    return file.parents[depth]


def boundary_of(fn: Callable[..., Any], root: Path) -> Boundary | None:
    """A function of this process as a boundary with file and lines, so that executed lines are known."""
    if not inspect.isfunction(fn):
        return None
    try:
        lines, first = inspect.getsourcelines(fn)
        file = Path(inspect.getfile(fn)).resolve()
        source = file.read_text("utf-8-sig")
    except (OSError, TypeError):
        return None
    shown = file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name
    spec = Spec(fn.__qualname__, module=fn.__module__, how="import")
    module = sys.modules.get(fn.__module__)
    last = first + len(lines) - 1
    named = functools.partial(getattr, module)
    return Boundary(spec, fn, shown, source, fn.__code__.co_filename, first, last, StubRecord(None), named)


def _is_declared(value: Any) -> bool:
    several = isinstance(value, list | tuple) and value and all(isinstance(one, Subject) for one in value)
    return isinstance(value, Subject) or bool(several) or hasattr(value, "__trimtab__")


def _public(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Functions and classes that the module itself defines, in source order."""
    return {
        name: value
        for name, value in list(vars(module).items())
        if callable(value) and getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }

"""Subjects of your own module: those that it declares, and functions whose argument names are commonly known."""

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab.errors import AdapterError, TrimtabError
from trimtab.sentinel.binding.callable import CannotCall, found_in
from trimtab.sentinel.binding.reading import subject_of
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.loading import Boundary, Spec
from trimtab.sentinel.loading.stubs import StubRecord
from trimtab.sentinel.targets.target import Unbound


def subjects_of(target: str) -> Iterator[Subject | Unbound]:
    """`mypkg.losses`, `mypkg.losses:my_subject`, `mypkg.losses:my_function` or `losses.py`."""
    where, _, attribute = target.partition(":")
    module = _module(where)
    if attribute:
        if not hasattr(module, attribute):
            raise AdapterError(f"{where} has no {attribute}; it has {', '.join(sorted(_public(module))[:12])}.")
        yield from _of(module, attribute, getattr(module, attribute), asked=True)
        return
    declared = [(n, v) for n, v in vars(module).items() if _is_declared(v)]
    for name, value in declared:
        yield from _of(module, name, value, asked=True)
    if not declared:
        for name, value in _public(module).items():
            yield from _of(module, name, value, asked=False)


def _module(where: str) -> ModuleType:
    if where in sys.modules:
        return sys.modules[where]
    if not where.endswith(".py"):
        try:
            return importlib.import_module(where)
        except ImportError as error:
            raise AdapterError(
                f"{where} cannot be imported: {error}. Check that its folder is on the import path."
            ) from error
    path = Path(where).resolve()
    if not path.is_file():
        raise AdapterError(f"{where}: no such file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def root_of(target: str) -> Path:
    """The folder that your own target is imported from. Its files are shown relative to it."""
    module = _module(target.partition(":")[0])
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


def _of(module: ModuleType, name: str, value: Any, *, asked: bool) -> Iterator[Subject | Unbound]:
    if hasattr(value, "__trimtab__"):
        value = value.__trimtab__(boundary_of(value, root_of(module.__name__)))
    if isinstance(value, Subject):
        yield value
    elif isinstance(value, list | tuple):
        yield from (one for one in value if isinstance(one, Subject))
    elif callable(value):
        yield from _guessed(module, name, value)
    elif asked:
        raise AdapterError(f"{module.__name__}:{name} is neither a subject nor a function.")


def _guessed(module: ModuleType, name: str, value: Callable[..., Any]) -> Iterator[Subject | Unbound]:
    """Bindings from names, shapes and what runs. They are guesses, and every report says so."""
    for label, find in found_in(module, name, value):
        try:
            found = find()
            subject = subject_of(find)
        except (CannotCall, TrimtabError) as error:
            yield Unbound(label, f"{module.__name__}:{label}", str(error))
            continue
        boundary = boundary_of(found.function, root_of(module.__name__))
        yield replace(subject, name=label, boundary=boundary)

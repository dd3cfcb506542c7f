"""Subjects of your own module: those that it declares, and functions whose argument names are commonly known."""

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from trimtab.errors import AdapterError, TrimtabError
from trimtab.sentinel.binding.bind import bind
from trimtab.sentinel.binding.names import GROUP_NAMES, KNOWN_ARGUMENTS
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
    """Functions that the module itself defines, in source order."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def _of(module: ModuleType, name: str, value: Any, *, asked: bool) -> Iterator[Subject | Unbound]:
    if hasattr(value, "__trimtab__"):
        value = value.__trimtab__(boundary_of(value, root_of(module.__name__)))
    if isinstance(value, Subject):
        yield value
    elif isinstance(value, list | tuple):
        yield from (one for one in value if isinstance(one, Subject))
    elif callable(value):
        yield _guessed(module, name, value)
    elif asked:
        raise AdapterError(f"{module.__name__}:{name} is neither a subject nor a function.")


def _guessed(module: ModuleType, name: str, fn: Callable[..., Any]) -> Subject | Unbound:
    """A binding from argument names alone. It is good for a first look, and it is reported as a guess."""
    try:
        names = inspect.signature(fn).parameters
        fields = {KNOWN_ARGUMENTS[n] for n in names if n in KNOWN_ARGUMENTS}
        fields |= {"group" for n in names if n in GROUP_NAMES}
        return bind(boundary_of(fn, root_of(module.__name__)) or fn, name=name, role=guessed_role(fields))
    except TrimtabError as error:
        return Unbound(name, f"{module.__name__}:{name}", str(error))


def guessed_role(fields: set[str]) -> str | None:
    """The most likely role of a function, from the fields that it reads."""
    logps = {field for field in fields if field.startswith("logp_")}
    if "logp_current" in logps and "advantage" in fields:
        return "policy_loss"
    if "token_loss" in fields:
        return "aggregation"
    if {"value", "returns"} <= fields:
        return "value_loss"
    if "token_reward" in fields:
        return "group_advantage" if "group" in fields else "returns"
    if "reward" in fields:
        return "group_advantage"
    return "kl" if len(logps) == 2 and fields <= logps | {"trainable"} else None

"""What can be called in a module: functions, methods and modules of torch, with their settings filled in.

The only place that makes objects of foreign classes without being told how.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from trimtab.sentinel.binding.words import GROUP_SIZES, field_of, number_of, words_of

CONFIGS = frozenset({"config", "cfg", "args", "settings", "conf", "hparams", "opts", "options"})
"""Words of an argument that holds settings as attributes or keys."""


class Config:
    """A config object nobody has written: each setting is a number that its name suggests, or off."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _setting(name)

    def __getitem__(self, name: str) -> Any:
        return _setting(name)

    def __contains__(self, name: str) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        return _setting(name) if default is None else default

    def __repr__(self) -> str:
        return "guessed"  # a label with an address would change from run to run


class Off(Config):
    """A setting that nothing is known about: off, and a table of such settings where it is read as one."""

    def __bool__(self) -> bool:
        return False


def _setting(name: str) -> Any:
    if name in GROUP_SIZES:
        return 2
    if words_of(name)[:1] in (["use"], ["is"], ["do"], ["enable"], ["has"]):
        return False
    number = number_of(name)
    return Off() if number is None else number


@dataclass(frozen=True)
class Found:
    """Something to call: with inputs by argument, and options by name."""

    name: str
    function: Callable[..., Any]
    """What is written in the file: for its lines and its signature."""
    arguments: Mapping[str, inspect.Parameter]
    """Arguments that no setting fills."""
    options: Mapping[str, Any]
    call: Callable[[Mapping[str, Any], Mapping[str, Any]], Any]


class CannotCall(Exception):
    """Nothing is known that could be given to it."""


def found_in(module: ModuleType, name: str, value: Any) -> Iterator[tuple[str, Callable[[], Found]]]:
    """What can be called of one name of a module: a function, the forward of a module of torch, or methods."""
    if inspect.isclass(value):
        for method in [] if dataclasses.is_dataclass(value) else _methods(value):
            yield f"{name}.{method}", lambda method=method: of_method(value, method)
    elif inspect.isfunction(inspect.unwrap(value)):
        yield name, lambda: of_function(value)


def _methods(cls: type) -> list[str]:
    if issubclass(cls, torch.nn.Module):
        return ["forward"]
    own = [name for name, value in vars(cls).items() if inspect.isfunction(value)]
    return [name for name in own if name == "__call__" or not name.startswith("__")]


def of_function(fn: Callable[..., Any]) -> Found:
    arguments, options = _sorted(inspect.signature(fn).parameters)
    return Found(fn.__name__, inspect.unwrap(fn), arguments, options, lambda given, chosen: fn(**given, **chosen))


def of_method(cls: type, method: str) -> Found:
    """A method of an object that is made with its defaults. Settings of the object are options of the call."""
    function = getattr(cls, method)
    arguments, own = _sorted({n: p for n, p in inspect.signature(function).parameters.items() if n != "self"})
    needed, settings = _sorted(inspect.signature(cls).parameters if "__init__" in vars(cls) else {})
    if needed:
        raise CannotCall(f"{cls.__name__} needs {', '.join(needed)} when it is made, and nothing is known about that")
    both = sorted(own.keys() & settings.keys())
    if both:
        raise CannotCall(f"{cls.__name__} and {method} both take {', '.join(both)}")

    def call(given: Mapping[str, Any], chosen: Mapping[str, Any]) -> Any:
        made = cls(**{n: v for n, v in chosen.items() if n in settings})
        return getattr(made, method)(**given, **{n: v for n, v in chosen.items() if n in own})

    return Found(f"{cls.__name__}.{method}", function, arguments, {**settings, **own}, call)


def _sorted(
    parameters: Mapping[str, inspect.Parameter],
) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """Arguments to fill, and settings with a value for each: their default, a config object, or a usual number."""
    arguments: dict[str, inspect.Parameter] = {}
    options: dict[str, Any] = {}
    for name, one in parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        words = set(words_of(name))
        if words & CONFIGS and one.default in (one.empty, None):
            options[name] = _config(one.annotation)
        elif name in GROUP_SIZES:
            options[name] = 2
        elif one.default is not one.empty and one.default is not None:
            options[name] = one.default
        elif one.default is one.empty and _is_number(name, one.annotation):
            options[name] = number_of(name)
        else:
            arguments[name] = one
    return arguments, options


def _is_number(name: str, annotation: Any) -> bool:
    plain = annotation in (inspect.Parameter.empty, float, int, "float", "int")
    return plain and field_of(name) is None and number_of(name) is not None


def _config(annotation: Any) -> Any:
    """The class that the signature names, made with its defaults; otherwise an object that suggests its settings."""
    if inspect.isclass(annotation) and dataclasses.is_dataclass(annotation) and not _needed(annotation):
        return annotation()
    return Config()


def _needed(cls: Any) -> list[str]:
    """Fields of a dataclass without a default."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing]

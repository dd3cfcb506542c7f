"""The settings of a function by name and by number, also those inside config objects."""

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from trimtab.sentinel.binding.callable import Config
from trimtab.sentinel.binding.subject import Subject


def named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, also those inside config objects."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        inner = inside(value)
        found |= inner if inner is not None else {name: value}
    return found


def inside(value: Any) -> dict[str, Any] | None:
    """What a config object holds; None for everything else."""
    if isinstance(value, Mapping):
        return {str(k): v for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Config):
        return dict(value.asked)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value)) if isinstance(value, SimpleNamespace | Namespace) else None


def settings_of(subject: Subject) -> list[float]:
    """Every number among its settings, also inside config objects."""
    found: dict[float, None] = {}
    for value in (*subject.options.values(), *subject.defaults.values()):
        for number in _numbers(value):
            found[number] = None
    return list(found)[:8]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, list | tuple):
        for one in cast("list[Any]", value):
            yield from _numbers(one)
    else:
        for one in (inside(value) or {}).values():
            yield from _numbers(one)

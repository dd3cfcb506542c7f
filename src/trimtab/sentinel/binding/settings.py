"""The settings of a function by name and by number, also those inside config objects.

`loss_config.clip_high` is the setting `clip_high` of the config object that the option `loss_config` holds. The only
place that reads and changes settings without knowing what holds them.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from trimtab.sentinel.binding.callable import Config, settings_in
from trimtab.sentinel.binding.subject import Subject


def setting(options: Mapping[str, Any], name: str) -> Any:
    """The value of a setting; None where there is none."""
    holder, _, inner = name.partition(".")
    held = options.get(holder)
    return (settings_in(held) or {}).get(inner) if inner else held


def with_setting(subject: Subject, name: str, value: Any) -> dict[str, Any]:
    """The options of a subject with one setting changed."""
    holder, _, inner = name.partition(".")
    held = _changed(settled(subject)[holder], inner, value) if inner else value
    return {**subject.options, holder: held}


def _changed(held: Any, name: str, value: Any) -> Any:
    if isinstance(held, Config):
        return held.with_setting(name, value)
    if isinstance(held, Mapping):
        return {**cast("Mapping[str, Any]", held), name: value}
    if dataclasses.is_dataclass(held) and not isinstance(held, type):
        return dataclasses.replace(held, **{name: value})
    return type(held)(**{**vars(held), name: value})


def settled(subject: Subject) -> dict[str, Any]:
    """Its options, and the settings that it gives a value itself."""
    return {**subject.defaults, **subject.options}


def others(subject: Subject) -> list[tuple[str, Any]]:
    """Every other value of a setting that its binding names or its body asks for."""
    own = settled(subject)
    found = [(n, v) for told in (subject.variants, subject.choices) for n, values in told.items() for v in values]
    known: list[tuple[str, Any]] = []
    for name, value in found:
        is_there = name.partition(".")[0] in own
        if is_there and (name, value) not in known and value != setting(own, name):
            known.append((name, value))
    return known


def switches(subject: Subject) -> list[tuple[str, Any]]:
    """Other values that choose another path through the body: texts, yes or no, and a number where there was none."""
    own = settled(subject)
    return [(n, v) for n, v in others(subject) if isinstance(v, bool | str) or setting(own, n) is None]


def modes(subject: Subject, *, numbers: bool = False) -> list[tuple[str, Subject]]:
    """The same function on each other path through its body, and how to say so; `numbers`: also with other numbers."""
    found = [
        (f"with {name} = {value!r}", replace(subject, options=with_setting(subject, name, value)))
        for name, value in (others if numbers else switches)(subject)
    ]
    return found[:MOST]


MOST = 6
"""How many other paths are looked at."""


def named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, also those inside config objects."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        inner = settings_in(value)
        found |= inner if inner is not None else {name: value}
    return found


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
        for one in (settings_in(value) or {}).values():
            yield from _numbers(one)

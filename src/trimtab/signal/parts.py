"""A formula with its settings: the only place that checks settings, hands a formula its inputs and takes its answer.

`part("policy_loss.clipped", band=(0.8, 1.2))` is what a recipe is made of, in Python and in run files.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

import numpy as np
from torch import Tensor

from trimtab.errors import SignalError, nearest
from trimtab.signal.catalogue import INPUTS, Formula, Rule, find
from trimtab.signal.layout import Segments
from trimtab.signal.tensors import as_tensor

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True)
class Part:
    """A formula with its settings, checked: what a recipe is made of."""

    formula: Formula
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not isinstance(self.formula, Formula):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SignalError(f"Part: formula is {self.formula!r}. Make one by name: part('policy_loss.clipped', …).")
        if not isinstance(self.settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SignalError(
                f"{self.formula.name}: settings are {self.settings!r}. Give a mapping of names to values."
            )
        object.__setattr__(self, "settings", _checked(self.formula, dict(self.settings)))

    def __call__(self, available: Mapping[str, Any]) -> Any:
        """Run the formula on the inputs it names."""
        inputs = pick(self.formula, available)
        return _check_answer(self.formula, self.formula.fn(**inputs, **self.own_settings), inputs)

    @cached_property
    def own_settings(self) -> dict[str, Any]:
        """The settings that the formula itself takes; its choosing formula has the others."""
        own = inspect.signature(self.formula.fn).parameters
        return {name: value for name, value in self.settings.items() if name in own}

    @cached_property
    def selector(self) -> "Part | None":
        """The choosing formula that runs before this one, with its share of the settings."""
        chooser = self.formula.selects
        if chooser is None:
            return None
        return Part(chooser, {name: value for name, value in self.settings.items() if name in chooser.settings})

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"part({self.formula.name!r}{settings})"

    def __str__(self) -> str:
        return f"{self.formula.name}({', '.join(f'{k}={_plain(v)}' for k, v in self.settings.items())})"


def run(part: Part, available: Mapping[str, Any]) -> Any:
    """Run a part inside the pipeline, which owes it everything that INPUTS promises its stage."""
    owed = [name for name in INPUTS[part.formula.stage] if name not in available]
    assert not owed, f"a {part.formula.stage} formula is promised {sorted(owed)}"
    return part(available)


def _plain(value: Any) -> str:
    if not isinstance(value, tuple):
        return f"{value}"
    bounds = cast("tuple[float, ...]", value)
    return f"({', '.join(f'{bound:g}' for bound in bounds)})"


def pick(entry: Formula, available: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs a formula names, out of what there is."""
    missing = [name for name in entry.inputs if available.get(name) is None]
    if missing:
        unknown = [name for name in missing if name not in available]
        if unknown:
            raise SignalError(
                f"{entry.name}: reads {unknown}{nearest(unknown[0], available)}, which is not there when a "
                f"{entry.stage} formula runs. It may read {', '.join(INPUTS[entry.stage])}, and the batch's extra "
                "fields; anything else is a setting: make it keyword-only."
            )
        have = sorted(name for name, value in available.items() if value is not None)
        raise SignalError(f"{entry.name}: needs {missing}, which this batch does not carry. It has {have}.")
    return {name: available[name] for name in entry.inputs}


OBSERVING = ("importance", "keep", "policy_loss", "value_loss")
"""Stages whose formulas return one number per token and a dictionary of observations."""


def _check_answer(entry: Formula, answer: Any, inputs: Mapping[str, Any]) -> Any:
    """What a formula returned, if it is what its stage returns; a formula from outside may not know."""
    if entry.stage not in OBSERVING:
        return answer
    both = cast("tuple[object, ...]", answer) if isinstance(answer, tuple) else ()
    if len(both) != 2 or not isinstance(both[1], dict):
        raise SignalError(
            f"{entry.name}: returned {type(cast('object', answer)).__name__}, not (one number per token, observations)."
            " End it with `return values, {}`."
        )
    values = both[0]
    lengths = {value.shape[0] for value in inputs.values() if isinstance(value, Tensor) and value.ndim == 1}
    lengths |= {value.num_tokens for value in inputs.values() if isinstance(value, Segments)}
    if not isinstance(values, Tensor) or values.ndim != 1 or values.shape[0] not in lengths:
        shown = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise SignalError(
            f"{entry.name}: returned {shown} where one number per token is due, so a mean or a sum was taken inside. "
            "Return the tokens; weighting decides what counts."
        )
    return both


def part(name: str, stage: str | tuple[str, ...] | None = None, **settings: Any) -> Part:
    """A formula with settings. Unknown, missing, ill-typed and contradicting settings are refused by name."""
    return Part(find(name, stage), settings)


def _checked(entry: Formula, given: dict[str, Any]) -> dict[str, Any]:
    """All settings of a formula: the given ones in their types, the others by default."""
    unknown = sorted(str(name) for name in given.keys() - entry.settings.keys())
    if unknown:
        raise SignalError(
            f"{entry.name}: has no setting {unknown}{nearest(unknown[0], entry.settings)}; "
            f"it takes {sorted(entry.settings) or 'none'}."
        )
    missing = [n for n, p in entry.settings.items() if p.default is inspect.Parameter.empty and n not in given]
    if missing:
        raise SignalError(f"{entry.name}: setting {missing} has no default; {_advice(entry)}")
    settings = {
        name: _value(entry, name, given[name]) if name in given else parameter.default
        for name, parameter in entry.settings.items()
    }
    for rule in (*entry.rules, *(entry.selects.rules if entry.selects else ())):
        if not rule.holds(settings):
            shown = ", ".join(f"{name} = {value!r}" for name, value in settings.items())
            raise SignalError(f"{entry.name}: {shown} is not possible: {rule.says}.")
    return settings


def _advice(entry: Formula) -> str:
    """The line of the docstring that starts with "Settings in use:", where a formula has no silent default."""
    lines = (inspect.getdoc(entry.fn) or "").splitlines()
    return next((line.strip() for line in lines if line.strip().startswith("Settings in use:")), "name a value.")


def _value(entry: Formula, name: str, value: Any) -> Any:
    """The value in the setting's type. A list stands for a tuple and an int for a float; nothing else is converted."""
    from pydantic import ValidationError

    annotation, reader = _reader(entry, name)
    plain = _plain_value(value, f"{entry.name}: setting {name}")
    try:
        if _holds_bool(plain) and bool not in _types(annotation):
            raise SignalError(f"{entry.name}: setting {name} = {value!r} is not possible: a number is due, not a bool.")
        read: object = reader.validate_python(plain, strict=True)
    except ValidationError as error:
        words = error.errors()[0]["msg"]
        raise SignalError(
            f"{entry.name}: setting {name} = {value!r} is not possible: {words[0].lower()}{words[1:]}."
        ) from error
    numbers = cast("tuple[object, ...]", read) if isinstance(read, tuple) else (read,)
    if any(number != number for number in numbers):
        raise SignalError(f"{entry.name}: setting {name} = {value!r} is not possible: nothing compares with nan.")
    for rule in _rules(annotation):
        if read is not None and not rule.holds(read):
            raise SignalError(f"{entry.name}: setting {name} = {value!r} is not possible: {rule.says}.")
    return cast("Any", read)


@cache
def _reader(entry: Formula, name: str) -> "tuple[Any, TypeAdapter[Any]]":
    from pydantic import TypeAdapter

    owner = entry if entry.selects is None or name not in entry.selects.settings else entry.selects
    hints = get_type_hints(owner.fn, include_extras=True)
    annotation = hints.get(name, Any)
    return annotation, TypeAdapter(annotation)


def _plain_value(value: Any, where: str) -> Any:
    """Lists as tuples, and the numbers and arrays of numpy and torch as Python's own."""
    if isinstance(value, Tensor):
        value = as_tensor(value, where)
    plain: Any = cast("Any", value).tolist() if isinstance(value, np.generic | np.ndarray | Tensor) else value
    if not isinstance(plain, list | tuple):
        return plain
    return tuple(_plain_value(inner, where) for inner in cast("list[Any]", plain))


def _holds_bool(value: Any) -> bool:
    return isinstance(value, bool) or (
        isinstance(value, tuple) and any(map(_holds_bool, cast("tuple[Any, ...]", value)))
    )


def _types(annotation: Any) -> set[Any]:
    return {annotation}.union(*map(_types, get_args(annotation))) if get_args(annotation) else {annotation}


def _rules(annotation: Any) -> list[Rule]:
    here = [rule for rule in getattr(annotation, "__metadata__", ()) if isinstance(rule, Rule)]
    return here + [rule for inner in getattr(annotation, "__args__", ()) for rule in _rules(inner)]

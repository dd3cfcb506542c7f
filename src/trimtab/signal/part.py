"""A formula with its settings: the only place that checks settings, hands a formula its inputs and takes its answer.

`part("policy_loss.clipped", band=(0.8, 1.2))` is what a recipe is made of.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_type_hints

from torch import Tensor

from trimtab.errors import SignalError
from trimtab.signal.formula import INPUTS, Formula, Rule, find


@dataclass(frozen=True)
class Part:
    """A formula with its settings, checked: what a recipe is made of."""

    formula: Formula
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, available: Mapping[str, Any]) -> Any:
        """Run the formula on the inputs it names."""
        own = inspect.signature(self.formula.fn).parameters
        settings = {name: value for name, value in self.settings.items() if name in own}
        inputs = pick(self.formula, available)
        return _answered(self.formula, self.formula.fn(**inputs, **settings), inputs)

    @property
    def selector(self) -> "Part | None":
        """The choosing formula that runs before this one, with its share of the settings."""
        chooser = self.formula.selects
        if chooser is None:
            return None
        return Part(chooser, {k: v for k, v in self.settings.items() if k in chooser.settings})

    def __str__(self) -> str:
        return f"{self.formula.name}({', '.join(f'{k}={_plain(v)}' for k, v in self.settings.items())})"


def _plain(value: Any) -> str:
    if not isinstance(value, tuple):
        return f"{value}"
    bounds = cast("tuple[float, ...]", value)
    return f"({', '.join(f'{bound:g}' for bound in bounds)})"


def pick(entry: Formula, available: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs a formula names, out of what there is."""
    missing = [name for name in entry.inputs if available.get(name) is None]
    if missing:
        unknown = [name for name in missing if name not in available and name not in INPUTS]
        if unknown:
            raise SignalError(
                f"{entry.name}: takes {unknown}, which the pipeline does not know. Inputs are "
                f"{', '.join(INPUTS)}, and the batch's extra fields; anything else is a setting: make it keyword-only."
            )
        have = sorted(name for name, value in available.items() if value is not None)
        raise SignalError(f"{entry.name}: needs {missing}, which this batch does not carry. It has {have}.")
    return {name: available[name] for name in entry.inputs}


OBSERVING = ("importance", "keep", "policy_loss", "value_loss")
"""Stages whose formulas return one number a token and a dictionary of observations."""


def _answered(entry: Formula, answer: Any, inputs: Mapping[str, Any]) -> Any:
    """What a formula returned, if it is what its stage returns; a formula from outside may not know."""
    if entry.stage not in OBSERVING:
        return answer
    both = cast("tuple[object, ...]", answer) if isinstance(answer, tuple) else ()
    if len(both) != 2 or not isinstance(both[1], dict):
        raise SignalError(
            f"{entry.name}: returned {type(cast('object', answer)).__name__}, not (one number a token, observations). "
            "End it with `return values, {}`."
        )
    values = both[0]
    lengths = {value.shape[0] for value in inputs.values() if isinstance(value, Tensor) and value.ndim == 1}
    if not isinstance(values, Tensor) or values.ndim != 1 or values.shape[0] not in lengths:
        shown = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise SignalError(
            f"{entry.name}: returned {shown} where one number a token is due, so a mean or a sum was taken inside. "
            "Return the tokens; weighting decides what counts."
        )
    return both


def part(name: str, stage: str | None = None, **settings: Any) -> Part:
    """A formula with settings. Unknown, missing and ill-typed settings are refused by name."""
    entry = find(name, stage)
    unknown = sorted(settings.keys() - entry.settings.keys())
    if unknown:
        raise SignalError(f"{entry.name}: has no setting {unknown}; it takes {sorted(entry.settings) or 'none'}.")
    missing = [n for n, p in entry.settings.items() if p.default is inspect.Parameter.empty and n not in settings]
    if missing:
        raise SignalError(f"{entry.name}: setting {missing} has no default; {_advice(entry)}")
    defaults = {n: p.default for n, p in entry.settings.items() if n not in settings}
    return Part(entry, {**defaults, **{n: _checked(entry, n, v) for n, v in settings.items()}})


def _advice(entry: Formula) -> str:
    """The line of the docstring that starts with "Settings in use:", where a formula has no silent default."""
    lines = (inspect.getdoc(entry.fn) or "").splitlines()
    return next((line.strip() for line in lines if line.strip().startswith("Settings in use:")), "name a value.")


def _checked(entry: Formula, name: str, value: Any) -> Any:
    """The value in the setting's type; pydantic reads it, since run files give lists for tuples and ints for floats."""
    from pydantic import TypeAdapter, ValidationError

    owner = entry if entry.selects is None or name not in entry.selects.settings else entry.selects
    annotation = get_type_hints(owner.fn, include_extras=True)[name]
    try:
        read: object = TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        raise SignalError(
            f"{entry.name}: setting {name} = {value!r} is not possible: {error.errors()[0]['msg']}."
        ) from error
    numbers = cast("tuple[object, ...]", read) if isinstance(read, tuple) else (read,)
    if any(number != number for number in numbers):
        raise SignalError(f"{entry.name}: setting {name} = {value!r} is not possible: nothing compares with nan.")
    for rule in _rules(annotation):
        if read is not None and not rule.holds(read):
            raise SignalError(f"{entry.name}: setting {name} = {value!r} is not possible: {rule.says}.")
    return cast("Any", read)


def _rules(annotation: Any) -> list[Rule]:
    here = [rule for rule in getattr(annotation, "__metadata__", ()) if isinstance(rule, Rule)]
    return here + [rule for inner in getattr(annotation, "__args__", ()) for rule in _rules(inner)]

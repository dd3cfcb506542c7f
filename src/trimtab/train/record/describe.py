"""The only place that turns a recipe into plain data: what will run, with its settings and sources, for the record.

`fields` is read from the dataclasses themselves, so that a new field is described too: two recipes that differ never
have equal descriptions. `parts` says the same for people, in the order in which it runs.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from trimtab.signal import Recipe
from trimtab.signal.catalogue import Formula
from trimtab.signal.parts import Part

WORDS = ("source", "summary")
"""Fields of a recipe that only people read. They may differ in a resumed run."""


def describe(recipe: Recipe) -> dict[str, object]:
    """The recipe as JSON: its name, what it is, every field of it, and its formulas in the order in which they run."""
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "source": recipe.source,
        "needs": sorted(recipe.needs),
        "fields": _data(recipe),
        "parts": [
            {
                "does": does,
                "formula": part.formula.name,
                "settings": {name: _shown(value) for name, value in part.settings.items()},
                "how": how,
                "means": part.formula.summary,
                "source": part.formula.source,
            }
            for does, part, how in _parts(recipe)
        ],
    }


def is_same(described: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether a recipe computes what was described, whatever words it uses about itself."""
    now = cast("dict[str, Any]", describe(recipe)["fields"])
    before = described.get("fields")
    if not isinstance(before, dict):
        return False
    return _text(cast("dict[str, Any]", before)) == _text(now)


def _text(described: dict[str, Any]) -> str:
    """As JSON text, in which 1 and true differ."""
    return json.dumps({name: value for name, value in described.items() if name not in WORDS}, sort_keys=True)


def _data(value: object) -> Any:
    """Plain data that is different for different values, all the way down."""
    if isinstance(value, Formula):
        return f"{value.fn.__module__}.{value.fn.__qualname__}" if not _is_ours(value) else value.name
    if is_dataclass(value):
        return {field.name: _data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _data(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_data(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, set | frozenset):
        return sorted(str(inner) for inner in cast("set[Any]", value))
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has none of these, and null would stand for all three
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 1 and 1.0 are one setting
    return value if isinstance(value, bool | int | float | str) or value is None else repr(value)


def _is_ours(formula: Formula) -> bool:
    return formula.fn.__module__.partition(".")[0] == "trimtab"


def _parts(recipe: Recipe) -> Iterator[tuple[str, Part, str]]:
    for part in recipe.reward:
        yield "shape the reward", part, ""
    yield "compare answers", recipe.normalize, ""
    yield "credit tokens", recipe.advantage, ""
    for stage in recipe.correction:
        yield "correct", stage.part, f"ratio {stage.pair}" if stage.pair else ""
    yield "policy loss", recipe.loss.part, f"against {recipe.loss.anchor}" if recipe.loss.anchor else ""
    if recipe.kl is not None:
        yield "stay near the reference", recipe.kl.part, f"{recipe.kl.coef:g} into {recipe.kl.into}"
    if recipe.value is not None and recipe.value.part is not None:
        yield "train the critic", recipe.value.part, f"{recipe.value.coef:g} in the loss"
    yield "weigh tokens", recipe.weighting, ""


def _shown(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) else str(value)

"""A recipe as the `[signal]` of a run file, in full: reading it back gives the same recipe."""

from collections.abc import Mapping
from typing import Any, cast

from trimtab.signal import KL, Part, Recipe, Stage, Term


def signal_table(recipe: Recipe) -> dict[str, Any]:
    """Every field of a recipe, as plain data."""
    table: dict[str, Any] = {
        "reward": [_part(one) for one in recipe.reward] or "none",
        "not_ended": recipe.not_ended,
        "filter_constant_groups": recipe.filter_constant_groups,
        "group_mean_band": "none" if recipe.group_mean_band is None else [*recipe.group_mean_band],
        "normalize": _part(recipe.normalize),
        "advantage": _part(recipe.advantage),
        "whiten_token_rewards": recipe.whiten_token_rewards,
        "whiten": recipe.whiten,
        "clip_advantage": "none" if recipe.clip_advantage is None else recipe.clip_advantage,
        "correction": [_stage(one) for one in recipe.correction] or "none",
        "loss": _stage(recipe.loss),
        "weighting": _part(recipe.weighting),
        "kl": "none" if recipe.kl is None else _kl(recipe.kl),
        "old": recipe.old,
        "allow_double_count": recipe.allow_double_count,
    }
    for name in ("entropy", "value", "nll", "observed"):
        term = getattr(recipe, name)
        table[name] = "none" if term is None else _term(term)
    return table


def _part(one: Part) -> dict[str, Any]:
    settings = {name: _plain(value) for name, value in one.settings.items() if value is not None}
    return {"formula": one.formula.name, **settings}


def _stage(one: Stage) -> dict[str, Any]:
    pair = {"ratio": one.ratio, "anchor": one.anchor}
    return {**_part(one.part), **{word: value for word, value in pair.items() if value is not None}}


def _kl(one: KL) -> dict[str, Any]:
    pair = {} if one.anchor is None else {"anchor": one.anchor}
    steering = {} if one.target is None else {"target": one.target, "horizon": one.horizon}
    return {**_part(one.part), "coef": one.coef, "into": one.into, "on": one.on, **pair, **steering}


def _term(one: Term) -> dict[str, Any]:
    return {**({} if one.part is None else _part(one.part)), "coef": one.coef, "on": one.on}


def _plain(value: Any) -> Any:
    return [*value] if isinstance(value, tuple) else value


def as_toml(value: Any) -> str:
    """A plain value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, Mapping):
        table = cast("Mapping[str, Any]", value)
        return "{ " + ", ".join(f"{name} = {as_toml(one)}" for name, one in table.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(as_toml(one) for one in cast("list[Any]", value)) + "]"
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf"}.get(str(value), repr(value))
    return str(value)

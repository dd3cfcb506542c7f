"""Two recipes that differ never describe alike, whichever field it is; new fields are covered by themselves."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from trimtab.signal import KL, Part, Recipe, Stage, Term, names, part, recipe
from trimtab.train.record.describe import describe, is_same

FULL = replace(
    recipe("ppo"),
    kl=KL(part("kl.k3"), 0.1, "loss"),
    entropy=Term(0.01),
    nll=Term(0.02),
    clip_advantage=3.0,
    correction=(Stage(part("importance.truncated", band=(0.0, 2.0), level="token"), ratio="engine"),),
)
"""A recipe in which every field holds something."""


def text(one: Recipe) -> str:
    return json.dumps(describe(one)["fields"], sort_keys=True)


def changed(value: Any, path: str) -> list[tuple[str, Any]]:
    """The value with one thing changed in it, for every thing in it."""
    if isinstance(value, Part):
        settings = [(f"{path}.{n}", _set(value, "settings", {**value.settings, n: "other"})) for n in value.settings]
        return [(f"{path}.formula", _set(value, "formula", part("reward.clip", low=0.0, high=1.0).formula)), *settings]
    if is_dataclass(value):
        return [
            (where, _set(value, one.name, other))
            for one in fields(value)
            for where, other in changed(getattr(value, one.name), f"{path}.{one.name}")
        ]
    if isinstance(value, tuple):
        inner = [(where, (other, *value[1:])) for where, other in (changed(value[0], f"{path}.0") if value else [])]
        return [*inner, (f"{path} longer", (*value, *(value or ("other",))))]
    return [(path, "other"), (path, None if value is not None else 0.5)]


def _set(value: Any, name: str, other: Any) -> Any:
    """A copy with one field changed, past all checks: what matters here is only how it is described."""
    copy = object.__new__(type(value))
    for one in fields(value):
        object.__setattr__(copy, one.name, other if one.name == name else getattr(value, one.name))
    return copy


def test_every_field_of_a_recipe_is_described() -> None:
    whole = text(FULL)
    seen: set[str] = set()
    for where, other in changed(FULL, "recipe"):
        found = json.dumps(_fields(other), sort_keys=True)
        assert found != whole, where
        seen.add(where)
    for owner in (Recipe, Stage, KL, Term):
        for one in fields(owner):
            assert any(f".{one.name}" in where for where in seen), (owner, one.name)


def _fields(one: Any) -> Any:
    from trimtab.train.record.describe import _data  # pyright: ignore[reportPrivateUsage]

    return _data(one)


def test_the_pairs_that_once_described_alike_do_not() -> None:
    base = recipe("grpo")
    others = [
        replace(base, nll=Term(0.1)), replace(base, clip_advantage=2.0), replace(base, entropy=Term(0.01)),
        replace(base, entropy=Term(0.02)), replace(base, kl=replace(base.kl or FULL.kl, on="kept")),
        replace(base, allow_double_count=True),
    ]  # fmt: skip
    assert len({text(one) for one in (base, *others)}) == len(others) + 1
    for one in others:
        assert not is_same(json.loads(json.dumps(describe(base))), one)


@pytest.mark.parametrize("name", names())
def test_a_recipe_is_itself_after_a_trip_through_json(name: str) -> None:
    from trimtab.train.record.disk import plain

    one = recipe(name)
    assert is_same(json.loads(json.dumps(plain(describe(one)))), one)
    assert is_same(json.loads(json.dumps(plain(describe(one)))), replace(one, summary="other words"))
    assert not is_same(json.loads(json.dumps(plain(describe(one)))), replace(one, name="other"))


def test_a_whole_number_is_one_setting_however_it_is_written() -> None:
    assert _fields(_set(FULL, "clip_advantage", 3)) == _fields(FULL)
    yes, one = (json.dumps(_fields(_set(FULL, "whiten", value))) for value in (True, 1))
    assert yes != one

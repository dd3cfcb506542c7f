"""Recipes by name: the only place that finds one, and that changes its fields.

`recipe("dapo")` is a complete choice; `recipe("dapo", not_ended="suppress")` is visibly the user's own.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from trimtab.errors import SignalError, nearest, unknown_name
from trimtab.signal import (
    advantage,
    baseline,
    correction,
    kl,
    normalize,
    off_policy_loss,
    policy_loss,
    prefix,
    reward,
    second_moment,
    several_rewards,
    teacher,
    token_baseline,
    trust_region,
    turns,
    value_loss,
    weighting,
)
from trimtab.signal.composition import Recipe
from trimtab.signal.framework_recipes import DEFAULTS
from trimtab.signal.ladder import LADDER
from trimtab.signal.recipes import PAPERS
from trimtab.signal.region_recipes import BOUNDED
from trimtab.signal.reward_recipes import CREDITED
from trimtab.signal.shorthand import read_field

FORMULA_MODULES = (
    reward, several_rewards, kl, normalize, baseline, advantage, turns, teacher, token_baseline, correction,
    trust_region, second_moment, prefix, policy_loss, off_policy_loss, value_loss, weighting,
)  # fmt: skip
"""The files whose formulas a recipe can name: importing one declares what is in it."""

_RECIPES: dict[str, Callable[[], Recipe]] = {
    build.__name__: build for build in (*LADDER, *PAPERS, *CREDITED, *BOUNDED, *DEFAULTS)
}


def names() -> list[str]:
    """Every recipe: the ladder first, then those of papers in the order of their files."""
    return list(_RECIPES)


def recipe(name: str, **changes: Any) -> Recipe:
    """A recipe by name, with the fields you change.

    A field is the object a recipe holds, or a short way to write it: a formula by name (weighting="token_mean"), a
    coefficient (kl=0.04), a table of what changes (loss={"band": (0.8, 1.3)}), the correction of another recipe
    (correction="tis"), None or "none" for nothing. A run file writes the same under [signal].
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise SignalError(f"recipe: a name is a text, not {name!r}. There are: {', '.join(names())}.")
    if name not in _RECIPES:
        raise SignalError(unknown_name("recipe", name, names()))
    base = _RECIPES[name]()
    known = sorted(f.name for f in fields(Recipe))
    unknown = sorted(changes.keys() - set(known))
    if unknown:
        raise SignalError(
            f"recipe {name!r}: has no field {unknown[0]!r}{nearest(unknown[0], known)}; it has {', '.join(known)}."
        )
    return replace(base, **{field: read_field(base, field, given, _RECIPES) for field, given in changes.items()})

"""Short ways to write a field of a recipe: the only place that reads words, numbers and tables as parts and stages.

`recipe("grpo", kl=0.01)` in Python and `signal.kl = 0.01` in a run file both come through here, so both mean the same
and both are refused with the same sentence. What has no one obvious meaning is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from trimtab.errors import SignalError, nearest
from trimtab.signal.catalogue import PAIR, catalog
from trimtab.signal.composition import Recipe
from trimtab.signal.ingredient import KL, Stage, Term
from trimtab.signal.parts import Part, part

OFF = (None, "none")
"""Nothing: Python writes None, a run file "none"."""

PARTS = ("weighting", "normalize", "advantage")
LISTS = {"reward": ("reward",), "correction": ("importance", "keep")}
TERMS = ("entropy", "value", "nll", "observed")


def read_field(base: Recipe, name: str, given: Any, lenders: Mapping[str, Callable[[], Recipe]]) -> Any:
    """One field as the recipe holds it. `base` supplies what is left out; `lenders` are recipes to take a correction
    from, by name."""
    where = f"recipe {base.name!r}: {name}"
    if name in PARTS:
        return _part(where, given, (name,), getattr(base, name))
    if name == "loss":
        return _stage(where, given, ("policy_loss",), base.loss)
    if name == "reward":
        return tuple(_part(where, one, LISTS[name], None) for one in _listed(given))
    if name == "correction":
        return tuple(stage for one in _listed(given) for stage in _stages(where, one, lenders))
    if name == "kl":
        return _kl(where, given, base.kl)
    if name in TERMS:
        return _term(where, name, given, getattr(base, name))
    if name == "group_mean_band":
        return None if _is_off(given) else tuple(_listed(given))
    return None if name == "clip_advantage" and _is_off(given) else given


def _is_off(given: Any) -> bool:
    return given is None or (isinstance(given, str) and given in OFF)


def _listed(given: Any) -> list[Any]:
    """One entry is a list of one; nothing is an empty list."""
    if _is_off(given):
        return []
    return list(cast("Sequence[Any]", given)) if isinstance(given, list | tuple) else [given]


def _is_number(given: Any) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _table(where: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    wrong = [key for key in given if not isinstance(key, str)]
    if wrong:
        raise SignalError(f"{where} has the key {wrong[0]!r}. Keys are names of settings.")
    return dict(given)


def _part(where: str, given: Any, stages: tuple[str, ...], base: Part | None) -> Part:
    """A part; a formula by name, with its default settings; or a table of settings, of the recipe's own formula if it
    names none."""
    if isinstance(given, Part):
        return given
    if isinstance(given, str) and given not in OFF:
        return part(given, stages)
    if isinstance(given, Mapping):
        settings = _table(where, cast("Mapping[Any, Any]", given))
        name = settings.pop("formula", None)
        if name is not None:
            return part(name, stages, **settings)
        if base is None:
            raise SignalError(
                f"{where} is a table with {sorted(settings) or 'nothing'} that names no formula, and the recipe has "
                'none here to change. Write formula = "…" in it.'
            )
        return Part(base.formula, {**base.settings, **settings})
    raise SignalError(
        f"{where} = {given!r} is not possible. Give a formula by name ({', '.join(_names(stages))}), "
        "or a table of settings."
    )


def _names(stages: tuple[str, ...]) -> list[str]:
    return [one.name.partition(".")[2] for one in catalog().values() if one.stage in stages]


def _stage(where: str, given: Any, stages: tuple[str, ...], base: Stage | None) -> Stage:
    if isinstance(given, Stage):
        return given
    table = _table(where, cast("Mapping[Any, Any]", given)) if isinstance(given, Mapping) else {}
    pair = {word: table.pop(word) for word in ("ratio", "anchor") if word in table}
    made = _part(where, table if isinstance(given, Mapping) else given, stages, base.part if base else None)
    if base is not None and not pair:
        reads = {"ratio": PAIR, "anchor": ("logp_anchor",)}
        inputs = made.formula.inputs
        pair = {word: getattr(base, word) for word, needed in reads.items() if not set(needed).isdisjoint(inputs)}
    return Stage(made, **pair)


def _stages(where: str, given: Any, lenders: Mapping[str, Callable[[], Recipe]]) -> tuple[Stage, ...]:
    """One correction; the name of a recipe stands for the correction of that recipe."""
    if not isinstance(given, str) or "." in given:
        return (_stage(where, given, LISTS["correction"], None),)
    lent = lenders[given]().correction if given in lenders else ()
    if lent:
        return lent
    formulas = _names(LISTS["correction"])
    if given not in formulas:
        able = sorted(name for name, build in lenders.items() if build().correction)
        raise SignalError(
            f"{where} = {given!r} is not possible{nearest(given, [*able, *formulas])}. Name a recipe that corrects "
            f"({', '.join(able)}), or a formula with its ratio ({', '.join(formulas)})."
        )
    return (_stage(where, given, LISTS["correction"], None),)


def _kl(where: str, given: Any, base: KL | None) -> KL | None:
    """A KL; its coefficient alone; a table of what changes; or nothing."""
    if _is_off(given) or isinstance(given, KL):
        return None if _is_off(given) else given
    if _is_number(given):
        given = {"coef": given}
    if not isinstance(given, Mapping):
        raise SignalError(
            f'{where} = {given!r} is not possible. Give a coefficient, a table such as formula = "k3", coef = 0.001, '
            'into = "loss", or "none".'
        )
    table = _table(where, cast("Mapping[Any, Any]", given))
    own = {word: table.pop(word) for word in ("coef", "into", "anchor", "on", "target", "horizon") if word in table}
    kept = ("coef", "into", "on", "target", "horizon")
    values: dict[str, Any] = {} if base is None else {word: getattr(base, word) for word in kept}
    values |= own
    if base is None and ("coef" not in own or "into" not in own or "formula" not in table):
        raise SignalError(
            f'{where}: the recipe has no KL to change. Write all of it: formula = "k3", coef = 0.001, into = "loss".'
        )
    made = _part(where, table, ("kl",), base.part if base else None)
    if base is not None and "anchor" not in own and "logp_anchor" in made.formula.inputs:
        values["anchor"] = base.anchor
    return KL(made, **values)


def _term(where: str, name: str, given: Any, base: Term | None) -> Term | None:
    """A term; its coefficient alone; a table of what changes; or nothing."""
    if _is_off(given) or isinstance(given, Term):
        return None if _is_off(given) else given
    if _is_number(given):
        given = {"coef": given}
    if not isinstance(given, Mapping):
        raise SignalError(
            f'{where} = {given!r} is not possible. Give a coefficient, a table such as coef = 0.01, or "none".'
        )
    table = _table(where, cast("Mapping[Any, Any]", given))
    own = {word: table.pop(word) for word in ("coef", "on") if word in table}
    values: dict[str, Any] = {} if base is None else {"coef": base.coef, "on": base.on}
    values |= own
    if "coef" not in values:
        raise SignalError(f"{where}: has no coef, so it would not act. Write coef = 0.01.")
    if name != "value" and table:
        raise SignalError(f"{where}: has no setting {sorted(table)}; it takes coef and on.")
    held = base.part if base else None
    made = _part(where, table, ("value_loss",), held) if table or (name == "value" and held is not None) else None
    return Term(part=made, **values)

"""What each field of a recipe holds: the only place that refuses a field that is not of the kind it is declared to be.

It looks at one field at a time; whether fields go together is said in rules.py.
"""

from typing import TYPE_CHECKING, Any, cast

from trimtab.errors import SignalError
from trimtab.signal.ingredient import KL, NotEnded, Old, Stage, Term, check_part, check_word
from trimtab.signal.parts import Part
from trimtab.signal.tensors import as_number

if TYPE_CHECKING:
    from trimtab.signal.composition import Recipe


def refuse_types(recipe: "Recipe") -> None:
    """Every field holds what it is declared to hold; a word that looks like a switch is not one."""
    where = f"recipe {recipe.name!r}"
    for name in ("name", "source", "summary"):
        if not isinstance(getattr(recipe, name), str):
            raise SignalError(f"{where}: {name} = {getattr(recipe, name)!r} is not a text.")
    for name in ("filter_constant_groups", "whiten_token_rewards", "whiten", "allow_double_count"):
        if not isinstance(getattr(recipe, name), bool):
            raise SignalError(f"{where}: {name} = {getattr(recipe, name)!r} is not possible. It is true or false.")
    check_word(where, "not_ended", recipe.not_ended, NotEnded)
    check_word(where, "old", recipe.old, Old)
    for name in ("weighting", "normalize", "advantage"):
        check_part(where, name, getattr(recipe, name))
    _check_all(where, "loss", (recipe.loss,), Stage, "Stage(part('clipped', …), anchor='old')")
    _check_all(where, "reward", recipe.reward, Part, "(part('reward.clip', …),)")
    _check_all(
        where, "correction", recipe.correction, Stage, "(Stage(part('importance.truncated', …), ratio='engine'),)"
    )
    if recipe.kl is not None:
        _check_all(where, "kl", (recipe.kl,), KL, "KL(part('kl.k3'), 0.001, 'loss')")
    for name in ("entropy", "value", "nll", "observed"):
        if getattr(recipe, name) is not None:
            _check_all(where, name, (getattr(recipe, name),), Term, "Term(0.01)")
    _check_band(where, recipe.group_mean_band)
    if recipe.clip_advantage is not None:
        says = "No advantage is left otherwise: it is a number above 0, and finite."
        _ = as_number(recipe.clip_advantage, where, "clip_advantage", lambda bound: 0 < bound < float("inf"), says)


def _check_band(where: str, given: object) -> None:
    if given is None:
        return
    bounds = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else ()
    are_numbers = all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds)
    if not (len(bounds) == 2 and are_numbers and bounds[0] < bounds[1]):
        raise SignalError(
            f"{where}: group_mean_band = {given!r} is not possible. It is (low, high) with low < high, as rewards go: "
            "(0, 1) drops groups that are all wrong or all right."
        )


def _check_all(where: str, name: str, given: object, kind: type, example: str) -> None:
    entries = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given,)
    wrong = [entry for entry in entries if not isinstance(entry, kind)]
    if wrong or not isinstance(given, tuple):
        shown = wrong[0] if wrong else entries[0]
        raise SignalError(f"{where}: {name} = {shown!r} is not possible. Write for instance {example}.")

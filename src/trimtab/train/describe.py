"""The only place that turns a recipe into plain data: what will run, with its settings and sources, for the record."""

from collections.abc import Iterator

from trimtab.signal import Recipe
from trimtab.signal.parts import Part


def described(recipe: Recipe) -> dict[str, object]:
    """The recipe as JSON: its name, what it is, and its formulas in the order in which they run."""
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "source": recipe.source,
        "not_ended": recipe.not_ended,
        "filter_constant_groups": recipe.filter_constant_groups,
        "whiten": recipe.whiten,
        "old": recipe.old,
        "needs": sorted(recipe.needs),
        "parts": [
            {
                "does": does,
                "formula": part.formula.name,
                "settings": {name: _plain(value) for name, value in part.settings.items()},
                "how": how,
                "means": part.formula.summary,
                "source": part.formula.source,
            }
            for does, part, how in _parts(recipe)
        ],
    }


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


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str) else str(value)

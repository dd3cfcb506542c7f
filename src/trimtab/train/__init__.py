"""The trainer: runs the signal for real. `train(settings)` is all of it; the rest of this package is how."""

from typing import TYPE_CHECKING

from trimtab.config.train import EarlyStop, ModelSettings, TrainSettings

if TYPE_CHECKING:
    from trimtab.signal import Recipe
    from trimtab.train.progress import Progress
    from trimtab.train.record import Summary

__all__ = ["DEFAULT_RECIPE", "EarlyStop", "ModelSettings", "TrainSettings", "train"]

DEFAULT_RECIPE = "start_on_policy"

NEEDED = ("transformers", "tokenizers", "safetensors", "matplotlib")


def train(
    settings: TrainSettings | None = None,
    recipe: "Recipe | str" = DEFAULT_RECIPE,
    *,
    quiet: bool = False,
    progress: "Progress | None" = None,
) -> "Summary":
    """Run to the end and return the summary; the run folder holds everything else.

    Tells its course on the terminal; with `quiet` only the result. `progress` takes the place of both.

    >>> train(TrainSettings(seed=1), "dapo").held_out_accuracy     # doctest: +SKIP
    0.988
    """
    _check_extras()
    from trimtab.signal import recipe as named
    from trimtab.train.loop import train_run
    from trimtab.train.progress import terminal_progress

    chosen = named(recipe) if isinstance(recipe, str) else recipe
    return train_run(settings or TrainSettings(), chosen, progress or terminal_progress(quiet=quiet))


def _check_extras() -> None:
    """All at once and before any work, so that nobody waits a minute for a report that cannot be drawn."""
    from importlib.util import find_spec

    from trimtab.errors import MissingExtra

    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra(f'trimtab train needs {package}: pip install "trimtab[train]"')

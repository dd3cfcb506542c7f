"""The trainer: runs the signal for real. `train(settings)` is all of it; the rest of this package is how."""

from typing import TYPE_CHECKING

from trimtab.train.settings import EarlyStop, ModelSettings, TrainSettings

if TYPE_CHECKING:
    from trimtab.train.progress import Progress
    from trimtab.train.record import Summary

__all__ = ["EarlyStop", "ModelSettings", "TrainSettings", "terminal_progress", "train"]

NEEDED = ("transformers", "tokenizers", "safetensors", "matplotlib")


def train(settings: TrainSettings | None = None, *, progress: "Progress | None" = None) -> "Summary":
    """Run to the end and return the summary; the run folder holds everything else.

    >>> train(TrainSettings(seed=1)).held_out_accuracy     # doctest: +SKIP
    0.988
    """
    _check_extras()
    from trimtab.signal import Recipe, recipe
    from trimtab.train.loop import train_run
    from trimtab.train.progress import Silent

    settings = settings or TrainSettings()
    chosen = settings.recipe if isinstance(settings.recipe, Recipe) else recipe(settings.recipe)
    return train_run(settings, chosen, progress or Silent())


def terminal_progress(*, quiet: bool) -> "Progress":
    """What the command line passes as `progress`."""
    from trimtab.train.progress import terminal_progress

    return terminal_progress(quiet=quiet)


def _check_extras() -> None:
    """All at once and before any work, so that nobody waits a minute for a report that cannot be drawn."""
    from importlib.util import find_spec

    from trimtab.errors import MissingExtra

    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra(f'trimtab train needs {package}: pip install "trimtab[train]"')

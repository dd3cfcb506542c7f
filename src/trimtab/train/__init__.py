"""The trainer: runs the signal for real. `train(settings)` is all of it; the rest of this package is how."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.config.train import EarlyStop, EngineSettings, ModelSettings, TaskSettings, TrainSettings

if TYPE_CHECKING:
    from trimtab.signal import Recipe
    from trimtab.train.record.record import Summary
    from trimtab.train.record.sink import Sink as Sink
    from trimtab.train.show.progress import Progress

__all__ = [
    "DEFAULT_RECIPE",
    "EarlyStop",
    "EngineSettings",
    "ModelSettings",
    "TaskSettings",
    "TrainSettings",
    "resume",
    "train",
]

DEFAULT_RECIPE = "start_async"

NEEDED = ("transformers", "tokenizers", "safetensors", "matplotlib")


def train(
    settings: TrainSettings | None = None,
    recipe: "Recipe | str" = DEFAULT_RECIPE,
    *,
    quiet: bool = False,
    progress: "Progress | None" = None,
    origin: Mapping[str, object] | None = None,
) -> "Summary":
    """Run to the end and return the summary; the run folder holds everything else.

    Shows its progress on the terminal; with `quiet`, only the result. `progress` replaces both. `origin` is the part
    of a run file that made the recipe; with it, `resume` needs no recipe.

    >>> train(TrainSettings(seed=1), "dapo").held_out_accuracy     # doctest: +SKIP
    0.988
    """
    _check_extras()
    from trimtab.signal import recipe as named
    from trimtab.train.show.progress import terminal_progress
    from trimtab.train.whole import train_run

    if isinstance(recipe, str):
        origin, recipe = origin or {"recipe": recipe}, named(recipe)
    settings, shown = settings or TrainSettings(), progress or terminal_progress(quiet=quiet)
    if settings.runtime == "ray":
        from trimtab.train.cluster.run import train_on_cluster

        return train_on_cluster(settings, recipe, shown, origin)
    return train_run(settings, recipe, shown, origin)


def resume(
    folder: Path,
    recipe: "Recipe | None" = None,
    *,
    changes: Mapping[str, object] | None = None,
    last_good: bool = False,
    accept_changes: bool = False,
    start_over: bool = False,
    trust: bool = False,
    quiet: bool = False,
    progress: "Progress | None" = None,
) -> "Summary":
    """Go on with a run from its last checkpoint, as if it had never stopped (`inline`: bit for bit).

    `changes` may name settings that touch nothing computed so far (`{"steps": 300}`). `recipe` is needed only if the
    run began with your own. What changed since the start is refused, with the reason, unless one of these allows
    it. `last_good`: go on from the newest checkpoint that is whole. `accept_changes`: go on with data or code that
    changed. `start_over`: begin at step 0 if every checkpoint is lost. `trust`: import code that a run from another
    machine or user names.
    """
    _check_extras()
    from trimtab.train.opening import Leave
    from trimtab.train.record.identity import read_identity
    from trimtab.train.show.progress import terminal_progress
    from trimtab.train.whole import resume_run

    leave, shown = Leave(last_good, accept_changes, start_over, trust), progress or terminal_progress(quiet=quiet)
    if read_identity(folder).config.get("runtime") == "ray":
        from trimtab.train.cluster.run import resume_on_cluster

        return resume_on_cluster(folder, recipe, changes or {}, shown, leave)
    return resume_run(folder, recipe, changes or {}, shown, leave)


def _check_extras() -> None:
    """All at once and before any work, so that nobody waits a minute for a report that cannot be drawn."""
    from importlib.util import find_spec

    from trimtab.errors import MissingExtra

    for package in NEEDED:
        if find_spec(package) is None:
            raise MissingExtra(f'trimtab train needs {package}: pip install "trimtab[train]"')

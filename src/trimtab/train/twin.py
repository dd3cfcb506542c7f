"""The only place that makes a run's uncorrected twin: the same run in everything but the correction."""

from dataclasses import replace
from pathlib import Path

from trimtab.config.train import TrainSettings
from trimtab.signal import Recipe, Stage, part
from trimtab.train.progress import Silent
from trimtab.train.record import Summary

FOLDER = "twin"


def uncorrected(recipe: Recipe) -> Recipe:
    """The recipe with a plain policy gradient and no correction: it takes every token for its own, however old."""
    return replace(
        recipe,
        name=f"{recipe.name} without correction",
        summary="The twin: plain policy gradient, blind to who sampled the tokens and when.",
        loss=Stage(part("policy_loss.reinforce")),
        correction=(),
        old="current",
    )


def twin_settings(settings: TrainSettings, run_dir: Path) -> TrainSettings:
    """The same settings, in a folder inside of the run's own; nothing but `steps` ends it, which is in its favour."""
    return settings.model_copy(update={"run_dir": run_dir / FOLDER, "early_stop": "never", "log_to": ()})


def train_twin(settings: TrainSettings, recipe: Recipe, summary: Summary) -> Summary:
    """Train the twin, then draw the run's report again with both."""
    from trimtab.report import write_report
    from trimtab.train.whole import train_run

    twin = train_run(twin_settings(settings, summary.run_dir), uncorrected(recipe), Silent())
    _ = write_report(summary.run_dir)
    return twin

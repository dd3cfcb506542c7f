"""The only place that makes a control run (`--twin`): the same run without correction."""

import os
from dataclasses import replace
from pathlib import Path

from trimtab.config.train import TrainSettings
from trimtab.signal import Recipe, Stage, part
from trimtab.train.record.record import Summary
from trimtab.train.show.progress import Silent

FOLDER = "twin"


def uncorrected(recipe: Recipe) -> Recipe:
    """The recipe with a plain policy gradient and no correction, as if the current policy had sampled every token."""
    return replace(
        recipe,
        name=f"{recipe.name} without correction",
        summary="The control run: a plain policy gradient that ignores which policy sampled the tokens.",
        loss=Stage(part("policy_loss.reinforce")),
        correction=(),
        old="current",
    )


def twin_settings(settings: TrainSettings, run_dir: Path) -> TrainSettings:
    """The same settings, in a folder inside the run's own. It never stops early, which can only help it."""
    return settings.model_copy(update={"run_dir": run_dir / FOLDER, "early_stop": "never", "log_to": ()})


def train_twin(settings: TrainSettings, recipe: Recipe, summary: Summary) -> Summary:
    """Train the control run, then write the run's report again with both runs."""
    from trimtab.report import write_report
    from trimtab.train import train

    twin = train(twin_settings(settings, summary.run_dir), uncorrected(recipe), progress=Silent())
    if os.environ.get("RANK", "0") == "0":  # every rank has trained; one writes
        _ = write_report(summary.run_dir)
    return twin

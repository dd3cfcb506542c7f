"""The only place that runs a run from its opening to its end, new or resumed, and gives back what it borrowed."""

import fcntl
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from trimtab.config import parse_run
from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError, SignalError
from trimtab.signal import Recipe
from trimtab.train.finish import finish
from trimtab.train.interrupt import stop_on_interrupt
from trimtab.train.loop import checkpoint, loop, publish
from trimtab.train.opening import check_same_recipe, open_new, open_resumed, read_json, resumed_settings
from trimtab.train.progress import Progress
from trimtab.train.record import Summary
from trimtab.train.run import Run


def train_run(
    settings: TrainSettings, recipe: Recipe, progress: Progress, origin: Mapping[str, object] | None = None
) -> Summary:
    """The whole run, from random parameters or a model folder to its summary."""
    with _threads(settings.threads), stop_on_interrupt() as stopped, progress:
        run = open_new(settings, recipe, progress, origin, stopped)
        with _alone(run.record.folder):
            return _course(run, stopped)


def resume_run(
    folder: Path, recipe: Recipe | None, changes: Mapping[str, object], progress: Progress, *, last_good: bool = False
) -> Summary:
    """The rest of a run that was stopped, killed, or is to get more steps."""
    settings, config = resumed_settings(folder, changes)
    if recipe is None:
        if not config.get("origin"):
            raise ConfigError(
                f"resume: {folder} was started from Python with a recipe of its own, so it cannot be rebuilt from the "
                "folder. Call trimtab.train.resume(folder, recipe)."
            )
        recipe = parse_run(config["origin"], str(folder / "config.json")).build_recipe()
    check_same_recipe(config, recipe)
    _refuse_finished(folder, settings)
    with _alone(folder), _threads(settings.threads), stop_on_interrupt() as stopped, progress:
        run = open_resumed(folder, settings, recipe, progress, last_good=last_good, stopped=stopped)
        return _course(run, stopped)


def _course(run: Run, stopped: Callable[[], bool]) -> Summary:
    """First checkpoint, steps, end; the sampler and its processes are closed whatever happens."""
    from trimtab.report import write_report

    try:
        publish(run)
        if run.tally.steps == 0 and run.tally.warm_started:
            checkpoint(run)
        outcome = loop(run, stopped)
        summary = finish(run, outcome)
    finally:
        run.runtime.close()
        run.judge.scorer.close()
        run.sinks.close()
        shutil.rmtree(run.record.folder / ".sampler", ignore_errors=True)
    _ = write_report(run.record.folder)
    run.progress.finished(summary)
    if outcome == "nonfinite":
        raise SignalError(
            f"train: loss or gradient was not finite in {run.tally.nonfinite_in_row} optimiser steps in a row, so the "
            f"run stopped after step {run.tally.steps - 1}. No such step was taken: the parameters are those of the "
            f"last good one. The sequences behind them are in {run.record.folder / 'nonfinite'}; "
            "lower train.lr or the bound on the ratio, then look at report.html."
        )
    return summary


def _refuse_finished(folder: Path, settings: TrainSettings) -> None:
    summary = folder / "summary.json"
    if not summary.is_file():
        return
    ended = read_json(summary)
    if ended["outcome"] == "early_stop" or (ended["outcome"] == "finished" and int(ended["steps"]) >= settings.steps):
        why = "it was accurate enough" if ended["outcome"] == "early_stop" else f"all {ended['steps']} steps are done"
        raise ConfigError(
            f"resume: {folder} is finished ({why}), so there is nothing to go on with. For more, give for instance "
            f"train.steps={2 * int(ended['steps'])} train.early_stop=never."
        )


@contextmanager
def _threads(count: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Two processes that train in one folder would write over each other: the second is refused."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"train: another process is training in {folder}, so two runs would write over each other. Wait for "
                "it, stop it, or give another folder."
            ) from error
        yield

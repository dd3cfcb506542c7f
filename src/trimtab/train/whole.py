"""The only place that runs a run from its opening to its end, new or resumed, and closes what it opened."""

import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from trimtab.config import parse_run
from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError, SignalError
from trimtab.signal import Recipe
from trimtab.train.claim import claim, claim_new
from trimtab.train.disk import writing
from trimtab.train.finish import finish
from trimtab.train.identity import Identity, read_identity, read_json
from trimtab.train.inputs import hash_inputs, named_code, refuse_code
from trimtab.train.interrupt import StopRequest, stop_on_signals
from trimtab.train.loop import DIVERGED, checkpoint, loop, publish
from trimtab.train.opening import Leave, check_same_recipe, open_new, open_resumed, resumed_settings
from trimtab.train.precheck import precheck
from trimtab.train.progress import Progress, Unbroken
from trimtab.train.record import Summary
from trimtab.train.run import Run
from trimtab.train.setup import task_and_policy

SAMPLER = ".sampler"
"""Folder in a run's own: the copy of the model that a sampler process starts from."""


def train_run(
    settings: TrainSettings, recipe: Recipe, progress: Progress, origin: Mapping[str, object] | None = None
) -> Summary:
    """The whole run, from random parameters or a model folder to its summary."""
    _ = precheck(settings, recipe)  # before threads, the warm start and the folder
    with _use_threads(settings.threads), stop_on_signals() as stopped, Unbroken(progress) as progress:
        parts = task_and_policy(settings)  # before the folder: a refusal leaves none behind
        with claim_new(settings.run_dir, settings.seed) as folder:
            return _train_to_end(open_new(folder, settings, recipe, progress, origin, parts, stopped), stopped)


def resume_run(
    folder: Path,
    recipe: Recipe | None,
    changes: Mapping[str, object],
    progress: Progress,
    leave: Leave | None = None,
) -> Summary:
    """The rest of a run that was stopped, killed, or is to get more steps."""
    leave = leave or Leave()
    _ = read_identity(folder)  # a folder that holds no run gets no lock file either
    with claim(folder):
        identity = read_identity(folder)
        settings = resumed_settings(identity, changes)
        _check_code_and_data(identity, settings, recipe, leave)
        recipe = recipe or _own_recipe(identity)
        check_same_recipe(identity, recipe)
        done = _finish_killed(folder, settings)
        if done is not None:
            progress.finished(done)
            return done
        _ = precheck(settings, recipe)
        with _use_threads(settings.threads), stop_on_signals() as stopped, Unbroken(progress) as progress:
            run = open_resumed(identity, settings, recipe, progress, leave=leave, stopped=stopped)
            return _train_to_end(run, stopped)


def _check_code_and_data(identity: Identity, settings: TrainSettings, recipe: Recipe | None, leave: Leave) -> None:
    """Check, before anything is imported, whose code it is and whether code and data are what they were."""
    origin = identity.config.get("origin")
    if not leave.trust and not identity.is_own:
        refuse_code(named_code(settings, origin), "resume", identity.folder)
    identity.compare_inputs(hash_inputs(settings, origin, recipe), accept=leave.accept_changes)


def _own_recipe(identity: Identity) -> Recipe:
    origin = identity.config.get("origin")
    if not origin:
        raise ConfigError(
            f"resume: {identity.folder} was started from Python with a recipe of its own, so it cannot be rebuilt from "
            "the folder. Call trimtab.train.resume(folder, recipe)."
        )
    return parse_run(origin, str(identity.folder / "config.json")).build_recipe()


def _train_to_end(run: Run, stopped: StopRequest) -> Summary:
    """First checkpoint, steps, end. The sampler and its processes are always closed."""
    try:
        publish(run)
        if run.tally.steps == 0 and run.tally.warm_started:
            checkpoint(run)
        outcome = loop(run, stopped)
        summary = finish(run, outcome, stopped.signal)
    finally:
        run.runtime.close()
        run.judge.scorer.close()
        run.sinks.close()
        shutil.rmtree(run.record.folder / SAMPLER, ignore_errors=True)
    _write_report(run.record.folder)
    run.progress.finished(summary)
    if outcome == "diverged":
        raise SignalError(
            f"train: after step {run.tally.steps - 1} the parameters are not finite or their norm is more than "
            f"{DIVERGED:g} times that of the start, so the policy is destroyed and the run stopped. best/ holds the "
            "policy of the best evaluation. Lower train.lr or train.grad_clip, then look at report.html."
        )
    if outcome == "nonfinite":
        raise SignalError(
            f"train: loss or gradient was not finite in {run.tally.nonfinite_in_row} optimiser steps in a row, so the "
            f"run stopped after step {run.tally.steps - 1}. No such step was taken: the parameters are those of the "
            f"last good one. The sequences behind them are in {run.record.folder / 'nonfinite'}; "
            "lower train.lr or the bound on the ratio, then look at report.html."
        )
    return summary


def _write_report(folder: Path) -> None:
    from trimtab.report import write_report

    with writing(folder / "report.html"):
        _ = write_report(folder)


def _finish_killed(folder: Path, settings: TrainSettings) -> Summary | None:
    """Write the report of a run that was killed between its last step and its report, and return the summary.

    None for a run that can go on. A run that is complete is refused, with what to ask for.
    """
    path = folder / "summary.json"
    if not path.is_file():
        return None
    ended = read_json(path)
    is_early = ended.get("outcome") == "early_stop"
    if not is_early and not (ended.get("outcome") == "finished" and int(ended["steps"]) >= settings.steps):
        return None
    page = folder / "report.html"
    left_over = [one for one in folder.glob(".*") if one.is_dir()]
    if left_over or not page.is_file() or page.stat().st_mtime_ns < path.stat().st_mtime_ns:
        for one in left_over:
            shutil.rmtree(one, ignore_errors=True)
        _write_report(folder)
        return Summary.from_json(ended)
    why = "it was accurate enough" if is_early else f"all {ended['steps']} steps are done"
    raise ConfigError(
        f"resume: {folder} is finished ({why}), so there is nothing to go on with. For more, give for instance "
        f"train.steps={2 * int(ended['steps'])} train.early_stop=never."
    )


@contextmanager
def _use_threads(count: int) -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

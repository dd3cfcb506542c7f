"""The only place that runs a run from its opening to its end, new or resumed, and closes what it opened."""

import shutil
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from trimtab.config import parse_run
from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError, SignalError
from trimtab.signal import Recipe
from trimtab.train.checks.precheck import precheck
from trimtab.train.finish import finish
from trimtab.train.interrupt import StopRequest, stop_on_signals
from trimtab.train.loop import loop
from trimtab.train.opening import SAMPLER, Leave, check_same_recipe, open_new, open_resumed, resumed_settings
from trimtab.train.publish import publish
from trimtab.train.record.claim import claim, claim_new
from trimtab.train.record.disk import writing
from trimtab.train.record.identity import Identity, read_identity, read_json
from trimtab.train.record.inputs import hash_inputs, named_code, refuse_code
from trimtab.train.record.record import Summary
from trimtab.train.record.snapshot import checkpoint
from trimtab.train.run import Run
from trimtab.train.setup import task_and_policy
from trimtab.train.show.progress import Progress, Silent, Unbroken
from trimtab.train.stops import DIVERGED
from trimtab.train.world import open_world


def train_run(
    settings: TrainSettings, recipe: Recipe, progress: Progress, origin: Mapping[str, object] | None = None
) -> Summary:
    """The whole run, from random parameters or a model folder to its summary; on every rank that torchrun started."""
    with open_world(timeout=settings.rank_timeout) as world, ExitStack() as held:
        _ = world.lead(lambda: _checked(settings, recipe))  # before threads, the warm start and the folder
        _ = held.enter_context(_use_threads(settings.threads))
        stopped = held.enter_context(stop_on_signals(patient=world.size > 1))
        told = held.enter_context(Unbroken(progress if world.is_first else Silent()))
        parts = task_and_policy(settings)  # before the folder: a refusal leaves none behind
        claimed = world.lead(lambda: {"folder": str(held.enter_context(claim_new(settings.run_dir, settings.seed)))})
        run = open_new(Path(claimed["folder"]), settings, recipe, told, origin, parts, stopped, world)
        return _train_to_end(run, stopped)


def _checked(settings: TrainSettings, recipe: Recipe) -> dict[str, object]:
    _ = precheck(settings, recipe)
    return {}


def resume_run(
    folder: Path,
    recipe: Recipe | None,
    changes: Mapping[str, object],
    progress: Progress,
    leave: Leave | None = None,
) -> Summary:
    """The rest of a run that was stopped, killed, or is to get more steps, on any number of ranks."""
    identity = read_identity(folder)  # a folder that holds no run gets no lock file either
    return go_on(identity, resumed_settings(identity, changes), recipe, progress, leave or Leave())


def go_on(
    identity: Identity, settings: TrainSettings, recipe: Recipe | None, progress: Progress, leave: Leave
) -> Summary:
    """The same on a rank that was told what the folder says: only rank 0 looks into it."""
    folder = identity.folder
    with open_world(timeout=settings.rank_timeout) as world, ExitStack() as held:
        done: list[Summary | None] = [None]

        def look() -> dict[str, object]:
            held.enter_context(claim(folder))
            identity = read_identity(folder)
            _check_code_and_data(identity, settings, recipe, leave)
            check_same_recipe(identity, recipe or _own_recipe(identity))
            done[0] = _finish_killed(folder, settings)
            if done[0] is None:
                _ = precheck(settings, recipe or _own_recipe(identity))
            return {"done": None if done[0] is None else done[0].to_json()}

        told = world.lead(look)["done"]
        if told is not None:
            summary = done[0] or Summary.from_json(told)
            progress.finished(summary)
            return summary
        identity = read_identity(folder) if world.is_first else identity
        _ = held.enter_context(_use_threads(settings.threads))
        stopped = held.enter_context(stop_on_signals(patient=world.size > 1))
        shown = held.enter_context(Unbroken(progress if world.is_first else Silent()))
        chosen = recipe or _own_recipe(identity)
        run = open_resumed(identity, settings, chosen, shown, leave=leave, stopped=stopped, world=world)
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
        if run.lead is not None:
            run.lead.close()
            shutil.rmtree(run.folder / SAMPLER, ignore_errors=True)
    if run.lead is not None:
        _write_report(run.folder)
        run.lead.progress.finished(summary)
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
            f"last good one. The sequences behind them are in {run.folder / 'nonfinite'}; "
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

"""The only place that opens a run: a new one from settings, or one that goes on from its last checkpoint."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from trimtab.config.train import TrainSettings
from trimtab.errors import CheckpointError, ConfigError
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.task import Task
from trimtab.signal import Recipe
from trimtab.train.checkpoint import Checkpoint, newest_checkpoint
from trimtab.train.describe import described
from trimtab.train.diagnose import Probe
from trimtab.train.learn import Learner
from trimtab.train.policy import Policy
from trimtab.train.progress import Progress
from trimtab.train.record import Record, fingerprint, manifest, open_record
from trimtab.train.run import Run, Tally, restore_learner, restored_groups, restored_tally
from trimtab.train.setup import new_buffer, new_collector, new_engine, open_runtime, task_and_policy
from trimtab.train.sink import open_sinks
from trimtab.train.warmstart import warm_start

CHANGEABLE = frozenset(
    ("steps", "max_minutes", "early_stop", "checkpoint_every", "keep_checkpoints", "dump_batches", "log_to", "run_dir")
)
"""Settings that a resumed run may change: none of them touches a number that was already computed."""


def check_run(settings: TrainSettings, recipe: Recipe) -> None:
    """What settings and recipe must agree on, before any work."""
    engine = settings.engine
    reads_ratio = [stage for stage in (recipe.loss, *recipe.correction) if stage.pair in ("engine", "total")]
    if (engine.top_p < 1 or engine.top_k) and reads_ratio and not engine.record_support:
        raise ConfigError(
            f"train.engine: top_p {engine.top_p:g} and top_k {engine.top_k} cut tokens away in sampling, and recipe "
            f"{recipe.name!r} divides by the sampler's probabilities, so every ratio would be wrong by the share that "
            "was cut. Set train.engine.record_support=true, or top_p=1 and top_k=0."
        )


def cautions(settings: TrainSettings) -> tuple[str, ...]:
    """What is allowed and yet seldom meant."""
    cores = os.cpu_count() or 1
    if settings.runtime == "processes" and 2 * settings.threads > max(cores, 2):
        return (
            f"train.threads: sampler and learner with {settings.threads} threads each want {2 * settings.threads} of "
            f"{cores} cores, so they wait for each other in every operation, and a step can take ten times as long. "
            f"Set train.threads={max(cores // 2, 1)}.",
        )
    return ()


@dataclass(frozen=True)
class Opening:
    """A run before its first step: what a new one and a resumed one have alike."""

    settings: TrainSettings
    recipe: Recipe
    progress: Progress
    record: Record
    run_id: str
    task: Task
    policy: Policy
    started: float = field(default_factory=time.perf_counter)

    def begun(self, stopped: Callable[[], bool]) -> Run:
        """Warm start, then a learner; its reference, if it has one, is the policy as the warm start left it."""
        if self.settings.warm_start_steps:
            self.progress.stage(f"warm start: {self.settings.warm_start_steps} supervised steps")
            _ = warm_start(self.policy, self.settings, stopped=stopped)
        learner = Learner(self.policy, self.recipe, self.settings)
        return self._run(learner, Tally(warm_started=not stopped()), new_buffer(self.settings), resumed_step=None)

    def gone_on(self, saved: Checkpoint) -> Run:
        """Everything as the checkpoint has it."""
        learner = Learner(self.policy, self.recipe, self.settings)
        restore_learner(learner, saved)
        tally = restored_tally(saved.state, saved.step)
        tally.resumed += 1
        buffer = new_buffer(self.settings)
        buffer.restore(saved.state["buffer"], restored_groups(saved))
        return self._run(learner, tally, buffer, resumed_step=saved.step)

    def _run(self, learner: Learner, tally: Tally, buffer: Buffer, *, resumed_step: int | None) -> Run:
        settings, policy, folder = self.settings, self.policy, self.record.folder
        for caution in cautions(settings):
            self.progress.stage(f"warning: {caution}")
        return Run(
            settings=settings,
            run_id=self.run_id,
            task=self.task,
            policy=policy,
            learner=learner,
            runtime=open_runtime(policy, settings, buffer, folder / ".sampler"),
            judge=new_collector(policy, settings, engine=new_engine(policy, settings, exact=True)),
            probe=Probe(learner, pad_id=policy.pad_id, keeps_copy=settings.runtime != "inline"),
            record=self.record,
            progress=self.progress,
            sinks=open_sinks(
                settings.log_to, folder, resumed_step=resumed_step, config=settings.model_dump(mode="json")
            ),
            tally=tally,
            started=self.started,
        )


def open_new(
    settings: TrainSettings,
    recipe: Recipe,
    progress: Progress,
    origin: Mapping[str, object] | None,
    stopped: Callable[[], bool],
) -> Run:
    """Folder, model, warm start, sampler: all that comes before the first step."""
    check_run(settings, recipe)
    task, policy = task_and_policy(settings)
    record = open_record(settings.run_dir, settings.seed)
    progress.opened(settings, recipe.name, record.folder)
    facts = manifest(settings, policy.dtype)
    config = {**settings.model_dump(mode="json"), "recipe": described(recipe), "origin": origin}
    run_id = fingerprint({"config": config, "started": facts["started"], "folder": str(record.folder.resolve())})
    record.write_json("config.json", config)
    record.write_json("manifest.json", {**facts, "run_id": run_id})
    return Opening(settings, recipe, progress, record, run_id, task, policy).begun(stopped)


def open_resumed(
    folder: Path,
    settings: TrainSettings,
    recipe: Recipe,
    progress: Progress,
    *,
    last_good: bool,
    stopped: Callable[[], bool],
) -> Run:
    """The run as it was at its last checkpoint; lines written after it are cut off, for they will be written again."""
    run_id = str(read_json(folder / "manifest.json").get("run_id", ""))
    saved = newest_checkpoint(folder / "checkpoints", run_id, last_good=last_good)
    check_run(settings, recipe)
    record = Record(folder)
    task, policy = task_and_policy(settings)
    progress.opened(settings, recipe.name, folder)
    record.cut_back(0 if saved is None else saved.step)
    opening = Opening(settings, recipe, progress, record, run_id, task, policy)
    if saved is None:
        progress.stage("no checkpoint was written yet: beginning again")
        return opening.begun(stopped)
    progress.stage(f"going on from step {saved.step}")
    return opening.gone_on(saved)


def resumed_settings(folder: Path, changes: Mapping[str, object]) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings a run was started with, with the few that may change; and the whole config."""
    config = read_json(folder / "config.json")
    refused = sorted(set(changes) - CHANGEABLE)
    if refused:
        raise ConfigError(
            f"resume: {refused[0]} cannot change in the middle of a run, for what is already learned depends on it. "
            f"Only {', '.join(sorted(CHANGEABLE - {'run_dir'}))} can; start a new run for the rest."
        )
    known = {name: value for name, value in config.items() if name in TrainSettings.model_fields}
    settings = TrainSettings.model_validate_json(json.dumps({**known, **changes}, default=str))
    return settings.model_copy(update={"run_dir": folder}), config


def check_same_recipe(config: Mapping[str, Any], recipe: Recipe) -> None:
    """A resumed run must go on with what it began with."""
    if json.loads(json.dumps(described(recipe), default=str)) != config["recipe"]:
        raise CheckpointError(
            f"resume: the run was started with recipe {config['recipe']['name']!r} and its settings of then, and "
            f"{recipe.name!r} as it is now runs other formulas or settings, so the run would change its meaning. "
            "Give the recipe it was started with, or start a new run."
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder, or a sentence about why not."""
    try:
        return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ConfigError(
            f"resume: {path} is missing, so {path.parent} is not the folder of a run. "
            "Give one that `trimtab train` made."
        ) from error
    except ValueError as error:
        raise ConfigError(f"resume: {path} is not JSON ({error}), so the run cannot be understood.") from error

"""The only place that opens a run: a new one from settings, or one that goes on from its last checkpoint."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from trimtab.config.train import TrainSettings
from trimtab.errors import CheckpointError, ConfigError
from trimtab.rollout.buffer import Buffer
from trimtab.rollout.task import Task
from trimtab.signal import Recipe
from trimtab.train.cautions import cautions
from trimtab.train.checkpoint import Checkpoint, newest_checkpoint, settle_checkpoints
from trimtab.train.describe import describe, is_same
from trimtab.train.diagnose import Probe
from trimtab.train.disk import restore_folder
from trimtab.train.identity import Identity, write_identity
from trimtab.train.inputs import hash_inputs
from trimtab.train.learn import Learner
from trimtab.train.policy import Policy
from trimtab.train.progress import Progress
from trimtab.train.record import Record, manifest
from trimtab.train.run import Run, Tally, restore_learner, restored_rollouts, restored_tally
from trimtab.train.setup import new_buffer, new_collector, new_engine, open_runtime, task_and_policy
from trimtab.train.sink import open_sinks
from trimtab.train.warmstart import warm_start

CHANGEABLE = frozenset(
    ("steps", "max_minutes", "early_stop", "checkpoint_every", "keep_checkpoints", "dump_batches", "log_to", "run_dir")
)
"""Settings that a resumed run may change: none of them touches a number that was already computed."""


def check_run(settings: TrainSettings, recipe: Recipe) -> None:
    """Refuse settings and a recipe that do not fit together, before any work."""
    engine = settings.engine
    reads_ratio = [stage for stage in (recipe.loss, *recipe.correction) if stage.pair in ("engine", "total")]
    if (engine.top_p < 1 or engine.top_k) and reads_ratio and not engine.record_support:
        raise ConfigError(
            f"train.engine: top_p {engine.top_p:g} and top_k {engine.top_k} remove tokens in sampling, and recipe "
            f"{recipe.name!r} divides by the sampler's probabilities, so every ratio would be wrong by the share that "
            "was cut. Set train.engine.record_support=true, or top_p=1 and top_k=0."
        )


@dataclass(frozen=True)
class Opening:
    """A run before its first step: what a new one and a resumed one have in common."""

    settings: TrainSettings
    recipe: Recipe
    progress: Progress
    record: Record
    run_id: str
    task: Task
    policy: Policy
    notes: tuple[str, ...] = ()
    """What was found while the run was opened; it goes into the summary."""
    started: float = field(default_factory=time.perf_counter)

    def begin(self, stopped: Callable[[], bool]) -> Run:
        """Begin a new run: warm start, then a learner. Its reference, if any, is the policy after the warm start."""
        if self.settings.warm_start_steps:
            self.progress.stage(f"warm start: {self.settings.warm_start_steps} supervised steps")
            _ = warm_start(self.policy, self.settings, stopped=stopped)
        learner = Learner(self.policy, self.recipe, self.settings)
        return self._run(
            learner, Tally(warm_started=not stopped()), new_buffer(self.settings, self.recipe), resumed_step=None
        )

    def go_on(self, saved: Checkpoint) -> Run:
        """Go on with everything as the checkpoint has it."""
        learner = Learner(self.policy, self.recipe, self.settings)
        restore_learner(learner, saved)
        tally = restored_tally(saved.state, saved.step)
        tally.resumed += 1
        buffer = new_buffer(self.settings, self.recipe)
        buffer.restore(saved.state["buffer"], restored_rollouts(saved))
        return self._run(learner, tally, buffer, resumed_step=saved.step)

    def _run(self, learner: Learner, tally: Tally, buffer: Buffer, *, resumed_step: int | None) -> Run:
        settings, policy, folder = self.settings, self.policy, self.record.folder
        for caution in (*cautions(settings, self.recipe), *self.notes):
            self.progress.stage(f"warning: {caution}")
        return Run(
            settings=settings,
            run_id=self.run_id,
            task=self.task,
            policy=policy,
            learner=learner,
            runtime=open_runtime(policy, settings, buffer, folder / ".sampler"),
            judge=new_collector(policy, settings, engine=new_engine(policy, settings, exact=True)),
            probe=Probe(learner, keeps_copy=settings.runtime != "inline"),
            record=self.record,
            progress=self.progress,
            sinks=open_sinks(
                settings.log_to, folder, resumed_step=resumed_step, config=settings.model_dump(mode="json")
            ),
            tally=tally,
            notes=self.notes,
            started=self.started,
        )


def open_new(
    folder: Path,
    settings: TrainSettings,
    recipe: Recipe,
    progress: Progress,
    origin: Mapping[str, object] | None,
    parts: tuple[Task, Policy],
    stopped: Callable[[], bool],
) -> Run:
    """Identity, warm start, sampler: all that comes before the first step. The caller has claimed the folder."""
    progress.opened(settings, recipe.name, folder)
    config = {**settings.model_dump(mode="json"), "recipe": describe(recipe), "origin": origin}
    facts = manifest(settings, parts[1].dtype)
    identity = write_identity(folder, config, facts, hash_inputs(settings, origin, recipe))
    return Opening(settings, recipe, progress, Record(folder), identity.run_id, *parts).begin(stopped)


@dataclass(frozen=True)
class Leave:
    """What a person allows a resume to do."""

    last_good: bool = False
    """Go on from the newest checkpoint that is whole, if a newer one is damaged."""
    accept_changes: bool = False
    """Go on although data or code changed since the start; the manifest says so."""
    start_over: bool = False
    """Begin again where every checkpoint is lost; what the run wrote is moved aside."""
    trust: bool = False
    """Import code that the run's config names, wherever the run comes from."""


def open_resumed(
    identity: Identity,
    settings: TrainSettings,
    recipe: Recipe,
    progress: Progress,
    *,
    leave: Leave,
    stopped: Callable[[], bool],
) -> Run:
    """The run as it was at its last checkpoint; later lines are cut off: they will be written again."""
    folder, record = identity.folder, Record(identity.folder)
    found = newest_checkpoint(folder / "checkpoints", identity.run_id, last_good=leave.last_good)
    if found is None and record.has_trained and not leave.start_over:
        raise CheckpointError(
            f"resume: {folder / 'checkpoints'} holds no checkpoint although metrics.jsonl tells of trained steps, so "
            "there is nothing to go on from and beginning again would write over the logs. Put the folder back; or "
            f"add --start-over, which moves what is there into {folder.name}/set_aside_1 and begins at step 0."
        )
    check_run(settings, recipe)
    task, policy = task_and_policy(settings)
    progress.opened(settings, recipe.name, folder)
    for name in ("model", "best"):
        restore_folder(folder / name)
    if found is None:
        aside = record.set_aside()
        told = f"; the old files are in {aside.name}" if aside else ""
        progress.stage(f"no checkpoint: beginning again{told}")
        return Opening(settings, recipe, progress, record, identity.run_id, task, policy).begin(stopped)
    saved, path = found
    settle_checkpoints(folder / "checkpoints", path)
    notes = record.cut_back(saved.step)
    progress.stage(f"going on from step {saved.step}")
    return Opening(settings, recipe, progress, record, identity.run_id, task, policy, notes).go_on(saved)


def resumed_settings(identity: Identity, changes: Mapping[str, object]) -> TrainSettings:
    """The settings a run was started with, with the few that may change."""
    refused = sorted(set(changes) - CHANGEABLE)
    if refused:
        raise ConfigError(
            f"resume: {refused[0]} cannot change in the middle of a run, because what was learned depends on it. "
            f"Only {', '.join(sorted(CHANGEABLE - {'run_dir'}))} can; start a new run for the rest."
        )
    return read_settings(identity.config, identity.folder, changes).model_copy(update={"run_dir": identity.folder})


def read_settings(
    config: Mapping[str, object], folder: Path, changes: Mapping[str, object] | None = None
) -> TrainSettings:
    """The settings in a run's config.json. Settings that this version does not know are left out."""
    known = {name: value for name, value in config.items() if name in TrainSettings.model_fields}
    try:
        return TrainSettings.model_validate_json(json.dumps({**known, **(changes or {})}, default=str))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"{folder / 'config.json'}: {where or 'a setting'} cannot be read ({first['msg']}), so the run cannot be "
            "rebuilt. Use the version of trimtab that wrote it; manifest.json names it."
        ) from error


def check_same_recipe(identity: Identity, recipe: Recipe) -> None:
    """A resumed run must go on with what it began with."""
    described = identity.config["recipe"]
    if not is_same(described, recipe):
        raise CheckpointError(
            f"resume: the run was started with recipe {described['name']!r}, and {recipe.name!r} as it is now has "
            "other formulas or settings, so the rest of the run would be another run. "
            "Give the recipe it was started with, or start a new run."
        )

"""The only place that opens a run: a new one from settings, or one that goes on from its last checkpoint."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from trimtab.config.recorded import NOT_RECORDED
from trimtab.config.train import TrainSettings
from trimtab.errors import CheckpointError, ConfigError
from trimtab.rollout.task import Task
from trimtab.signal import Recipe
from trimtab.train.actor import Actor
from trimtab.train.adapter import add_adapter
from trimtab.train.checks.cautions import cautions
from trimtab.train.learner import Learner
from trimtab.train.policy import Policy, frozen_copy, new_critic, parameter_norm, save
from trimtab.train.record.checkpoint import Checkpoint, newest_checkpoint, settle_checkpoints
from trimtab.train.record.describe import describe, is_same
from trimtab.train.record.diagnose import Probe
from trimtab.train.record.disk import restore_folder
from trimtab.train.record.identity import Identity, write_identity
from trimtab.train.record.inputs import hash_inputs
from trimtab.train.record.record import Record, manifest
from trimtab.train.record.sink import open_sinks
from trimtab.train.record.snapshot import fill, restore_learner, restored_rollouts, restored_tally, share_checkpoint
from trimtab.train.run import Lead, Run, Tally
from trimtab.train.setup import new_buffer, new_collector, new_engine, new_workers, open_runtime, task_and_policy
from trimtab.train.show.progress import Progress
from trimtab.train.warmstart import warm_start
from trimtab.train.world import World

SAMPLER = ".sampler"
"""Folder in a run's own: the copy of the model that a sampler process starts from."""
CHANGEABLE = frozenset(
    (
        "steps",
        "max_minutes",
        "early_stop",
        "checkpoint_every",
        "keep_checkpoints",
        "dump_batches",
        "log_to",
        "run_dir",
        "cluster",
    )
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
    read = {*recipe.needs, *(name for one in recipe.parts() for name in one.formula.inputs)}
    for name, what in NOT_RECORDED.items():
        if name in read:
            raise ConfigError(
                f"signal: recipe {recipe.name!r} reads {name}, {what}, and a run of `trimtab train` has none. Use the "
                "recipe in your own trainer (trimtab.loss), or choose one that does without."
            )


@dataclass(frozen=True)
class Opening:
    """A run before its first step: what a new one and a resumed one have in common."""

    settings: TrainSettings
    recipe: Recipe
    progress: Progress
    folder: Path
    run_id: str
    task: Task
    policy: Policy
    world: World
    notes: tuple[str, ...] = ()
    """What was found while the run was opened; it goes into the summary."""
    started: float = field(default_factory=time.perf_counter)

    def begin(self, stopped: Callable[[], bool]) -> Run:
        """Begin a new run: warm start, then a learner. Its reference, if any, is the policy after the warm start."""
        if self.settings.warm_start_steps:
            self.progress.stage(f"warm start: {self.settings.warm_start_steps} supervised steps")
            _ = warm_start(
                self.policy, self.settings, stopped=lambda: self.world.any(stopped()), say=self.progress.stage
            )
        whole = not self.world.any(stopped())
        # Every rank made the same steps; that they are the same to the last bit is not left to chance.
        if self.world.size > 1:
            _, state = self.world.broadcast({}, self.policy.model.state_dict() if self.world.is_first else None)
            fill(self.policy.model, state)
        return self._run(Tally(warm_started=whole), None)

    def go_on(self, saved: Checkpoint) -> Run:
        """Go on with everything as the checkpoint has it."""
        tally = restored_tally(saved.state, saved.step)
        tally.resumed += 1
        return self._run(tally, saved)

    def _run(self, tally: Tally, saved: Checkpoint | None) -> Run:
        settings, policy = self.settings, self.policy
        # Copies come first: a sharded model cannot be copied.
        judge, copy, sampler = None, None, None
        if self.world.is_first:
            judge = new_collector(policy, settings, engine=new_engine(policy, settings, exact=True))
            copy = self._probe_copy()
            if settings.runtime == "inline":
                sampler = new_collector(policy, settings)
            else:
                save(policy, self.folder / SAMPLER)
                sampler = new_workers(policy, settings, self.folder / SAMPLER)
        if settings.model.lora is not None:  # after the copies: engines hold the model without an adapter
            add_adapter(policy.model, settings.model.lora, settings.seed)
        learner = Learner(policy, self.recipe, settings, self.world)
        buffer = new_buffer(settings, self.recipe)
        if saved is not None:
            restore_learner(learner, saved)
            buffer.restore(saved.state["buffer"], restored_rollouts(saved))
        tally.start_norm = tally.start_norm or parameter_norm(policy)
        lead = None
        if judge is not None and sampler is not None:
            for caution in (*cautions(settings, self.recipe), *self.notes):
                self.progress.stage(f"warning: {caution}")
            lead = Lead(
                runtime=open_runtime(sampler, settings, buffer, self.folder),
                judge=judge,
                probe=Probe(learner, copy),
                record=Record(self.folder),
                progress=self.progress,
                sinks=open_sinks(
                    settings.log_to,
                    self.folder,
                    resumed_step=None if saved is None else saved.step,
                    config=settings.model_dump(mode="json"),
                ),
            )
        return Run(
            settings=settings,
            run_id=self.run_id,
            folder=self.folder,
            world=self.world,
            task=self.task,
            policy=policy,
            learner=learner,
            lead=lead,
            tally=tally,
            notes=self.notes,
            started=self.started,
        )

    def _probe_copy(self) -> Actor | None:
        """A model of the probe's own: where groups arrive later, and where the policy is sharded."""
        if self.settings.runtime == "inline" and self.world.size == 1:
            return None
        critic = new_critic(self.policy.critic.in_features)
        head = self.settings.model.head == "float32"
        frozen = frozen_copy(self.policy.model)
        return Actor(frozen, critic, temperature=self.settings.temperature, float32_head=head)


def open_new(
    folder: Path,
    settings: TrainSettings,
    recipe: Recipe,
    progress: Progress,
    origin: Mapping[str, object] | None,
    parts: tuple[Task, Policy],
    stopped: Callable[[], bool],
    world: World,
) -> Run:
    """Identity, warm start, sampler: all that comes before the first step. Rank 0 has claimed the folder."""

    def write() -> dict[str, str]:
        progress.opened(settings, recipe.name, folder)
        config = {**settings.model_dump(mode="json"), "recipe": describe(recipe), "origin": origin}
        facts = {**manifest(settings, parts[1].dtype), "eos_ids": list(parts[1].eos_ids)}
        identity = write_identity(folder, config, facts, hash_inputs(settings, origin, recipe))
        return {"run_id": identity.run_id}

    run_id = str(world.lead(write)["run_id"])
    return Opening(settings, recipe, progress, folder, run_id, *parts, world).begin(stopped)


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
    world: World,
) -> Run:
    """The run as it was at its last checkpoint; later lines are cut off: they will be written again."""
    folder = identity.folder
    check_run(settings, recipe)
    task, policy = task_and_policy(settings)
    found: list[Checkpoint | None] = [None]

    def look() -> dict[str, object]:
        found[0], notes = _last_checkpoint(identity, settings, recipe, progress, leave)
        return {"is_new": found[0] is None, "notes": notes}

    told = world.lead(look)
    opening = Opening(settings, recipe, progress, folder, identity.run_id, task, policy, world, tuple(told["notes"]))
    return opening.begin(stopped) if told["is_new"] else opening.go_on(share_checkpoint(found[0], world))


def _last_checkpoint(
    identity: Identity, settings: TrainSettings, recipe: Recipe, progress: Progress, leave: Leave
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The checkpoint to go on from, with the folder as it was then; None where the run begins again."""
    folder, record = identity.folder, Record(identity.folder)
    found = newest_checkpoint(folder / "checkpoints", identity.run_id, last_good=leave.last_good)
    if found is None and record.has_trained and not leave.start_over:
        raise CheckpointError(
            f"resume: {folder / 'checkpoints'} holds no checkpoint although metrics.jsonl tells of trained steps, so "
            "there is nothing to go on from and beginning again would write over the logs. Put the folder back; or "
            f"add --start-over, which moves what is there into {folder.name}/set_aside_1 and begins at step 0."
        )
    progress.opened(settings, recipe.name, folder)
    for name in ("model", "best"):
        restore_folder(folder / name)
    if found is None:
        aside = record.set_aside()
        told = f"; the old files are in {aside.name}" if aside else ""
        progress.stage(f"no checkpoint: beginning again{told}")
        return None, ()
    saved, path = found
    settle_checkpoints(folder / "checkpoints", path)
    notes = record.cut_back(saved.step)
    progress.stage(f"going on from step {saved.step}")
    return saved, notes


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

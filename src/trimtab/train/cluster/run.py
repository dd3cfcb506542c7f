"""The only place that runs a run on a cluster from start to end: session, learner group, and another try if it is lost.

Loop, buffer and admission are those of every runtime; this process is rank 0 and owns the run folder. A group that has
lost a rank is started again from the last checkpoint, as often as `cluster.restarts` says.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from trimtab.config.train import TrainSettings
from trimtab.errors import RankError
from trimtab.signal import Recipe
from trimtab.train.cluster.logs import Logs
from trimtab.train.cluster.placement import wanted_resources
from trimtab.train.cluster.ranks import Group, learner_group
from trimtab.train.cluster.session import Session, open_session
from trimtab.train.opening import Leave, resumed_settings
from trimtab.train.record.identity import MANIFEST, Identity, read_identity
from trimtab.train.record.record import Summary
from trimtab.train.show.progress import Progress
from trimtab.train.whole import go_on, train_run


class Told:
    """Passes everything on to another progress, and keeps it in logs/ of the run folder, once there is one."""

    def __init__(self, told: Progress) -> None:
        self._told: Progress = told
        self.folder: Path | None = None
        self.group: Group | None = None

    def __enter__(self) -> Self:
        _ = self._told.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._told.__exit__(kind, error, trace)

    def opened(self, settings: TrainSettings, recipe: str, run_dir: Path) -> None:
        self.folder = run_dir
        if self.group is not None:
            self.group.note_folder(Logs(run_dir))
        self._told.opened(settings, recipe, run_dir)

    def stage(self, text: str) -> None:
        self._keep(text)
        self._told.stage(text)

    def step(self, line: Mapping[str, object]) -> None:
        if "eval/accuracy" in line:
            self._keep(f"step {line['step']}: held-out accuracy {line['eval/accuracy']}")
        self._told.step(line)

    def finished(self, summary: Summary) -> None:
        self._keep(f"{summary.outcome} after {summary.steps} steps")
        self._told.finished(summary)

    def _keep(self, text: str) -> None:
        if self.folder is not None:
            Logs(self.folder).write("rank 0", f"{text}\n")


def train_on_cluster(
    settings: TrainSettings, recipe: Recipe, progress: Progress, origin: Mapping[str, object] | None
) -> Summary:
    """A new run on a cluster."""
    told = Told(progress)
    if "RANK" in os.environ:  # torchrun has made the group already; rank 0 alone needs the samplers
        return _under_torchrun(settings, lambda: train_run(settings, recipe, told, origin))
    with open_session(settings.cluster, wanted_resources(settings)) as session:
        return _until_done(session, settings, recipe, told, origin, None, Leave())


def resume_on_cluster(
    folder: Path, recipe: Recipe | None, changes: Mapping[str, object], progress: Progress, leave: Leave
) -> Summary:
    """The rest of a run that was started on a cluster, on the same one or on another."""
    identity = read_identity(folder)
    settings = resumed_settings(identity, changes)
    told = Told(progress)
    if "RANK" in os.environ:
        return _under_torchrun(settings, lambda: go_on(identity, settings, recipe, told, leave))
    with open_session(settings.cluster, wanted_resources(settings)) as session:
        return _until_done(session, settings, recipe, told, identity.config.get("origin"), identity, leave)


def _under_torchrun(settings: TrainSettings, work: Callable[[], Summary]) -> Summary:
    if os.environ["RANK"] != "0":
        return work()
    with open_session(settings.cluster, wanted_resources(settings)):
        return work()


def _until_done(
    session: Session,
    settings: TrainSettings,
    recipe: Recipe | None,
    told: Told,
    origin: Mapping[str, object] | None,
    identity: Identity | None,
    leave: Leave,
) -> Summary:
    """Run, and go on from the last checkpoint each time the group has lost a rank, while the budget lasts."""
    left = settings.cluster.restarts
    while True:
        try:
            with learner_group(session, settings, origin, identity, told.stage) as group:
                told.group = group
                if identity is not None:
                    group.note_folder(Logs(identity.folder))
                return _attempt(group, settings, recipe, told, origin, identity, leave)
        except RankError as error:
            folder = identity.folder if identity is not None else told.folder
            if not left or folder is None or not (folder / MANIFEST).is_file() or settings.cluster.ranks == 1:
                raise
            left -= 1
            told.stage(f"warning: the learner group is lost and started again ({left} restarts left): {error}")
            identity = read_identity(folder)
            settings = settings.model_copy(update={"run_dir": folder})


def _attempt(
    group: Group,
    settings: TrainSettings,
    recipe: Recipe | None,
    told: Told,
    origin: Mapping[str, object] | None,
    identity: Identity | None,
    leave: Leave,
) -> Summary:
    try:
        if identity is not None:
            return go_on(identity, settings, recipe, told, leave)
        assert recipe is not None
        return train_run(settings, recipe, told, origin)
    except RankError as error:
        said = group.why()
        if said:  # it was not lost: it refused
            raise RankError(f"cluster: {said}") from error
        raise

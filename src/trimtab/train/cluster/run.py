"""The only place that runs a run on a cluster from start to end: session, learner group, and another try if it is lost.

Loop, buffer and admission are those of every runtime; this process is rank 0 and owns the run folder. A group that has
lost a rank is started again from the last checkpoint, as often as `cluster.restarts` says.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class Work:
    """What is to be done: a new run, or the rest of the one that `identity` names."""

    settings: TrainSettings
    recipe: Recipe | None
    """None: that of the run that goes on."""
    origin: Mapping[str, object] | None
    identity: Identity | None = None
    leave: Leave = field(default_factory=Leave)

    def do(self, told: Progress) -> Summary:
        if self.identity is not None:
            return go_on(self.identity, self.settings, self.recipe, told, self.leave)
        assert self.recipe is not None
        return train_run(self.settings, self.recipe, told, self.origin)

    def go_on_in(self, folder: Path) -> "Work":
        """The rest of it, after what was done is in `folder`."""
        settings = self.settings.model_copy(update={"run_dir": folder})
        return replace(self, settings=settings, identity=read_identity(folder))


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
    return _run(Work(settings, recipe, origin), Told(progress))


def resume_on_cluster(
    folder: Path, recipe: Recipe | None, changes: Mapping[str, object], progress: Progress, leave: Leave
) -> Summary:
    """The rest of a run that was started on a cluster, on the same one or on another."""
    identity = read_identity(folder)
    settings = resumed_settings(identity, changes)
    return _run(Work(settings, recipe, identity.config.get("origin"), identity, leave), Told(progress))


def _run(work: Work, told: Told) -> Summary:
    if os.environ.get("RANK", "0") != "0":
        return work.do(told)
    with open_session(work.settings.cluster, wanted_resources(work.settings)) as session:
        if "RANK" in os.environ:  # torchrun has made the group already; rank 0 alone needs the samplers
            return work.do(told)
        return _until_done(session, work, told)


def _until_done(session: Session, work: Work, told: Told) -> Summary:
    """Run, and go on from the last checkpoint each time the group has lost a rank, while the budget lasts."""
    left = work.settings.cluster.restarts
    while True:
        try:
            with learner_group(session, work.settings, work.origin, work.identity, told.stage) as group:
                told.group = group
                if work.identity is not None:
                    group.note_folder(Logs(work.identity.folder))
                return _attempt(group, work, told)
        except RankError as error:
            folder = work.identity.folder if work.identity is not None else told.folder
            if not left or folder is None or not (folder / MANIFEST).is_file() or work.settings.cluster.ranks == 1:
                raise
            left -= 1
            told.stage(f"warning: the learner group is lost and started again ({left} restarts left): {error}")
            work = work.go_on_in(folder)


def _attempt(group: Group, work: Work, told: Told) -> Summary:
    try:
        return work.do(told)
    except RankError as error:
        said = group.why()
        if said:  # it was not lost: it refused
            raise RankError(f"cluster: {said}") from error
        raise

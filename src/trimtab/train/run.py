"""The parts and the counts of a run."""

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.config.train import TrainSettings
from trimtab.rollout.collect import Collector
from trimtab.rollout.publication import Publication
from trimtab.rollout.task import Task
from trimtab.train.learner import Learner
from trimtab.train.policy import Policy
from trimtab.train.record.diagnose import Probe
from trimtab.train.record.record import Record
from trimtab.train.runtimes.inline import Runtime
from trimtab.train.show.progress import Progress
from trimtab.train.world import World

if TYPE_CHECKING:
    from trimtab.train.record.sink import Sinks


@dataclass
class Tally:
    """What a run has counted so far; a checkpoint holds it whole."""

    warm_started: bool = True
    """The warm start is complete. A run that was interrupted before that can only begin again."""
    steps: int = 0
    tokens: int = 0
    step_seconds: float = 0.0
    seconds: float = 0.0
    """Wall-clock time before this process took over."""
    skipped_updates: int = 0
    nonfinite: int = 0
    nonfinite_in_row: int = 0
    """Refused optimiser steps without a good one after them."""
    moved_updates: int = 0
    """Optimiser steps taken with a gradient other than 0; a run without one has learned nothing."""
    start_norm: float = 0.0
    """Norm of all parameters before the first step."""
    first_error: str = ""
    """What the first reward that failed said."""
    evaluations: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """Step and validation accuracy."""
    shown: list[str] = field(default_factory=list[str])
    """Held-out prompts whose answers are kept for people to read."""
    warnings: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Each warning in its first wording, and how often it came. Two that differ only in numbers are one."""
    statuses: dict[str, int] = field(default_factory=dict[str, int])
    staleness_total: float = 0.0
    staleness_max: float = 0.0
    resumed: int = 0

    def warn(self, texts: tuple[str, ...]) -> None:
        known = {_without_numbers(text): (text, count) for text, count in self.warnings}
        for text in texts:
            first, count = known.get(_without_numbers(text), (text, 0))
            known[_without_numbers(text)] = (first, count + 1)
        self.warnings = list(known.values())

    @property
    def best(self) -> tuple[int, float]:
        """The step and accuracy of the best evaluation, the first of equals."""
        return max(self.evaluations, key=lambda evaluation: (evaluation[1], -evaluation[0]), default=(0, 0.0))


def _without_numbers(text: str) -> str:
    return re.sub(r"\d[\d.e+-]*", "#", text)


@dataclass(frozen=True)
class Lead:
    """What only rank 0 has: it samples, measures and writes."""

    runtime: Runtime
    judge: Collector
    """Answers held-out prompts, with the policy's own parameters."""
    probe: Probe
    record: Record
    progress: Progress
    sinks: "Sinks"

    def close(self) -> None:
        """Close the sampler with its processes, and what people watch."""
        self.runtime.close()
        self.judge.close()
        self.sinks.close()


@dataclass
class Run:
    """The parts of a run, on one rank."""

    settings: TrainSettings
    run_id: str
    folder: Path
    world: World
    task: Task
    policy: Policy
    learner: Learner
    lead: Lead | None
    """None on every rank but the first."""
    tally: Tally
    started: float
    notes: tuple[str, ...] = ()
    """What was found when the run was opened, for the summary."""
    published: Publication = field(default_factory=lambda: Publication(-1, {}))
    """The version of the policy that was published last."""

    @property
    def elapsed(self) -> float:
        return self.tally.seconds + time.perf_counter() - self.started

    @property
    def front(self) -> Lead:
        """What rank 0 has, for code that runs nowhere else."""
        assert self.lead is not None
        return self.lead

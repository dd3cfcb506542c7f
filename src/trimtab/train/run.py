"""The parts and the counts of a run. The only place that knows what a checkpoint holds."""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trimtab.config.train import TrainSettings
from trimtab.rollout.collect import Collector
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.task import Task
from trimtab.signal import SignalState
from trimtab.train.checkpoint import Checkpoint
from trimtab.train.diagnose import Probe
from trimtab.train.learn import Learner
from trimtab.train.policy import Policy
from trimtab.train.progress import Progress
from trimtab.train.record import Record
from trimtab.train.runtime import Runtime

if TYPE_CHECKING:
    from trimtab.train.sink import Sinks


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


@dataclass
class Run:
    """The parts of a run."""

    settings: TrainSettings
    run_id: str
    task: Task
    policy: Policy
    learner: Learner
    runtime: Runtime
    judge: Collector
    """Answers held-out prompts, with the policy's own parameters."""
    probe: Probe
    record: Record
    progress: Progress
    sinks: "Sinks"
    tally: Tally
    started: float
    notes: tuple[str, ...] = ()
    """What was found when the run was opened, for the summary."""

    @property
    def elapsed(self) -> float:
        return self.tally.seconds + time.perf_counter() - self.started


def snapshot(run: Run) -> Checkpoint:
    """Everything that the rest of the run depends on, between two steps."""
    buffer, ready = run.runtime.ready()
    learner = run.learner
    tensors = {
        "model": run.policy.model.state_dict(),
        "critic": run.policy.critic.state_dict(),
        "optimizer": learner.optimizer.state(),
        "buffer": {} if ready is None else ready.tensors(),
        "random": {"torch": torch.get_rng_state()},
    }
    if learner.reference is not None:
        tensors["reference"] = learner.reference.state_dict()
    state = {
        "tally": {**asdict(run.tally), "seconds": run.elapsed},
        "buffer": buffer,
        "rollouts": None if ready is None else ready.head(),
        "signal": asdict(learner.signal),
        "guard": learner.guard.state(),
    }
    return Checkpoint(run.tally.steps, run.run_id, tensors, state)


def restored_tally(state: Mapping[str, Any], step: int) -> Tally:
    """The tally as it was, without the evaluation of the next step: that will be made again."""
    tally = Tally(**state["tally"])
    tally.warnings = [(str(text), int(count)) for text, count in tally.warnings]
    tally.evaluations = [(int(at), float(accuracy)) for at, accuracy in tally.evaluations if at < step]
    return tally


def restore_learner(learner: Learner, saved: Checkpoint) -> None:
    """Parameters, optimiser and running statistics as they were."""
    learner.policy.model.load_state_dict(dict(saved.tensors["model"]))
    learner.policy.critic.load_state_dict(dict(saved.tensors["critic"]))
    if learner.reference is not None:
        learner.reference.load_state_dict(dict(saved.tensors["reference"]))
    learner.optimizer.restore(saved.tensors["optimizer"])
    signal = saved.state["signal"]
    learner.signal = SignalState({name: tuple(seen) for name, seen in signal["effects"].items()}, int(signal["window"]))
    learner.guard.restore(saved.state["guard"])
    learner.nonfinite_in_row = int(saved.state["tally"]["nonfinite_in_row"])
    torch.set_rng_state(saved.tensors["random"]["torch"])


def restored_rollouts(saved: Checkpoint) -> Rollouts | None:
    """What waited in the buffer."""
    head = saved.state["rollouts"]
    return None if head is None else Rollouts.read(saved.tensors["buffer"], head)

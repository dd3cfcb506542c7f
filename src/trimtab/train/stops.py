"""The only place that says why a run ends before its last step. Every rank comes to the same answer."""

import time
from collections.abc import Callable

from trimtab.config.train import EarlyStop
from trimtab.train.policy import parameter_norm
from trimtab.train.record.record import Outcome
from trimtab.train.run import Run

DIVERGED = 1000.0
"""A run has diverged if the norm of its parameters has grown by this factor."""


def why_stop(run: Run, stopped: Callable[[], bool]) -> Outcome | None:
    """Between two steps: somebody asked, or time is up, on any rank."""
    asked, late = is_asked(run, stopped)
    if run.world.any(asked):
        return "interrupted"
    return "time_limit" if run.world.any(late) else None


def is_asked(run: Run, stopped: Callable[[], bool]) -> tuple[bool, bool]:
    """Whether this process was asked to stop, and whether its time is up."""
    limit = 60 * run.settings.max_minutes
    return stopped(), bool(limit) and time.perf_counter() - run.started > limit


def is_good_enough(run: Run) -> bool:
    """Whether the last evaluations are all as accurate as `early_stop` asks."""
    wanted = run.settings.early_stop
    recent = [accuracy for _, accuracy in run.tally.evaluations]
    if not isinstance(wanted, EarlyStop) or len(recent) < wanted.evaluations:
        return False
    return min(recent[-wanted.evaluations :]) >= wanted.accuracy


def why_failed(run: Run) -> Outcome | None:
    """After a step: too many steps in a row were refused, or the parameters have left all bounds."""
    if run.tally.nonfinite_in_row >= run.settings.nonfinite_limit:
        return "nonfinite"
    norm = parameter_norm(run.policy)
    return None if norm <= DIVERGED * max(run.tally.start_norm, 1.0) else "diverged"


def why_nothing(run: Run) -> str:
    """Why no step of a run had a gradient, in one sentence with what to do."""
    tally, counts = run.tally, run.tally.statuses
    asked, had = sum(counts.values()), counts.get("ok", 0)
    if not had:
        lost = ", ".join(f"{status} {count}" for status, count in counts.items() if count)
        said = f"; the first said: {tally.first_error}" if tally.first_error else ""
        why = f"no answer of {asked} got a reward ({lost}){said}. Repair the reward function, then start again"
    elif tally.nonfinite:
        why = f"{tally.nonfinite} optimiser steps were not finite. Lower train.lr, and look at nonfinite/"
    else:
        why = (
            f"{had} of {asked} answers got a reward and no group had two different rewards, or those that differed "
            "were rejected. Read transcripts.jsonl; more train.warm_start_steps, easier problems or more "
            "train.samples_per_prompt give rewards that differ"
        )
    return f"learned nothing: in {tally.steps} steps every gradient was 0, because {why}."

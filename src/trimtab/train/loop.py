"""The only place that knows the order of a run: evaluate, take, learn, publish, record, checkpoint, and again.

Step k trains version k on a batch sampled with version k - staleness or newer, and publishes version k + 1. An
evaluation at step k measures version k. On several ranks all of them run this loop; what only rank 0 has is `run.lead`.
"""

from collections.abc import Callable

from trimtab.train.evaluate import evaluate_and_keep
from trimtab.train.publish import publish
from trimtab.train.record.record import Outcome
from trimtab.train.record.snapshot import checkpoint
from trimtab.train.record.steps import Clock, keep_line, keep_step
from trimtab.train.run import Run
from trimtab.train.stops import is_good_enough, why_failed, why_stop
from trimtab.train.take import take_batch


def loop(run: Run, stopped: Callable[[], bool]) -> Outcome:
    """Train until all steps are done, the policy is good enough, time is up, or somebody asks to stop."""
    while run.tally.steps < run.settings.steps:
        why = why_stop(run, stopped)
        if why is not None:
            return why
        version = run.tally.steps
        line: dict[str, object] = {"step": version, "version": version}
        if version % run.settings.eval_every == 0:
            line |= evaluate_and_keep(run)
            if is_good_enough(run):
                keep_line(run, line)
                return "early_stop"
        clock = Clock()
        delivered = take_batch(run, stopped)
        clock.mark("sampled")
        if delivered is None:  # it was asked to stop while it waited
            if "eval/accuracy" in line:
                keep_line(run, line)
            continue
        learned = run.learner.learn(delivered.rollouts, version=version)
        clock.mark("learned")
        run.tally.steps += 1
        publish(run)
        clock.mark("published")
        keep_step(run, line, delivered, learned, clock)
        failed = why_failed(run)
        if failed is not None:
            return failed
        if run.settings.checkpoint_every and run.tally.steps % run.settings.checkpoint_every == 0:
            checkpoint(run)
    return "finished" if run.tally.moved_updates or not run.tally.steps else "learned_nothing"

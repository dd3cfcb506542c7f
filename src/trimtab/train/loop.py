"""The only place that knows the order of a run: batch, learn, publish, record, checkpoint, and again.

Step k trains version k on a batch sampled with version k - staleness or newer, and publishes version k + 1. An
evaluation at step k measures version k.
"""

import time
from collections.abc import Callable

from trimtab.config.train import EarlyStop
from trimtab.errors import SignalError
from trimtab.rollout.rollouts import Rollouts
from trimtab.rollout.task import Problem
from trimtab.train.checkpoint import write_checkpoint
from trimtab.train.diagnose import diagnostics, measured_now, split_drift, staleness
from trimtab.train.evaluate import Evaluation, evaluate
from trimtab.train.learn import Learned, signal_seed
from trimtab.train.policy import parameter_norm, published, save
from trimtab.train.record import Outcome
from trimtab.train.run import Run, snapshot
from trimtab.train.runtime import Delivered, Wait
from trimtab.train.transcript import transcripts

DIVERGED = 1000.0
"""A run has diverged if the norm of its parameters has grown by this factor."""
SHOWN_ANSWERS = 8
"""Held-out answers kept at each evaluation, for people to read."""


def publish(run: Run) -> None:
    """Give the current policy to the sampler; its version is the number of steps taken."""
    version = run.tally.steps
    if version % run.settings.eval_every == 0:
        run.probe.mark(version)
    run.runtime.publish(published(run.policy.model), version)


def loop(run: Run, stopped: Callable[[], bool]) -> Outcome:
    """Train until all steps are done, the policy is good enough, time is up, or somebody asks to stop."""
    run.tally.start_norm = run.tally.start_norm or parameter_norm(run.policy)
    validation = run.task.held_out("validation", run.settings.eval_prompts)
    while run.tally.steps < run.settings.steps:
        why = _why_stop(run, stopped)
        if why is not None:
            return why
        index = run.tally.steps
        line: dict[str, object] = {"step": index, "version": index}
        if index % run.settings.eval_every == 0:
            line |= evaluate_and_keep(run, validation)
            if _is_good_enough(run):
                run.record.append("metrics.jsonl", line)
                return "early_stop"
        stepped = _train_step(run, stopped)
        if stepped is None:  # it was asked to stop while it waited for a batch
            if "eval/accuracy" in line:
                run.record.append("metrics.jsonl", line)
            continue
        line |= stepped
        run.record.append("metrics.jsonl", line)
        run.progress.step(line)
        run.sinks.log(index, {name: float(value) for name, value in line.items() if isinstance(value, int | float)})
        if run.tally.nonfinite_in_row >= run.settings.nonfinite_limit:
            return "nonfinite"
        if _has_diverged(run):
            return "diverged"
        if run.settings.checkpoint_every and run.tally.steps % run.settings.checkpoint_every == 0:
            checkpoint(run)
    return "finished" if run.tally.moved_updates or not run.tally.steps else "learned_nothing"


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


def _has_diverged(run: Run) -> bool:
    norm = parameter_norm(run.policy)
    return not norm <= DIVERGED * max(run.tally.start_norm, 1.0)


def _why_stop(run: Run, stopped: Callable[[], bool]) -> Outcome | None:
    if stopped():
        return "interrupted"
    limit = 60 * run.settings.max_minutes
    return "time_limit" if limit and time.perf_counter() - run.started > limit else None


def checkpoint(run: Run) -> None:
    """Write a checkpoint. The run can go on from it, bit for bit."""
    saved = snapshot(run)
    run.record.sync()
    _ = write_checkpoint(run.record.folder / "checkpoints", saved, keep=run.settings.keep_checkpoints)


def evaluate_and_keep(run: Run, problems: list[Problem]) -> dict[str, object]:
    """Measure validation accuracy; keep the best policy so far, and a few answers, always to the same prompts."""
    began = time.perf_counter()
    step = run.tally.steps
    evaluation = answer_greedily(run, problems)
    if not run.tally.shown:
        wrong_first = sorted(evaluation.answers, key=lambda answer: answer.is_right)
        run.tally.shown = [answer.problem.text for answer in wrong_first[:SHOWN_ANSWERS]]
    for answer in evaluation.answers:
        if answer.problem.text in run.tally.shown:
            line = {"step": step, "prompt": answer.problem.text, "answer": answer.text, "is_right": answer.is_right}
            run.record.append("samples.jsonl", line)
    run.tally.evaluations.append((step, evaluation.accuracy))
    if run.tally.best[0] == step:
        save(run.policy, run.record.folder / "best")
    return {"eval/accuracy": evaluation.accuracy, "time/eval_seconds": time.perf_counter() - began}


def answer_greedily(run: Run, problems: list[Problem]) -> Evaluation:
    """Load the current policy into the judge's engine, and let it answer greedily."""
    from trimtab.rollout.weights import digest

    state = published(run.policy.model)
    if run.judge.engine.version < run.tally.steps:
        run.judge.engine.load(state, run.tally.steps, digest(state))
    return evaluate(run.judge, problems, max_new_tokens=run.settings.max_new_tokens)


def _train_step(run: Run, stopped: Callable[[], bool]) -> dict[str, object] | None:
    """One batch: wait for it, learn from it, publish. The metrics of the step; None if the wait was ended."""
    began = time.perf_counter()
    version = run.tally.steps
    wait = Wait(lambda: _why_stop(run, stopped) is not None, run.progress.stage)
    delivered = run.runtime.batch(run.probe.measure, wait)
    if delivered is None:
        return None
    rollouts = delivered.rollouts
    _check_fresh(rollouts, version, run.settings.staleness)
    sampled = time.perf_counter()
    learned = run.learner.learn(rollouts, version=version)
    learned_at = time.perf_counter()
    run.tally.steps += 1
    publish(run)
    ended = time.perf_counter()
    _count(run, rollouts, learned, ended - began)
    if version % run.settings.eval_every == 0:
        run.record.append("diagnostics.jsonl", {"step": version, **diagnostics(rollouts, learned, version)})
        for episode in transcripts(rollouts, learned, run.policy.tokenizer):
            run.record.append("transcripts.jsonl", {"step": version, **episode})
    if run.settings.dump_batches or learned.nonfinite:
        _dump(run, version, rollouts, learned)
    return {
        **_rollout_metrics(rollouts, delivered),
        **staleness(rollouts, version),
        **split_drift(rollouts, measured_now(learned)),
        "train/skipped_updates": learned.skipped_updates,
        **learned.metrics,
        "time/sample_seconds": delivered.sample_seconds,
        "time/wait_seconds": delivered.wait_seconds,
        "time/learn_seconds": learned_at - sampled,
        "time/publish_seconds": ended - learned_at,
        "time/elapsed_seconds": run.elapsed,
        "time/tokens_per_second": rollouts.num_tokens / (ended - began),
    }


def _check_fresh(rollouts: Rollouts, version: int, limit: int) -> None:
    """Check the buffer's promise: with staler tokens, the correction would be wrong."""
    oldest = int(rollouts.version.min())
    if version - oldest > limit:
        raise SignalError(
            f"train: step {version} got tokens of version {oldest}, {version - oldest} updates old, and the limit is "
            f"{limit}. This is a bug in trimtab; please report it with the run folder."
        )


def _rollout_metrics(rollouts: Rollouts, delivered: Delivered) -> dict[str, object]:
    statuses = rollouts.statuses()
    return {
        "rollout/reward_mean": rollouts.reward_mean,
        "rollout/ended_fraction": float(rollouts.ended.float().mean()),
        "rollout/tokens": rollouts.num_tokens,
        "rollout/groups_dropped": delivered.dropped,
        "buffer/groups": delivered.buffered,
        "publish/lag_seconds": delivered.lag_seconds,
        "publish/lag_versions": delivered.lag_versions,
        **{f"reward/{status}": statuses[status] for status in ("ok", "error", "timeout", "abstain")},
    }


def _count(run: Run, rollouts: Rollouts, learned: Learned, seconds: float) -> None:
    tally = run.tally
    age = (tally.steps - 1 - rollouts.version).double()
    tally.tokens += rollouts.num_tokens
    tally.step_seconds += seconds
    tally.skipped_updates += learned.skipped_updates
    tally.nonfinite += len(learned.nonfinite)
    tally.nonfinite_in_row = learned.nonfinite_in_row
    tally.moved_updates += learned.moved_updates
    if not tally.first_error:
        tally.first_error = next(iter(rollouts.messages.values()), "")
    tally.staleness_total += float(age.sum())
    tally.staleness_max = max(tally.staleness_max, float(age.max()))
    tally.warn(learned.warnings)
    for status, count in rollouts.statuses().items():
        tally.statuses[status] = tally.statuses.get(status, 0) + count


def _dump(run: Run, version: int, rollouts: Rollouts, learned: Learned) -> None:
    """Write what the signal saw, for `trimtab replay`, and which sequences each refused step trained on."""
    meta = {
        "step": version,
        "metrics": learned.metrics,
        "state": {"effects": dict(learned.state_before.effects), "window": learned.state_before.window},
        "nonfinite": [sequences.tolist() for sequences in learned.nonfinite],
        "rollouts": rollouts.head(),
        "seed": signal_seed(run.settings.seed, version),
    }
    run.record.dump_batch(
        version, {**rollouts.tensors(), **learned.fields}, meta, "nonfinite" if learned.nonfinite else "batches"
    )


def _is_good_enough(run: Run) -> bool:
    wanted = run.settings.early_stop
    recent = [accuracy for _, accuracy in run.tally.evaluations]
    if not isinstance(wanted, EarlyStop) or len(recent) < wanted.evaluations:
        return False
    return min(recent[-wanted.evaluations :]) >= wanted.accuracy

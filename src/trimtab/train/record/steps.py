"""The only place that says what a step leaves behind: counts, a line of metrics, and what people look at."""

import time

from trimtab.rollout.episode import STATUSES
from trimtab.rollout.rollouts import Rollouts
from trimtab.train.learner import Learned, signal_seed
from trimtab.train.record.diagnose import diagnostics, measured_now, split_drift, staleness
from trimtab.train.record.transcript import transcripts
from trimtab.train.run import Lead, Run
from trimtab.train.runtimes.inline import Delivered


class Clock:
    """When the parts of a step were done."""

    def __init__(self) -> None:
        self._began: float = time.perf_counter()
        self._marks: dict[str, float] = {}

    def mark(self, name: str) -> None:
        self._marks[name] = time.perf_counter()

    def between(self, first: str, second: str) -> float:
        return self._marks[second] - self._marks[first]

    @property
    def whole(self) -> float:
        """From the beginning to the last mark."""
        return max(self._marks.values()) - self._began


def keep_line(run: Run, line: dict[str, object]) -> None:
    """Write a line of metrics, where there is a record to write to."""
    if run.lead is not None:
        run.lead.record.append("metrics.jsonl", line)


def keep_step(run: Run, line: dict[str, object], delivered: Delivered, learned: Learned, clock: Clock) -> None:
    """Count the step on every rank; on rank 0, write down all about it and tell people."""
    version, rollouts = run.tally.steps - 1, delivered.rollouts
    _count(run, rollouts, learned, clock.whole)
    lead = run.lead
    if lead is None:
        return
    if version % run.settings.eval_every == 0:
        lead.record.append("diagnostics.jsonl", {"step": version, **diagnostics(rollouts, learned, version)})
        for episode in transcripts(rollouts, learned, run.policy.tokenizer):
            lead.record.append("transcripts.jsonl", {"step": version, **episode})
    if run.settings.dump_batches or learned.nonfinite:
        _dump(run, lead, version, rollouts, learned)
    line |= {
        **_rollout_metrics(delivered),
        **staleness(rollouts, version),
        **split_drift(rollouts, measured_now(learned)),
        "train/skipped_updates": learned.skipped_updates,
        **learned.metrics,
        "time/sample_seconds": delivered.sample_seconds,
        "time/wait_seconds": delivered.wait_seconds,
        "time/learn_seconds": clock.between("sampled", "learned"),
        "time/publish_seconds": clock.between("learned", "published"),
        "time/elapsed_seconds": run.elapsed,
        "time/tokens_per_second": rollouts.num_tokens / clock.whole,
    }
    keep_line(run, line)
    lead.progress.step(line)
    lead.sinks.log(version, {name: float(value) for name, value in line.items() if isinstance(value, int | float)})


def _rollout_metrics(delivered: Delivered) -> dict[str, object]:
    rollouts = delivered.rollouts
    statuses = rollouts.statuses()
    return {
        "rollout/reward_mean": rollouts.reward_mean,
        "rollout/ended_fraction": float(rollouts.ended.float().mean()),
        "rollout/tokens": rollouts.num_tokens,
        "rollout/groups_dropped": delivered.dropped,
        "buffer/groups": delivered.buffered,
        "buffer/bytes": delivered.buffered_bytes,
        "publish/lag_seconds": delivered.lag_seconds,
        "publish/lag_versions": delivered.lag_versions,
        "samplers/count": len(delivered.samplers),
        "samplers/oldest_version": min(delivered.samplers, default=-1),
        "samplers/newest_version": max(delivered.samplers, default=-1),
        **{f"reward/{status}": statuses[status] for status in STATUSES},
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
    tally.staleness_max = max(tally.staleness_max, float(age.max()) if len(age) else 0.0)
    tally.warn(learned.warnings)
    for status, count in rollouts.statuses().items():
        tally.statuses[status] = tally.statuses.get(status, 0) + count


def _dump(run: Run, lead: Lead, version: int, rollouts: Rollouts, learned: Learned) -> None:
    """Write what the signal saw, for `trimtab replay`, and which sequences each refused step trained on."""
    meta = {
        "step": version,
        "metrics": learned.metrics,
        "state": learned.state_before.as_data(),
        "nonfinite": [sequences.tolist() for sequences in learned.nonfinite],
        "rollouts": rollouts.head(),
        "seed": signal_seed(run.settings.seed, version),
    }
    tensors = {**rollouts.tensors(), **learned.fields}
    lead.record.dump_batch(version, tensors, meta, "nonfinite" if learned.nonfinite else "batches")

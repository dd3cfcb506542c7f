"""The only place that shows how time and data were used: rewards, use of the batch, seconds and tokens."""

from typing import cast

from trimtab.report.data import Json, RunData, number
from trimtab.report.figure import Line, curves, key
from trimtab.report.section import bar, question
from trimtab.report.words import capital, counted, duration, listed, percent

STATUSES = {
    "ok": "judged", "abstain": "abstained from", "error": "failed", "timeout": "ran out of time",
    "abort": "never came, because the engine gave the answer up", "cancel": "never came, because it was cancelled",
}  # fmt: skip
STATUS_ROLES = {"ok": "third", "abstain": "faint", "error": "bad", "timeout": "warn", "abort": "bad", "cancel": "faint"}


def rewards(run: RunData) -> str:
    """The status of every answer: judged, abstained, failed, out of time."""
    counts = reward_counts(run)
    total = sum(counts.values())
    if not total:
        return question("rewards", "Were all answers judged?", "Not known: the run counted no reward statuses.")
    failed = {status: count for status, count in counts.items() if status != "ok" and count}
    if not failed:
        return question(
            "rewards", "Were all answers judged?", f"Yes: {counted(int(total), 'answer')}, no reward failed."
        )
    told = listed([f"{counted(int(count), 'reward')} {STATUSES[status]}" for status, count in failed.items()])
    share = percent(sum(failed.values()) / total)
    said = f"No: of {counted(int(total), 'answer')}, {told} ({share}). Those neither train nor vote."
    lines = [Line(STATUSES[status], STATUS_ROLES[status], run.series(f"reward/{status}")) for status in failed]
    shares = [(STATUS_ROLES[status], count / total) for status, count in counts.items()]
    names = [
        (STATUS_ROLES[status], f"{STATUSES[status]} {percent(count / total)}")
        for status, count in counts.items()
        if count
    ]
    return question(
        "rewards", "Were all answers judged?", said, bar(shares), key(names), curves("rewards", lines, height=2.0)
    )


def reward_counts(run: RunData) -> dict[str, float]:
    """Counts by status, from the summary or summed over steps."""
    told = run.summary.get("reward_status")
    given = cast(Json, told) if isinstance(told, dict) else {}
    summed = {status: sum(run.series(f"reward/{status}").values) for status in STATUSES}
    return {
        status: value if (value := number(given.get(status))) is not None else summed[status] for status in STATUSES
    }


def use_of_data(run: RunData) -> str:
    """The share of tokens that carried a gradient, and of groups that were sampled for nothing."""
    effective, constant = run.series("effective_batch/token_fraction"), run.series("constant_groups/group_fraction")
    if not effective and not constant:
        return question("use", "How much of the data was used?", "Not known: the run measured no shares.")
    lines = [
        Line("tokens with a gradient", "first", effective),
        Line("groups whose answers all earned the same", "second", constant),
    ]
    moving = [line for line in lines if not line.series.is_constant]
    return question(
        "use", "How much of the data was used?", used(run), curves("use", moving, scale="share", height=2.3)
    )


def used(run: RunData) -> str:
    """How much of each batch carried a signal?"""
    share = run.series("effective_batch/token_fraction")
    parts: list[str] = []
    if share:
        if min(share.values) == 1:
            parts.append("Every token carried a gradient.")
        else:
            first, last = percent(share.first), percent(share.last)
            parts.append(
                f"At the end {last} of the tokens carried a gradient, {first} at the start. "
                "Where all answers to a prompt earn the same reward, there is nothing to compare."
            )
    dropped = int(sum(run.series("rollout/groups_dropped").values))
    if dropped:
        were = "was" if dropped == 1 else "were"
        parts.append(f"{capital(counted(dropped, 'group'))} {were} replaced by fresh prompts.")
    return " ".join(parts)


def time(run: RunData) -> str:
    """Where the time went, and the speed in tokens per second."""
    spans = spent(run)
    if not spans:
        return question("time", "Where did the time go?", "Not known: the run wrote no times.")
    whole = sum(spans.values())
    roles = ("first", "second", "fourth", "third", "faint")
    shares = [(role, name, seconds / whole) for role, (name, seconds) in zip(roles, spans.items(), strict=False)]
    names = [(role, f"{name} {percent(share)}") for role, name, share in shares if share > 0]
    speed = Line("tokens per second", "first", run.series("time/tokens_per_second"), smooth=True)
    drawing = curves("speed", [speed], height=2.0) if len(speed.series.values) > 1 else ""
    return question(
        "time", "Where did the time go?", timed(run), bar([(r, s) for r, _, s in shares]), key(names), drawing
    )


def timed(run: RunData) -> str:
    """The largest share, the speed, and how long sampling and learning overlapped."""
    spans, seconds = spent(run), elapsed(run)
    whole = sum(spans.values())
    largest = max(spans, key=lambda name: spans[name])
    speed = run.result("tokens_per_second") or (s.mean if (s := run.series("time/tokens_per_second")) else 0.0)
    told = f"{duration(seconds)} in all, the largest share ({percent(spans[largest] / whole)}) for {largest}"
    told += f"; {speed:,.0f} tokens per second were sampled and trained on." if speed else "."
    if runtime(run) != "inline":
        busy = sum(run.series("time/sample_seconds").values)
        # if the two times add up to more than the whole, the excess was done at once; it may have been more
        beside = max(0.0, busy + sum(run.series("time/learn_seconds").values) - seconds)
        share = percent(min(1.0, beside / max(seconds, 1e-9)))
        told += (
            f" Sampling ran in its own process and was busy for {duration(busy)}: for at least {duration(beside)} "
            f"({share}) both worked at once. The bar shows the learner."
        )
    return told


def spent(run: RunData) -> dict[str, float]:
    """Seconds of the learner's process by activity; with `runtime=inline`, sampling is one of them."""
    sums = {name: sum(run.series(f"time/{name}_seconds").values) for name in ("sample", "learn", "wait", "eval")}
    total = elapsed(run)
    if not any(sums.values()) or not total:
        return {}
    spans = {"sampling": 0.0 if runtime(run) != "inline" else sums["sample"], "learning": sums["learn"]}
    spans |= {"waiting for rollouts": sums["wait"], "evaluation": sums["eval"]}
    rest = max(0.0, total - sum(spans.values()))
    other = "start-up, warm start" if sums["eval"] else "start-up, warm start, evaluation"
    return {name: seconds for name, seconds in (*spans.items(), (other, rest)) if seconds > 0}


def elapsed(run: RunData) -> float:
    """Seconds of the whole run, or of the part that was done."""
    told = run.result("seconds")
    course = run.series("time/elapsed_seconds")
    return told if told is not None else max(course.values) if course else 0.0


def runtime(run: RunData) -> str:
    return str(run.summary.get("runtime") or run.setting("runtime") or "inline")

"""The only place that says in words what a figure shows. Every sentence is computed; none is written beforehand."""

import math

from trimtab.report.data import RunData, Series

ROUNDING = 1e-4
"""Mean |log-ratio| below which float32 arithmetic in another order explains the difference."""
SMALL = 1e-2
"""Mean |log-ratio| below which formats such as bf16 or fp8 are the usual cause, and training was not harmed."""


def learned(run: RunData) -> str:
    """Did it learn?"""
    summary = run.summary
    start, end = float(summary["start_accuracy"]), float(summary["held_out_accuracy"])
    asked = int(run.config["eval_prompts"])
    noise = 2 * math.sqrt((start * (1 - start) + end * (1 - end)) / asked)  # two standard errors of the difference
    if end > start + noise:
        verdict = f"Yes: from {percent(start)} right after the warm start to {percent(end)}"
    elif end < start - noise:
        verdict = f"No, it got worse: from {percent(start)} right after the warm start to {percent(end)}"
    else:
        verdict = f"It did not move: {percent(start)} right after the warm start, {percent(end)} at the end"
    how = {
        "finished": "when all steps were done",
        "early_stop": "when validation accuracy was high enough",
        "interrupted": "when it was interrupted",
    }[str(summary["outcome"])]
    return (
        f"{verdict}, over {summary['steps']} steps and {int(summary['tokens']):,} tokens. The last number comes from "
        f"{asked} test prompts, looked at once; the run stopped {how}."
    )


def agreed(run: RunData) -> str:
    """Do sampler and trainer agree?"""
    mean, largest = run.gap("mean"), run.gap("max")
    if not mean:
        return "Not measured: no step compared the trainer's log-probs with the sampler's."
    average = sum(mean.values) / len(mean.values)
    said = f"their log-probs of the sampled tokens differ by {average:.1e} on average"
    if largest:
        said += f" and by {max(largest.values):.1e} at most"
    if average < ROUNDING:
        return f"Yes: {said}, which is rounding."
    if average < SMALL:
        return f"Nearly: {said}. Low-precision sampling looks like this; a truncated importance ratio costs little."
    return f"No: {said}. Sampled tokens are off-policy; use a recipe with a correction, and look for the cause."


def rejected(run: RunData, kept: Series, clipped: dict[str, Series]) -> str:
    """How much of the data was used?"""
    parts: list[str] = []
    if kept:
        lowest = min(kept.values)
        parts.append(
            "No token was rejected" if lowest == 1 else f"Corrections kept at least {percent(lowest)} of the tokens"
        )
    for name, series in clipped.items():
        highest = max(series.values)
        parts.append(f"{name} never clipped" if highest == 0 else f"{name} clipped up to {percent(highest)} of them")
    skipped = int(run.summary["skipped_updates"])
    if skipped:
        parts.append(f"{skipped} optimiser steps were left out because nothing was kept")
    single = int(run.config["updates_per_batch"]) == 1
    why = (
        " With one update a batch the current policy is the old one, so there is nothing to clip."
        if single and all(max(series.values) == 0 for series in clipped.values()) and clipped
        else ""
    )
    return "; ".join(parts) + "." + why


def used(run: RunData) -> str:
    """How much of each batch carried a signal?"""
    share = run.series("effective_batch/token_fraction")
    if not share:
        return ""
    if min(share.values) == 1:
        return "Every token carried a gradient."
    return (
        f"At the end {percent(share.values[-1])} of the tokens carried a gradient, {percent(share.values[0])} at the "
        "start: where all answers to a prompt earn the same, there is nothing to compare."
    )


def settled(run: RunData) -> str:
    """Is it still exploring, and were steps bounded?"""
    entropy, norm = run.series("entropy/token_mean"), run.series("train/grad_norm")
    parts: list[str] = []
    if entropy:
        first, last = entropy.values[0], entropy.values[-1]
        moved = "fell" if last < first else "rose"
        parts.append(f"Entropy {moved} from {first:.2f} to {last:.2f} nats a token")
    if norm:
        limit = float(run.config["grad_clip"])
        over = sum(value > limit for value in norm.values)
        parts.append(f"the gradient was longer than {limit:g} and scaled down at {over} of {len(norm.values)} steps")
    said = "; ".join(parts)
    return f"{said[:1].upper()}{said[1:]}." if said else "Not measured."


def timed(run: RunData) -> str:
    """Where did the time go?"""
    shares = spent(run)
    largest = max(shares, key=lambda name: shares[name])
    return (
        f"{float(run.summary['seconds']):.0f} seconds in all, the largest share ({percent(shares[largest])}) for "
        f"{largest}; {float(run.summary['tokens_per_second']):,.0f} tokens a second were sampled and trained on."
    )


def spent(run: RunData) -> dict[str, float]:
    """Shares of the run's time; what is neither sampling nor learning is warm start, evaluation and start-up."""
    seconds = max(float(run.summary["seconds"]), 1e-9)
    sampling = sum(run.series("time/sample_seconds").values) / seconds
    learning = sum(run.series("time/learn_seconds").values) / seconds
    return {
        "sampling": sampling,
        "learning": learning,
        "start-up, warm start, evaluation": max(0.0, 1 - sampling - learning),
    }


def percent(share: float) -> str:
    """A share with as many digits as it deserves; number and sign stay on one line.

    >>> percent(0.984), percent(1.0), percent(0.00042)
    ('98.4\\xa0%', '100\\xa0%', '0.042\\xa0%')
    """
    if share in (0.0, 1.0):
        return f"{100 * share:.0f}\u00a0%"
    return f"{100 * share:.1f}\u00a0%" if abs(share) >= 0.001 else f"{100 * share:.2g}\u00a0%"

"""The only place that says whether a run learned, alone and against its control run. Sentences are computed."""

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

from trimtab.report.data import RunData, Series
from trimtab.report.figure import Line, Mark, curves, draw_lines, panels
from trimtab.report.words import counted, percent, points

OUTCOMES = {
    "finished": "when all steps were done",
    "early_stop": "when validation accuracy was high enough",
    "interrupted": "when it was interrupted",
    "time_limit": "when its time limit was reached",
    "nonfinite": "because loss or gradient were not finite too often",
}
Verdict = Literal["better", "worse", "same", "unknown"]


@dataclass(frozen=True)
class Accuracy:
    """One measured accuracy: what share, of how many prompts, and of which split.

    Accuracy(0.98, 512, "test") is uncertain by two standard errors, ± 0.012.
    """

    share: float
    prompts: int
    split: Literal["test", "validation"]

    @property
    def variance(self) -> float:
        """Standard error over the choice of prompts, by Agresti and Coull: 0 % and 100 % are uncertain too."""
        prompts = self.prompts + 4
        share = (self.share * self.prompts + 2) / prompts
        return share * (1 - share) / prompts


def noise(one: Accuracy, other: Accuracy) -> float:
    """Two standard errors of the difference: the part that the choice of prompts alone can explain."""
    return 2 * math.sqrt(one.variance + other.variance)


def compared(before: Accuracy | None, after: Accuracy | None) -> Verdict:
    """Is the second better than the first by more than the noise?"""
    if before is None or after is None:
        return "unknown"
    difference, limit = after.share - before.share, noise(before, after)
    return "better" if difference > limit else "worse" if difference < -limit else "same"


def start(run: RunData) -> Accuracy | None:
    """The first measurement: after the warm start, before any RL."""
    course = run.series("eval/accuracy")
    told = run.result("start_accuracy")
    share = told if told is not None else course.values[0] if course else None
    return None if share is None else Accuracy(share, run.asked, "validation")


def end(run: RunData) -> Accuracy | None:
    """The last measurement: on test prompts if the run got that far, else the last validation."""
    tested = run.result("held_out_accuracy")
    if tested is not None:
        return Accuracy(tested, run.asked, "test")
    course = validation(run)
    return Accuracy(course.values[-1], run.asked, "validation") if course else None


def validation(run: RunData) -> Series:
    """Validation accuracy over steps, including the measurement after the last step."""
    course, last = run.series("eval/accuracy"), run.result("validation_accuracy")
    if last is None or (course and course.steps[-1] >= run.num_steps):
        return course
    return Series((*course.steps, run.num_steps), (*course.values, last))


def learned(run: RunData) -> str:
    """Did it learn?"""
    first, last = start(run), end(run)
    if first is None or last is None:
        return "Not known: no evaluation was written."
    span = f"from {percent(first.share)} right after the warm start to {percent(last.share)}"
    told = {
        "better": f"Yes: {span}",
        "worse": f"No, it got worse: {span}",
        "same": f"It did not move beyond the noise of ± {points(noise(first, last))}: {span}",
    }[cast(Literal["better", "worse", "same"], compared(first, last))]
    tokens = run.result("tokens") or sum(run.series("rollout/tokens").values)
    return (
        f"{told}, over {counted(run.num_steps, 'step')} and {int(tokens):,} tokens. {_measured(run, last)}"
        f"{_best(run)}{_sampled(run)}"
    )


def verdict(run: RunData) -> Verdict:
    """The answer to "did it learn?" in one word."""
    return compared(start(run), end(run))


def _measured(run: RunData, last: Accuracy) -> str:
    how = OUTCOMES.get(str(run.summary.get("outcome")), "")
    if last.split == "test":
        return f"The last number comes from {last.prompts} test prompts, used only once" + (
            f"; the run stopped {how}." if how else "."
        )
    return "The run wrote no summary, so there is no test accuracy. The last number is its last validation."


def _best(run: RunData) -> str:
    """A sentence only if the best checkpoint is better than the end by more than noise."""
    best, last = run.result("best_accuracy"), end(run)
    if best is None or last is None or compared(last, Accuracy(best, run.asked, "validation")) != "better":
        return ""
    step = run.result("best_step")
    when = f" at step {step:.0f}" if step is not None else ""
    return f" Its best validation accuracy was {percent(best)}{when}; that policy is in best/."


def _sampled(run: RunData) -> str:
    average, passed, samples = (run.result(name) for name in ("avg_at_k", "pass_at_k", "eval_samples"))
    if average is None or passed is None or not samples:
        return ""
    return (
        f" Sampled {samples:.0f} times per prompt, {percent(average)} of the answers are right (avg@{samples:.0f}) and "
        f"{percent(passed)} of the prompts get a right one (pass@{samples:.0f})."
    )


def beside_twin(run: RunData) -> str:
    """What the correction changed, as far as this run and its control run can show."""
    if run.twin is None:
        return ""
    own, other = end(run), end(run.twin)
    if own is None or other is None:
        return "There is a control run without correction, but one of the two runs has no accuracy to compare."
    limit = noise(own, other)
    told = f"The control run, without correction, ended at {percent(other.share)} against {percent(own.share)}"
    if run.num_steps != run.twin.num_steps:
        told += f", after {counted(run.twin.num_steps, 'step')} against {run.num_steps:,}"
    if own.split != other.split:
        told += f" ({other.split} against {own.split} prompts)"
    pair = " This is one pair of runs with one seed. Other seeds may differ."
    if abs(own.share - other.share) <= limit:
        apart = points(own.share - other.share)
        return f"{told}. The difference of {apart} is within the noise of ± {points(limit)}, so no claim is made.{pair}"
    which = "better" if own.share > other.share else "worse"
    return (
        f"{told}. With correction it is {points(own.share - other.share)} {which}, more than the ± {points(limit)} "
        f"that the choice of prompts explains.{pair}"
    )


def learning_curve(run: RunData) -> str:
    """Held-out accuracy, sampled reward and final test accuracy, and those of the control run, in one figure."""
    lines = [
        Line("reward while sampling", "second", run.series("rollout/reward_mean"), smooth=True),
        Line("held-out accuracy, greedy, on validation prompts", "first", validation(run), dots=True),
    ]
    marks: list[Mark] = []
    last = end(run)
    if last is not None and last.split == "test":
        marks.append(Mark(f"on test prompts: {last.share:.3f}", "third", last.share, run.num_steps))
    if run.twin is not None:
        lines.append(
            Line(
                "held-out accuracy of the control run, without correction",
                "fourth",
                validation(run.twin),
                dots=True,
                dashed=True,
            )
        )
        other = end(run.twin)
        if other is not None and other.split == "test":
            marks.append(
                Mark(f"control run on test prompts: {other.share:.3f}", "fifth", other.share, run.twin.num_steps)
            )
    values = [value for line in lines for value in line.series.values]
    scale = "share" if all(-0.001 <= value <= 1.001 for value in values) else "plain"
    return curves("learning", lines, scale=scale, marks=marks, height=3.3)


def steady(run: RunData) -> str:
    """Does the policy still explore, and were gradients clipped?"""
    entropy, norm = run.series("entropy/token_mean"), run.series("train/grad_norm")
    parts: list[str] = []
    if entropy:
        first, last = entropy.first, entropy.last
        moved = "fell" if last < first else "rose"
        parts.append(f"entropy {moved} from {first:.2f} to {last:.2f} nats per token")
    limit = run.setting("grad_clip")
    if norm and isinstance(limit, int | float):
        over = sum(value > limit for value in norm.values)
        parts.append(f"the gradient norm was above {limit:g} and clipped at {over} of {len(norm.values)} steps")
    said = "; ".join(parts)
    return f"{said[:1].upper()}{said[1:]}." if said else "Not measured."


def steadiness(run: RunData) -> str:
    """Entropy, and the gradient norm with its bound."""
    entropy, norm = run.series("entropy/token_mean"), run.series("train/grad_norm")
    limit = run.setting("grad_clip")

    def paint_entropy(axis: Any) -> None:
        draw_lines(axis, [Line("", "first", entropy)])
        axis.set_title("entropy, nats per token", loc="left")

    def paint_norm(axis: Any) -> None:
        bound = [Mark("", "faint", float(limit))] if isinstance(limit, int | float) else []
        draw_lines(axis, [Line("", "second", norm)], marks=bound)
        axis.set_title("gradient norm before clipping", loc="left")

    found = (("entropy", entropy, paint_entropy), ("norm", norm, paint_norm))
    return panels([(name, paint) for name, series, paint in found if series]) if entropy or norm else ""

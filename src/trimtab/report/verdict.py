"""The only place that judges the training signal by its metrics: bounds, their reasons, and since which step."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any, Literal, cast

from trimtab.report import course
from trimtab.report.data import Json, RunData, Series, objects
from trimtab.report.words import capital, counted, listed, percent, small

Status = Literal["fine", "corrected", "watch", "fault", "unknown"]
"""`corrected`: outside its bound, and the recipe corrects for it."""
RANK: dict[Status, int] = {"unknown": 0, "fine": 1, "corrected": 2, "watch": 3, "fault": 4}
OUTSIDE: tuple[Status, ...] = ("corrected", "watch", "fault")
LASTING = 0.1
"""A metric counts as outside its bound if this share of its points is outside, or if its last five are."""
NUM_CAUSES = 5
"""The first checks of the list are causes (drift, sample size, kept share, rewards). The others are effects."""
OVERWHELMED = 0.5
"""Above this share of clipped tokens, a policy loss that clips the ratio to the sampler discards too much."""
SOLVED = 0.9
"""From this accuracy on, low entropy and few groups with different rewards show success, not a fault."""


@dataclass(frozen=True)
class Bound:
    """Limits for "worth a look" and for "fault". With `above`, large values are bad, else small ones.

    Bound("effective sample size", …, watch=0.3, fault=0.1, above=False): 0.2 is worth a look, 0.05 a fault.
    """

    name: str
    anchor: str
    watch: float
    fault: float
    above: bool
    why: str

    def status(self, value: float) -> Status:
        sign = 1 if self.above else -1
        return "fault" if sign * value > sign * self.fault else "watch" if sign * value > sign * self.watch else "fine"


ENGINE = Bound("engine drift", "drift-engine", 0.01, 0.1, True, "bf16 samplers stay near 0.002")
STALENESS = Bound("staleness drift", "drift-staleness", 0.01, 0.1, True, "0.1 is a factor of 2.7 over ten tokens")
TOGETHER = Bound("drift from the sampler", "drift-engine", 0.01, 0.1, True, "engine and staleness, not told apart")
ESS = Bound("effective sample size", "ess-near-zero", 0.3, 0.1, False, "a few answers then carry the batch")
KEPT = Bound("kept tokens", "everything-rejected", 0.5, 0.1, False, "half of the work is thrown away")
ENDED = Bound("answers that end", "answers-cut-off", 0.9, 0.5, False, "answers that are cut off mostly earn no reward")
SIGNAL = Bound("tokens with a gradient", "groups-without-signal", 0.2, 0.05, False, "few groups differ in reward")
FAILED = Bound("failed rewards", "reward-errors", 0.01, 0.1, True, "those answers do not train, which biases the batch")
ENTROPY = Bound("entropy", "entropy-collapse", 0.25, 0.1, False, "all answers become the same")
SPIKES = Bound("gradient spikes", "gradient-spikes", 0.0, 0.05, True, "steps with ten times the median norm")
NONFINITE = Bound("non-finite steps", "non-finite", 0.0, 0.05, True, "such steps are skipped")


@dataclass(frozen=True)
class Check:
    """One check: its status, a sentence, the step since which it holds, and its history as (status, points)."""

    name: str
    anchor: str
    status: Status
    said: str
    since: int | None = None
    strip: tuple[tuple[Status, int], ...] = ()


def checks(run: RunData) -> list[Check]:
    """All checks, causes before effects."""
    whole = _drift(run, TOGETHER, "logratio_engine/token_abs_mean")
    engine = _drift(run, ENGINE, "drift/engine_abs_mean", "drift/engine_token_abs_mean")
    return [
        whole if engine.status == "unknown" and whole.status != "unknown" else engine,
        _drift(run, STALENESS, "drift/staleness_abs_mean", "drift/staleness_token_abs_mean"),
        _sample_size(run),
        judged(KEPT, run.series("kept/token_fraction"), percent),
        _rewards(run),
        judged(ENDED, run.series("rollout/ended_fraction", "ended/sequence_fraction"), percent),
        _unless_solved(run, judged(SIGNAL, run.series("effective_batch/token_fraction"), percent)),
        _unless_solved(run, judged(ENTROPY, _of_early(run.series("entropy/token_mean")), _of_its_start)),
        _counted(SPIKES, _spikes(run.series("train/grad_norm"))),
        _counted(NONFINITE, _flags(run.series("train/nonfinite"))),
        _gap(run),
        *_findings(run),
    ]


def _findings(run: RunData) -> Iterator[Check]:
    """What a watch found. A correction without effect is worth a look, anything else is a fault."""
    for one in run.findings:
        name, step = str(one.get("name")), one.get("step")
        status: Status = "watch" if name.startswith("inert_") else "fault"
        yield Check(name, "", status, f"the watch found {name}", step if isinstance(step, int) else None)


def answer(run: RunData) -> tuple[Status, str]:
    """Is the signal at fault? The worst status, and a sentence."""
    found = checks(run)
    worst: Status = max(found, key=lambda check: RANK[check.status]).status
    bad = [check for check in found if check.status == worst]
    seen = [check for check in found if check.status != "unknown"]
    if not seen:
        return "unknown", "Not known: the run has no metric that would show it."
    if worst == "fine":
        return worst, f"No fault found: {counted(len(seen), 'check')} of the signal, all inside their bounds."
    if worst == "corrected":
        return worst, _corrected(run, bad)
    causes = [check for check in found[:NUM_CAUSES] if check.status in OUTSIDE and check.since is not None]
    first = min(causes, key=lambda check: check.since or 0, default=None)
    is_known = first is not None and first.since and len(causes) > 1
    came = f" {capital(first.name)} came first, at step {first.since}." if first is not None and is_known else ""
    told = "; ".join(check.said for check in bad)
    opening = "Probably" if worst == "fault" else "Perhaps"
    learned = " The run still learned." if course.verdict(run) == "better" else ""
    return worst, f"{opening}: {told}.{came}{learned}"


def _corrected(run: RunData, found: list[Check]) -> str:
    """The sentence for a sampler that differs, a recipe that corrects for it, and no other problem."""
    differs = f"the sampler differs ({listed([check.name for check in found])}), the recipe corrects for it"
    if course.verdict(run) == "better":
        return f"No: {differs}, and the run learned."
    return f"No fault was found: {differs}, and every other check is inside its bound."


def judged(bound: Bound, series: Series, form: Any = small) -> Check:
    """A series compared with its bound."""
    if not series:
        return Check(bound.name, bound.anchor, "unknown", f"{bound.name}: not measured")
    states: list[Status] = [bound.status(value) for value in _calm(series.values)]
    status = _lasting(states, bound.status(series.last))
    worst = max(series.values) if bound.above else min(series.values)
    limit = f"{'above' if bound.above else 'below'} {form(bound.fault if status == 'fault' else bound.watch)}"
    said = f"{bound.name} {form(series.last)} at the end, {form(worst)} at worst"
    out = sum(bound.status(value) != "fine" for value in series.values)
    if status != "fine":
        said += f" ({limit}: {bound.why})"
    elif out:
        said += f" ({limit} at {out} of {counted(len(series.values), 'step')}, which is too few to count)"
    return Check(bound.name, bound.anchor, status, said, _since(series, states, status), _strip(states))


def effective(run: RunData) -> Series:
    """The sample size at the level at which the recipe corrects: sequences if a stage reads them, else tokens."""
    stages = [part.get("settings") for part in _parts(run) if part.get("does") == "correct"]
    levels = [str(cast(Json, settings).get("level", "")) for settings in stages if isinstance(settings, dict)]
    level = "token" if levels and "sequence" not in levels else "sequence"
    return run.series(f"ess_total/{level}", f"ess_engine/{level}")


def corrects(run: RunData) -> bool:
    """Does any stage of the recipe correct for a sampler that differs?"""
    return any(part.get("does") == "correct" for part in _parts(run)) or bool(losses_at_sampler(run))


def losses_at_sampler(run: RunData) -> list[str]:
    """Policy losses whose ratio is current over sampler, so that their clip covers engine drift and staleness."""
    return [str(part.get("formula")) for part in _parts(run)
            if part.get("does") == "policy loss" and "rollout" in str(part.get("how"))]  # fmt: skip


def _parts(run: RunData) -> list[Json]:
    return objects(run.recipe.get("parts"))


def _drift(run: RunData, bound: Bound, *names: str) -> Check:
    """Corrected drift is not a fault. If it does harm, ESS, kept share or accuracy show it."""
    check = judged(bound, run.series(*names))
    if not corrects(run):
        return check
    holds = course.verdict(run) != "worse" and not _is_overwhelmed(run)
    return _eased(check, "corrected" if holds else "watch", "which the recipe corrects")


def _is_overwhelmed(run: RunData) -> bool:
    """Does a policy loss that clips the ratio to the sampler clip most of its tokens?"""
    clipped = [run.series(f"{loss}/clipped_tokens") for loss in losses_at_sampler(run)]
    return any(series and series.last > OVERWHELMED for series in clipped)


def _sample_size(run: RunData) -> Check:
    """If the policy loss clips the ratio to the sampler and no stage weights by it, a few answers cannot dominate."""
    check = judged(ESS, effective(run), percent)
    clipped = losses_at_sampler(run) and not any(part.get("does") == "correct" for part in _parts(run))
    if not clipped:
        return check
    return _eased(check, "watch" if _is_overwhelmed(run) else "corrected", "though the loss clips such ratios")


def _eased(check: Check, most: Status, why: str) -> Check:
    """The check with its status limited to `most`, with the reason."""
    if RANK[check.status] <= RANK[most]:
        return check
    strip: list[tuple[Status, int]] = [(min(status, most, key=RANK.__getitem__), n) for status, n in check.strip]
    return Check(check.name, check.anchor, most, f"{check.said}, {why}", check.since, tuple(strip))


REWARD_STATUSES = ("ok", "error", "timeout", "abstain", "abort", "cancel")


def failed_share(run: RunData) -> Series:
    """Share of answers whose reward raised or ran out of time, or which the engine gave up, over steps."""
    counts = {status: dict(zip(s.steps, s.values, strict=True)) for status in REWARD_STATUSES
              if (s := run.series(f"reward/{status}"))}  # fmt: skip
    steps = sorted({step for count in counts.values() for step in count})
    shares: list[float] = []
    for step in steps:
        total = sum(count.get(step, 0.0) for count in counts.values())
        shares.append(
            sum(counts.get(s, {}).get(step, 0.0) for s in ("error", "timeout", "abort")) / total if total else 0.0
        )
    return Series(tuple(steps), tuple(shares))


def _rewards(run: RunData) -> Check:
    return judged(FAILED, failed_share(run), percent)


def _unless_solved(run: RunData, check: Check) -> Check:
    last = course.end(run)
    if last is None or last.share < SOLVED or check.status in ("fine", "unknown"):
        return check
    strip: tuple[tuple[Status, int], ...] = (("fine", 1),)
    said = f"{check.name} is low, which is normal once a task is solved"
    return Check(check.name, check.anchor, "fine", said, None, strip)


def _counted(bound: Bound, flags: Series) -> Check:
    """A check of events: one is worth a look, one step in twenty is a fault."""
    if not flags:
        return Check(bound.name, bound.anchor, "unknown", f"{bound.name}: not measured")
    count, of = int(sum(flags.values)), len(flags.values)
    states: list[Status] = ["watch" if flag else "fine" for flag in flags.values]
    status = bound.status(count / of)
    since = next((step for step, flag in zip(flags.steps, flags.values, strict=True) if flag), None)
    said = f"{bound.name}: {count} of {counted(of, 'step')}" + (f" ({bound.why})" if count else "")
    return Check(bound.name, bound.anchor, status, said, since, _strip(states))


def _gap(run: RunData) -> Check:
    """If reward rises and held-out accuracy does not, the policy learned the reward and not the task."""
    reward, accuracy = run.series("rollout/reward_mean"), course.validation(run)
    name, anchor = "reward against held-out", "reward-without-held-out"
    if len(reward.values) < 10 or len(accuracy.values) < 2:
        return Check(name, anchor, "unknown", f"{name}: not measured often enough")
    fifth = max(1, len(reward.values) // 5)
    rise = sum(reward.values[-fifth:]) / fifth - sum(reward.values[:fifth]) / fifth
    first, last = (course.Accuracy(accuracy.values[i], run.asked, "validation") for i in (0, -1))
    moved = course.compared(first, last)
    if rise <= 0.05 or moved == "better" or first.share >= SOLVED:
        return Check(name, anchor, "fine", "reward and held-out accuracy agree")
    said = f"reward rose by {small(rise)} while held-out accuracy {'fell' if moved == 'worse' else 'stayed'}"
    return Check(name, anchor, "fault" if moved == "worse" else "watch", said)


def _of_its_start(share: float) -> str:
    return f"{percent(share)} of its early value"


def _of_early(series: Series) -> Series:
    early = median(series.values[:10]) if series else 0.0
    return Series(series.steps, tuple(value / early for value in series.values)) if early > 0 else Series()


def _spikes(series: Series) -> Series:
    usual = median(series.values) if len(series.values) >= 10 else 0.0
    return Series(series.steps, tuple(float(value > 10 * usual) for value in series.values)) if usual > 0 else Series()


def _flags(series: Series) -> Series:
    return Series(series.steps, tuple(float(value > 0) for value in series.values))


def _calm(values: tuple[float, ...]) -> Iterator[float]:
    """Median of five, so that a verdict does not change at every step."""
    return (median(values[max(0, i - 2) : i + 3]) for i in range(len(values)))


def _strip(states: list[Status]) -> tuple[tuple[Status, int], ...]:
    return tuple((state, len(list(run))) for state, run in groupby(states))


def _lasting(states: list[Status], at_end: Status) -> Status:
    for status in ("fault", "watch"):
        share = sum(RANK[state] >= RANK[status] for state in states) / len(states)
        if share >= LASTING or RANK[at_end] >= RANK[status]:
            return status
    return "fine"


def _since(series: Series, states: list[Status], status: Status) -> int | None:
    """The first step whose status is as bad as the verdict."""
    if status in ("fine", "unknown"):
        return None
    return next((step for step, state in zip(series.steps, states, strict=True) if RANK[state] >= RANK[status]), None)

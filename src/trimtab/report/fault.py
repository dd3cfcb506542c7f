"""The only place that lays out faults: is the signal at fault, since which step, in which stage."""

from collections.abc import Callable
from html import escape
from typing import Any

from trimtab.report import course, verdict
from trimtab.report.change import LEAST, Change, change_point
from trimtab.report.data import ROUNDING, RunData, Series
from trimtab.report.figure import PALETTE, ROLES, Line, curves, draw_lines, key, panels
from trimtab.report.section import question, table
from trimtab.report.symptom import link
from trimtab.report.symptoms import SYMPTOMS
from trimtab.report.words import capital, counted, listed, percent, small

SIGN_OF = {"fine": "✓", "corrected": "✓", "watch": "!", "fault": "✗", "unknown": "–"}
WORST_WAY = {
    "eval/accuracy": "below",
    "rollout/reward_mean": "below",
    "drift/engine_abs_mean": "above",
    "drift/staleness_abs_mean": "above",
    "ess_total/sequence": "below",
    "ess_engine/sequence": "below",
    "kept/token_fraction": "below",
    "entropy/token_mean": "below",
    "rollout/ended_fraction": "below",
    "train/grad_norm": "above",
    "logratio_engine/token_abs_mean": "above",
    "logratio_total/token_abs_mean": "above",
}
"""Metrics watched for a change, and the side on which a change is bad."""
SHOWN_CHANGES = 3
NEGLIGIBLE = 1e-4
"""Below this effect, a stage only corrects rounding."""


def is_the_signal_at_fault(run: RunData) -> str:
    """One line per check: its values over steps as a strip, its status, and a link to its explanation."""
    _, said = verdict.answer(run)
    rows = "".join(_row(check) for check in verdict.checks(run))
    note = (
        '<p class="note">Each strip shows one check from the first step to the last. Green is inside the bound, '
        "blue is outside and corrected by the recipe, yellow is worth a look, red is a fault. On this page “at the "
        "start” and “at the end” mean the median of five values.</p>"
    )
    return question("signal", "Is the signal at fault?", said, f'<div class="checks">{rows}</div>', note)


def _row(check: verdict.Check) -> str:
    cells = "".join(f'<i class="{status}" style="flex: {count}"></i>' for status, count in check.strip)
    symptom = SYMPTOMS.get(check.anchor)  # a finding of a watch tells itself what to do
    more = f" {link(symptom)}" if symptom is not None and check.status in ("watch", "fault") else ""
    since = f" Since step {check.since}." if check.since is not None and check.status in ("watch", "fault") else ""
    return (
        f'<div class="check {check.status}"><b><span class="sign">{SIGN_OF[check.status]}</span>'
        f"{escape(check.name)}</b>"
        f'<span class="strip">{cells}</span><span class="said">{escape(capital(check.said))}.{since}{more}</span></div>'
    )


def changes(run: RunData) -> list[tuple[str, Series, Change]]:
    """Watched metrics that left their early range permanently, on the bad side, in order of steps."""
    found: list[tuple[str, Series, Change]] = []
    harmless = {check.anchor for check in verdict.checks(run) if check.status == "fine"}
    for name, side in WORST_WAY.items():
        if name.startswith("entropy") and "entropy-collapse" in harmless:
            continue  # a policy that learns becomes more certain
        if name.startswith("logratio") and run.series("drift/engine_abs_mean"):
            continue  # the same drift, not split into engine and staleness
        series = run.series(name)
        if name.startswith(("logratio", "drift")) and series and max(series.values) < ROUNDING:
            continue  # changes in rounding mean nothing
        change = change_point(series) if series else None
        if change is not None and change.side == side:
            found.append((name, series, change))
    return sorted(found, key=lambda entry: entry[2].step)


def since_which_step(run: RunData) -> str:
    """The change-points, and figures of the first ones with their early ranges."""
    found = changes(run)
    return question(
        "since", "Since which step?", since(run, found), _drawn_changes(found[:SHOWN_CHANGES]) if found else ""
    )


def since(run: RunData, found: list[tuple[str, Series, Change]]) -> str:
    watched = _watched(run)
    if not watched:
        return f"The run is too short: no metric has the {2 * LEAST} points that this needs."
    if not found:
        return (
            f"None: {counted(len(watched), 'metric')} were watched, and none left its early range for the worse and "
            "stayed outside. The early range is the range in the first fifth of the run, widened by half on each side."
        )
    told = [
        f"{name} ({small(change.before)} before, {small(change.after)} since) at step {change.step}"
        for name, _, change in found[:SHOWN_CHANGES]
    ]
    more = f"; then {len(found) - SHOWN_CHANGES} more" if len(found) > SHOWN_CHANGES else ""
    ended = course.verdict(run)
    but = " Held-out accuracy still rose, so this is a change, not a fault." if ended == "better" else ""
    which = f"{listed(told)}{more}"
    return f"Since step {found[0][2].step}: these metrics left their early range and stayed outside: {which}.{but}"


def _drawn_changes(found: list[tuple[str, Series, Change]]) -> str:
    def painter(name: str, series: Series, change: Change) -> Callable[[Any], None]:
        def paint(axis: Any) -> None:
            draw_lines(axis, [Line("", "first", series)])
            low = max(change.low, axis.get_ylim()[0])
            _ = axis.axhspan(low, change.high, color=ROLES["third"], alpha=0.16, linewidth=0)
            _ = axis.axvline(change.step, color=ROLES["second"], linewidth=1.4)
            axis.set_title(name, loc="left")

        return paint

    entries = [("first", "as measured"), ("third", "early range, widened"), ("second", "outside since this step")]
    return panels([(f"change{i}", painter(*entry)) for i, entry in enumerate(found)]) + key(entries)


def stages(run: RunData) -> dict[str, Series]:
    """Each correction with its effect: correction stages, and a policy loss that clips the ratio to the sampler."""
    named = [name.removesuffix("/alone") for name in run.names("/alone")]
    effects = {name: run.series(f"{name}/on_top", f"{name}/alone") for name in named}
    losses = {loss: run.series(f"{loss}/clipped_tokens") for loss in verdict.losses_at_sampler(run)}
    return {name: series for name, series in (effects | losses).items() if series}


def no_change(run: RunData) -> str:
    """One word for the top of the page where no metric changed for the worse."""
    return "none" if _watched(run) else "not known"


def _watched(run: RunData) -> list[str]:
    return [name for name in WORST_WAY if len(run.series(name).values) >= 2 * LEAST]


def in_short(run: RunData) -> str:
    """A few words for the top of the page. "No correction" is said only where the recipe is known."""
    if most := acting(run):
        return most
    if stages(run):
        return "none acts"
    return "no correction" if run.recipe.get("parts") else "not known"


def acting(run: RunData) -> str:
    """The stage with the largest effect on top of the others; empty if no stage acts or there is none."""
    effect = {name: series.mean for name, series in stages(run).items()}
    most = max(effect, key=lambda name: effect[name], default="")
    return most if effect.get(most, 0.0) >= NEGLIGIBLE else ""


def which_stage(run: RunData) -> str:
    """The effect of each stage alone and on top of the others, and rejected and clipped shares over steps."""
    named = list(stages(run))
    clipped = {name.removesuffix("/clipped_tokens"): run.series(name) for name in run.names("/clipped_tokens")}
    said = " ".join(text for text in (_acting(run), _clipping(run, clipped), _skipped(run)) if text)
    labels = [*named, *(name for name in clipped if name not in named)]
    cells = [(f"<th><code>{escape(label)}</code></th>", *_effects(run, label)) for label in labels]
    top = ("stage", "alone", "on top of the others", "rejected", "above its band", "below its band", "clipped")
    told = [place for place in range(len(top)) if any(row[place] for row in cells)]  # no empty columns
    rows = [[row[place] for place in told] for row in cells]
    lines = [
        Line(f"{label}: {what}", role, series)
        for role, (label, what, series) in zip(PALETTE[1:], _moving(run, labels), strict=False)
    ]
    kept = Line("kept by all", "first", run.series("kept/token_fraction"))
    shown = [kept, *lines] if lines or not kept.series.is_constant else []
    drawing = curves("stages", shown, scale="share", height=2.3)
    numbers = table([top[place] for place in told], rows, kind="numbers")
    known = bool(run.recipe.get("parts"))
    nothing = "The recipe has no correction and no clip." if known else "Not known: config.json describes no recipe."
    return question("stage", "Which stage?", said or nothing, drawing, numbers)


def _effects(run: RunData, label: str) -> list[str]:
    cells: list[str] = []
    for what in ("alone", "on_top", "rejected_tokens", "over_high_tokens", "under_low_tokens", "clipped_tokens"):
        series = run.series(f"{label}/{what}")
        importance = what in ("alone", "on_top") and not label.startswith("keep")
        cells.append((small(series.mean) if importance else percent(series.mean)) if series else "")
    return cells


def _moving(run: RunData, labels: list[str]) -> list[tuple[str, str, Series]]:
    """Shares of tokens that a stage rejects, bounds or clips. Constant ones are in the table, not in the figure."""
    words = {"rejected_tokens": "rejected", "over_high_tokens": "above its band", "clipped_tokens": "clipped"}
    entries = [(label, word, run.series(f"{label}/{what}")) for label in labels for what, word in words.items()]
    return [entry for entry in entries if entry[2] and not entry[2].is_constant]


def _acting(run: RunData) -> str:
    """Which stage has the largest effect, and which stages never had one."""
    effect = stages(run)
    idle = [name for name, series in effect.items() if max(series.values) == 0]
    still = [name for name, series in effect.items() if name not in idle and series.mean < NEGLIGIBLE]
    parts: list[str] = []
    most = acting(run)
    if most:
        mean, rejects = effect[most].mean, most.startswith(("keep", "policy_loss"))
        verb = "clips" if most.startswith("policy_loss") else "rejects"
        what = f"{verb} {percent(mean)} of the tokens" if rejects else f"moves weights by {small(mean)}"
        parts.append(f"{most} acts{' most' if len(effect) - len(idle) - len(still) > 1 else ''}: on average it {what}.")
    if still:
        parts.append(f"{listed(still)} corrected only rounding.")
    if idle:
        parts.append(f"{listed(idle)} did nothing at any step.")
    return " ".join(parts)


def _clipping(run: RunData, clipped: dict[str, Series]) -> str:
    """Policy losses that clip the ratio to the old policy. Those that clip the ratio to the sampler are stages."""
    clipped = {name: series for name, series in clipped.items() if name not in verdict.losses_at_sampler(run)}
    single = run.setting("updates_per_batch") == 1
    shares = {name: max(series.values) for name, series in clipped.items() if series}
    parts = [
        f"{name} clipped up to {percent(share)} of the tokens" if share else f"{name} never clipped"
        for name, share in shares.items()
    ]
    never = not any(shares.values())
    why = (
        " With one update per batch the current policy is the old one, so there is nothing to clip."
        if single and never
        else ""
    )
    return f"{'; '.join(parts)}.{why}" if parts else ""


def _skipped(run: RunData) -> str:
    skipped = int(run.result("skipped_updates") or 0)
    return f"{skipped} optimiser steps were skipped because no token was kept." if skipped else ""

"""The only place that lays out several runs on one page: their differences, and their curves in common figures."""

import json
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Literal, cast

from trimtab.errors import ConfigError
from trimtab.report import course, verdict, work
from trimtab.report.data import ROUNDING, Json, RunData, Series, read_run
from trimtab.report.figure import PALETTE, Line, curves
from trimtab.report.page import document, write_page
from trimtab.report.section import cut, question, table
from trimtab.report.words import counted, duration, listed, percent, points, small

Named = Sequence[tuple[str, RunData]]
UNTOLD = ("run_dir", "log_to", "threads", "origin")
"""Settings that do not change what is learned."""
MOST_SETTING = 400
"""Characters of one setting in the table; a longer one says how much is left out."""


def write_comparison(folders: Sequence[Path], path: Path) -> Path:
    """One page for several run folders: settings that differ, curves, final numbers, drift and sample size."""
    if len(folders) < 2:
        raise ConfigError(f"report: a comparison needs two runs or more, got {len(folders)}. Name more folders.")
    return write_page(path, comparison([read_run(folder, with_twin=False) for folder in folders], _labels(folders)))


def comparison(runs: Sequence[RunData], labels: Sequence[str]) -> str:
    """The whole page as text."""
    named = list(zip(labels, runs, strict=True))
    return document(
        f"{len(runs)} runs compared",
        f'<header><p class="over">trimtab report</p><h1>{len(runs)} runs compared</h1>'
        f'<p class="lead">{escape(_lead(runs))}</p></header>\n',
        question("end", "Where did they end?", ended(named), _numbers(named)),
        *_curves(named),
        question("settings", "How do their settings differ?", *_settings(named)),
        _over("drift", "How far are sampler and trainer apart?", named, _drift, "log", "|log-ratio| per token"),
        _over(
            "ess", "How many answers does a batch count as?", named, verdict.effective, "share", "effective sample size"
        ),
    )


def tasks(runs: Sequence[RunData]) -> list[str]:
    """The task of each run with all its settings. Equal text means that accuracies can be compared."""
    return [json.dumps([run.task, run.setting("task")], sort_keys=True) for run in runs]


def ended(named: Named) -> str:
    """Name the best run if it is better by more than noise. Runs of different tasks are not compared."""
    runs = [run for _, run in named]
    if len(set(tasks(runs))) > 1:
        asked = sorted({run.task for run in runs})
        what = f"different tasks ({listed(asked)})" if len(asked) > 1 else f"different settings of {asked[0]}"
        return (
            f"Not comparable: these runs answer {what}, so their accuracies measure different things. "
            "Compare within a task only."
        )
    measured = [(label, accuracy) for label, run in named if (accuracy := course.end(run)) is not None]
    if len(measured) < 2:
        return "Not known: fewer than two of the runs measured an accuracy."
    ranked = sorted(measured, key=lambda entry: -entry[1].share)
    (first, best), (_, worst) = ranked[0], ranked[-1]
    if course.compared(worst, best) != "better":
        limit = points(course.noise(best, worst))
        span = f"{percent(worst.share)} and {percent(best.share)}"
        return f"All runs end between {span}, within the noise of ± {limit}: no run is ahead."
    equal = [label for label, accuracy in ranked[1:] if course.compared(accuracy, best) != "better"]
    also = f"{listed(equal)} {'is' if len(equal) == 1 else 'are'}" if equal else "No other is"
    return (
        f"{first} is ahead with {percent(best.share)}. {also} within noise of it. These are single runs. For a claim "
        "about a setting, run several seeds (trimtab study)."
    )


def differing(named: Named) -> dict[str, list[str]]:
    """Settings that are not the same in all runs, flattened to their keys."""
    flat = [_flat({key: value for key, value in run.config.items() if key not in UNTOLD}) for _, run in named]
    keys = dict.fromkeys(key for one in flat for key in one)
    return {
        key: [one.get(key, "–") for one in flat]
        for key in keys
        if len({one[key] for one in flat if key in one}) > 1 or _is_part_of_some(key, flat)
    }


def _is_part_of_some(key: str, flat: Sequence[dict[str, str]]) -> bool:
    """A formula that some recipes lack is a difference. A setting that an older run did not write is just unknown."""
    return key.startswith("recipe: ") and any(key not in one for one in flat)


def _settings(named: Named) -> tuple[str, str]:
    rows = differing(named)
    missing = [label for label, run in named if not run.config]
    without = f" {listed(missing)} {'has' if len(missing) == 1 else 'have'} no config.json." if missing else ""
    if not rows:
        return f"All settings are equal. Only chance and things outside the settings differ.{without}", ""
    only_seed = " Only the seed differs, so the spread is chance." if list(rows) == ["seed"] else ""
    top = ("setting", *(label for label, _ in named))
    cells = [
        [f"<th><code>{escape(key)}</code></th>", *(cut(value, MOST_SETTING) for value in values)]
        for key, values in rows.items()
    ]
    return (
        f"{counted(len(rows), 'setting')} {'differs' if len(rows) == 1 else 'differ'}.{only_seed}{without}",
        table(top, cells, kind="numbers"),
    )


def _numbers(named: Named) -> str:
    rows: list[list[str]] = []
    for role, (label, run) in zip(_roles(len(named)), named, strict=True):
        first, last, ess, drift = course.start(run), course.end(run), verdict.effective(run), _drift(run)
        rows.append([
            f'<th><i class="swatch" style="background: var(--{role})"></i>{escape(label)}</th>',
            escape(run.task), escape(str(run.recipe.get("name") or "–")),
            percent(first.share) if first else "–",
            f"{percent(last.share)} {'' if last.split == 'test' else '(validation)'}" if last else "–",
            f"{run.num_steps:,}", duration(work.elapsed(run)), small(drift.mean) if drift else "–",
            percent(ess.mean) if ess else "–", escape(verdict.answer(run)[0]),
        ])  # fmt: skip
    top = ("run", "task", "recipe", "start", "end", "steps", "time", "drift", "sample size", "signal")
    return table(top, rows, kind="numbers")


def _curves(named: Named) -> list[str]:
    """One figure per task, because curves of different tasks in one figure would invite a comparison."""
    kinds = tasks([run for _, run in named])
    roles = _roles(len(named))
    blocks: list[str] = []
    for place, kind in enumerate(dict.fromkeys(kinds)):
        here = [(role, label, run) for role, (label, run), own in zip(roles, named, kinds, strict=True) if own == kind]
        lines = [
            Line(label, role, course.validation(run), dots=True, dashed=i >= len(PALETTE))
            for i, (role, label, run) in enumerate(here)
        ]
        drawing = curves(f"accuracy{place}", lines, scale="share", height=3.2)
        title = "How did they learn?" if len(set(kinds)) == 1 else f"How did they learn {here[0][2].task}?"
        asked = sorted({run.asked for _, _, run in here})
        prompts = listed([str(count) for count in asked])
        said = (
            f"Accuracy of greedy answers to {prompts} held-out validation prompts, over steps."
            if drawing
            else "Not measured."
        )
        blocks.append(question(f"accuracy{place}", title, said, drawing))
    return blocks


def _over(
    anchor: str, title: str, named: Named, of: Callable[[RunData], Series], scale: Literal["log", "share"], what: str
) -> str:
    found = [(role, label, of(run)) for role, (label, run) in zip(_roles(len(named)), named, strict=True)]
    known = [(label, series) for _, label, series in found if series]
    if not known:
        return question(anchor, title, f"Not measured: no run has a {what}.")
    form = percent if scale == "share" else small
    told = listed([f"{label} {form(series.mean)}" for label, series in known])
    missing = [label for _, label, series in found if not series]
    without = f" Not measured in {listed(missing)}." if missing else ""
    if scale == "log" and all(max(series.values) < ROUNDING for _, series in known):
        return question(anchor, title, f"Not at all: mean {what} {told}, which is rounding.{without}")
    lines = [Line(label, role, series) for role, label, series in found]
    return question(anchor, title, f"Mean {what}: {told}.{without}", curves(anchor, lines, scale=scale))


def _drift(run: RunData) -> Series:
    return run.series("logratio_engine/token_abs_mean", "logratio_total/token_abs_mean", "drift/total_abs_mean")


def _lead(runs: Sequence[RunData]) -> str:
    recipes = sorted({str(run.recipe.get("name")) for run in runs})
    asked = sorted({run.task for run in runs})
    return f"{listed(recipes)} on {listed(asked)}."


def _roles(count: int) -> list[str]:
    return [PALETTE[i % len(PALETTE)] for i in range(count)]


def _labels(folders: Sequence[Path]) -> list[str]:
    """Folder names. Equal names get parent folders in front until all differ."""
    parts = [folder.resolve().parts for folder in folders]
    depth = 1
    while depth < 6 and len({part[-depth:] for part in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def _flat(settings: Json, before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in settings.items():
        name = f"{before}{key}"
        if isinstance(value, dict):
            flat |= _flat(cast(Json, value), f"{name}.")
        elif name == "recipe.parts" and isinstance(value, list):
            parts = cast("list[Json]", value)
            flat |= {f"recipe: {p.get('does')} {p.get('formula')}": _told(p) for p in parts}
        elif not name.startswith(("recipe.summary", "recipe.source", "recipe.needs")):
            flat[name] = json.dumps(value, ensure_ascii=False).strip('"')
    return flat


def _told(part: Json) -> str:
    settings = cast(Json, part.get("settings") or {})
    return (
        ", ".join([*(f"{name} = {value}" for name, value in settings.items()), str(part.get("how") or "")]).strip(", ")
        or "yes"
    )

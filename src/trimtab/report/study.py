"""The only place that lays out a study: its table as text, and one page with its curves and the number of every seed.

It reads `study.json` and the run folders next to it, so a page can be made again without the trainer.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

from trimtab.errors import ConfigError
from trimtab.report.data import Json, Series, number, objects, read_run
from trimtab.report.figure import PALETTE, ROLES, drawn, key
from trimtab.report.page import document, write_page
from trimtab.report.section import question, table
from trimtab.report.words import counted, duration

Courses = dict[str, list[Series]]
"""Validation accuracy over steps: one series per seed, by arm."""


def write_study(folder: Path) -> Path:
    """Write `study.md` and `study.html` from the other files of a study folder."""
    study = _read(folder / "study.json")
    _ = write_page(folder / "study.md", markdown(study))
    return write_page(folder / "study.html", page(study, _courses(folder, study)))


def markdown(study: Json) -> str:
    """The result for a README or an issue."""
    protocol = cast(Json, study["protocol"])
    lines = [f"# {study['title']}", "", str(study["question"]), "", f"Chosen before: {study['chosen']}", ""]
    lines += [f"Protocol `{protocol['file']}`, sha256 `{protocol['sha256']}`. {_holes(study)}", ""]
    lines += [f"| arm | {study['metric']}, mean ± 95 % | seeds | what it is |", "|---|---|---|---|"]
    lines += [f"| {arm['arm']} | {interval(arm)} | {seeds(arm)} | {arm['means'] or '–'} |" for arm in _arms(study)]
    expected = objects(study["expectations"])
    if expected:
        lines += ["", "| expected before | mean | met |", "|---|---|---|"]
        lines += [
            f"| {one['says']} | {_number(one['mean'])} | {verdict(one['met'])}{_beyond(one, study)} |"
            for one in expected
        ]
    notes = [f"- {cell['arm']}, seed {cell['seed']}: {told}" for cell, told in _notes(study)]
    return "\n".join([*lines, *(["", *notes] if notes else []), ""])


def page(study: Json, courses: Courses) -> str:
    """The whole page as text."""
    protocol = cast(Json, study["protocol"])
    hashed = f"{protocol['file']} · sha256 {protocol['sha256']}"
    return document(
        str(study["title"]),
        f'<header><p class="over">trimtab study · {escape(hashed)}</p><h1>{escape(str(study["title"]))}</h1>'
        f'<p class="lead">{escape(str(study["question"]))}</p></header>\n',
        question("result", "What came out?", _said(study), _dots(study), _table(study)),
        *_expected(study),
        question("courses", "How did the arms learn?", _courses_said(courses), _curves(study, courses)),
        question("protocol", "What was fixed before the first run?", _fixed(study)),
    )


def interval(arm: Json) -> str:
    """Mean and interval as text, with the number of seeds behind them if some are missing."""
    cells, mean, half = objects(arm["cells"]), number(arm["mean"]), number(arm["half_width"])
    if mean is None:
        return "no number"
    text = f"{mean:.3f}" + (f" ± {half:.3f}" if half is not None else "")
    return text if arm["num_values"] == len(cells) else f"{text} ({arm['num_values']} of {len(cells)} seeds)"


def seeds(arm: Json) -> str:
    """The number of every seed, or its status if it did not finish normally."""
    return ", ".join(
        _number(cell["value"]) + ("" if cell["status"] == "finished" else f" ({cell['status']})")
        for cell in objects(arm["cells"])
    )


def verdict(met: object) -> str:
    """Whether an expectation was met; not known while a seed is missing."""
    return "not known, a seed is missing" if met is None else "yes" if met else "**no**"


def _said(study: Json) -> str:
    arms = [(number(arm["mean"]), str(arm["arm"])) for arm in _arms(study)]
    ranked = sorted(((mean, name) for mean, name in arms if mean is not None), reverse=True)
    if not ranked:
        return "No run has a number yet."
    (best, first), (worst, last) = ranked[0], ranked[-1]
    span = f"{first} is highest with a mean of {best:.3f}, {last} lowest with {worst:.3f}."
    size = len(cast("list[int]", study["seeds"]))
    return (
        f"{span} {_holes(study)}\nA dot is one seed. The bar is the 95 % interval of the mean by Student's t "
        f"({counted(size, 'seed')}). It covers only the chance in training, on these prompts and settings."
    )


def _holes(study: Json) -> str:
    cells = [cell for arm in _arms(study) for cell in objects(arm["cells"])]
    bad = [cell for cell in cells if cell["status"] != "finished"]
    if not bad:
        return f"All {counted(len(cells), 'run')} finished."
    kinds = sorted({str(cell["status"]) for cell in bad})
    told = ", ".join(f"{sum(cell['status'] == kind for cell in bad)} {kind}" for kind in kinds)
    return f"Of {counted(len(cells), 'run')}: {told}."


def _table(study: Json) -> str:
    rows = [
        [
            f'<th><i class="swatch" style="background: var(--{_role(i)})"></i>{escape(str(arm["arm"]))}</th>',
            escape(interval(arm)),
            escape(seeds(arm)),
            f"{escape(str(arm['means']))}<small>{escape(str(arm['recipe']))}</small>",
        ]
        for i, arm in enumerate(_arms(study))
    ]
    told = [f"{cell['arm']}, seed {cell['seed']}: {text}" for cell, text in _notes(study)]
    notes = "".join(f"<li>{escape(text)}</li>" for text in told)
    top = ("arm", "mean ± 95 %", f"seeds {', '.join(map(str, cast('list[int]', study['seeds'])))}", "what it is")
    return table(top, rows) + (f"<ul>{notes}</ul>" if notes else "")


def _expected(study: Json) -> list[str]:
    expected = objects(study["expectations"])
    if not expected:
        return []
    met = [one["met"] for one in expected]
    yes, no = sum(one is True for one in met), sum(one is False for one in met)
    said = f"{yes} of {len(met)} expectations were met, {no} were not."
    words = {True: '<span class="right">yes</span>', False: '<span class="wrong">no</span>', None: "not known"}
    rows = [
        [escape(str(one["says"])), _number(one["mean"]), words[cast("bool | None", one["met"])]] for one in expected
    ]
    return [question("expected", "Were the expectations met?", said, table(("expected", "mean", "met"), rows))]


def _beyond(one: Json, study: Json) -> str:
    """A mean on the right side of its bound proves nothing while the interval reaches past the bound."""
    half = next(number(arm["half_width"]) for arm in _arms(study) if arm["arm"] == one["arm"])
    mean, low, high = number(one["mean"]), number(one["at_least"]), number(one["at_most"])
    if one["met"] is not True or mean is None or half is None:
        return ""
    is_past = (low is not None and mean - half < low) or (high is not None and mean + half > high)
    return " by the mean; the interval reaches past it" if is_past else ", the whole interval"


def _fixed(study: Json) -> str:
    spent = duration(number(study.get("seconds")) or 0.0)
    return (
        f"Chosen before: {study['chosen']}\nMetric: {study['metric']}. Every arm ran with the same seeds, and all are "
        f"shown. The last call of the study took {spent}; run.toml in an arm's folder repeats its runs."
    )


def _dots(study: Json) -> str:
    """One dot per seed, a bar for the interval, ticks for expectations."""
    arms = _arms(study)
    if all(number(arm["mean"]) is None for arm in arms):
        return ""

    def paint(axis: Any) -> None:
        from matplotlib.ticker import MaxNLocator

        for i, arm in enumerate(arms):
            _arm_dots(axis, len(arms) - 1 - i, arm, ROLES[_role(i)])
        for one in objects(study["expectations"]):
            place = len(arms) - 1 - [arm["arm"] for arm in arms].index(one["arm"])
            for bound in (number(one["at_least"]), number(one["at_most"])):
                if bound is not None:
                    axis.plot([bound, bound], [place - 0.38, place + 0.38], color=ROLES["ink"], linestyle=(0, (2, 2)))
        axis.set_yticks(range(len(arms)), [str(arm["arm"]) for arm in reversed(arms)])
        axis.set_ylim(-0.6, len(arms) - 0.4)
        axis.xaxis.set_major_locator(MaxNLocator(6))
        axis.set_xlabel(str(study["metric"]).replace("_", " "))
        axis.grid(visible=True, axis="x", linewidth=0.7)
        axis.grid(visible=False, axis="y")

    drawing = drawn("finals", paint, height=0.8 + 0.38 * len(arms))
    return drawing + (key([("ink", "expected (dashed)")]) if study["expectations"] else "")


def _arm_dots(axis: Any, place: int, arm: Json, colour: str) -> None:
    mean, half = number(arm["mean"]), number(arm["half_width"])
    values = [value for cell in objects(arm["cells"]) if (value := number(cell["value"])) is not None]
    if mean is not None and half is not None:
        axis.plot([mean - half, mean + half], [place, place], color=colour, linewidth=5, alpha=0.3)
    if mean is not None:
        axis.plot([mean], [place], color=colour, marker="|", markersize=15, markeredgewidth=2)
    axis.plot(values, [place] * len(values), color=colour, marker="o", markersize=5, linestyle="none")


def _curves(study: Json, courses: Courses) -> str:
    """Curves of seeds in faint colour, their mean on top."""
    names = [str(arm["arm"]) for arm in _arms(study)]
    if not any(courses.values()):
        return ""

    def paint(axis: Any) -> None:
        for i, name in enumerate(names):
            colour = ROLES[_role(i)]
            for series in courses.get(name, []):
                axis.plot(series.steps, series.values, color=colour, linewidth=0.8, alpha=0.35)
            mean = _mean(courses.get(name, []))
            style = (0, (4, 2)) if i >= len(PALETTE) else "-"
            axis.plot(mean.steps, mean.values, color=colour, linewidth=2.2, linestyle=style)
        axis.set_ylim(-0.03, 1.06)
        axis.set_yticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "25 %", "50 %", "75 %", "100 %"])
        axis.set_xlabel("step")

    entries = [(_role(i), f"{name}{' (dashed)' if i >= len(PALETTE) else ''}") for i, name in enumerate(names)]
    return drawn("courses", paint, height=3.6) + key(entries)


def _mean(all_series: Sequence[Series]) -> Series:
    """Mean over the seeds. A step that one of them lacks is left out, so that the mean never jumps."""
    shared = sorted(set.intersection(*[set(series.steps) for series in all_series])) if all_series else []
    values = [dict(zip(series.steps, series.values, strict=True)) for series in all_series]
    return Series(tuple(shared), tuple(sum(one[step] for one in values) / len(values) for step in shared))


def _courses_said(courses: Courses) -> str:
    if not any(courses.values()):
        return "Not measured."
    return "Greedy accuracy on validation prompts over steps. Faint lines are seeds, and the strong line is their mean."


def _courses(folder: Path, study: Json) -> Courses:
    found: Courses = {}
    for arm in _arms(study):
        places = [folder / str(arm["arm"]) / f"seed{cell['seed']}" for cell in objects(arm["cells"])]
        runs = [read_run(place, with_twin=False) for place in places if (place / "metrics.jsonl").is_file()]
        found[str(arm["arm"])] = [series for run in runs if (series := run.series("eval/accuracy"))]
    return found


def _notes(study: Json) -> list[tuple[Json, str]]:
    """Every run that did not finish normally, with its last message."""
    cells = [cell for arm in _arms(study) for cell in objects(arm["cells"])]
    told = [(cell, ": ".join(part for part in (str(cell["status"]), str(cell["note"])) if part)) for cell in cells]
    return [(cell, text) for cell, text in told if cell["status"] != "finished"]


def _arms(study: Json) -> list[Json]:
    return objects(study["arms"])


def _role(place: int) -> str:
    return PALETTE[place % len(PALETTE)]


def _number(value: object) -> str:
    found = number(value)
    return "–" if found is None else f"{found:.3f}"


def _read(path: Path) -> Json:
    try:
        return cast(Json, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"report: {path} cannot be read ({error}), so there is no study to show. Give the folder of a study."
        ) from error

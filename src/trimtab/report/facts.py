"""The only place that lays out the facts of a run: recipe with sources, settings, machine, warnings, unread files."""

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import cast

from trimtab.report.data import Json, RunData, objects
from trimtab.report.section import cut, question, table
from trimtab.report.symptom import folded, link
from trimtab.report.symptoms import SYMPTOMS

MOST_JSON = 40_000
"""Characters of one settings file on the page."""
WARNING_ANCHORS = (
    (r"corrects for none of it", "no-correction"),
    (r"switched on(, does nothing| and did)", "nothing-rejected"),
    (r"rejects everything|nothing was kept", "everything-rejected"),
    (r"metric_truth|outside of its range|in place", "metric-out-of-range"),
    (r"not finite|non-?finite", "non-finite"),
    (r"reward.*(timeout|time limit|raised|error)|(timeout|time limit).*reward", "reward-errors"),
    (r"version|checksum|stale", "stale-weights"),
    (r"top[_-]p|top[_-]k|support", "support-refused"),
    (r"resum|checkpoint", "resume-refused"),
)
"""Which symptom a warning of the run belongs to; the first match counts."""


def anchor_of(warning: str) -> str | None:
    """The anchor of the symptom that a warning's text points to, if any."""
    return next((anchor for form, anchor in WARNING_ANCHORS if re.search(form, warning, re.IGNORECASE)), None)


def told(run: RunData) -> list[str]:
    """The run's own warnings."""
    found = run.summary.get("warnings")
    return [str(text) for text in cast("list[object]", found)] if isinstance(found, list) else []


def warnings(run: RunData) -> str:
    """Each warning of the run with a link to its explanation, then the files that could not be read."""
    items: list[str] = []
    for text in told(run):
        anchor = anchor_of(text)
        items.append(f"<li>{cut(text)}{' ' + link(SYMPTOMS[anchor]) if anchor else ''}</li>")
    for note in run.notes:
        more = f" {link(SYMPTOMS['interrupted'])}" if "summary.json is missing" in note else ""
        items.append(f"<li>{escape(note)}{more}</li>")
    return (
        f'<section id="warnings" class="warnings"><h2>Warnings</h2><ul>{"".join(items)}</ul></section>\n'
        if items
        else ""
    )


def explanations(anchors: Sequence[str], folder: Path | None) -> str:
    """The explanations that this page links to, folded."""
    listed = "".join(folded(SYMPTOMS[anchor], folder) for anchor in dict.fromkeys(anchors) if anchor)
    if not listed:
        return ""
    return f'<section id="help"><h2>What to do</h2>{listed}</section>\n'


def recipe(run: RunData) -> str:
    """The formulas in the order in which they run, with settings and sources."""
    described = run.recipe
    if not described.get("name"):
        return question("recipe", "What is the recipe?", "Not known: config.json does not describe it.")
    rows = [
        [
            f"<th>{escape(str(part.get('does', '')))}</th>",
            f"<code>{escape(str(part.get('formula', '')))}</code>{_settings(part)}"
            f"<small>{escape(str(part.get('means', '')))}</small>",
            f"<small>{escape(str(part.get('source', '')))}</small>",
        ]
        for part in objects(described.get("parts"))
    ]
    said = str(described.get("summary") or "") + (f" Source: {described['source']}." if described.get("source") else "")
    return question("recipe", f"What is {described['name']}?", said, table((), rows))


def _settings(part: Json) -> str:
    settings = part.get("settings")
    pairs = [f"{name} = {value}" for name, value in cast(Json, settings).items()] if isinstance(settings, dict) else []
    if part.get("how"):
        pairs.append(str(part["how"]))
    return f" · {escape(', '.join(pairs))}" if pairs else ""


def facts(run: RunData) -> str:
    """Everything else, folded away: the numbers, the settings, the machine."""
    hardware, pair = (cast(Json, run.manifest.get(name) or {}) for name in ("hardware", "dtype_pair"))
    machine = f"{hardware.get('processor', 'machine unknown')}"
    if hardware.get("cores"):
        machine += f", {hardware.get('threads', '?')} of {hardware['cores']} cores"
    if pair:
        machine += (
            f"; trainer {pair.get('trainer', '?')}, sampler {run.summary.get('format') or pair.get('engine', '?')}"
        )
    held = (("summary.json", run.summary), ("config.json", run.config), ("manifest.json", run.manifest))
    listed = "".join(_held(name, content) for name, content in held)
    resumed = run.result("resumed")
    again = f" It was resumed {'once' if resumed == 1 else f'{resumed:.0f} times'}." if resumed else ""
    return question("facts", "How can it be repeated?", f"{machine}.{again}", listed)


def _held(name: str, content: Json) -> str:
    if not content:
        return f'<p class="note">{name} is missing.</p>'
    text = cut(json.dumps(content, indent=2, ensure_ascii=False), MOST_JSON)
    return f"<details><summary>{name}</summary><pre>{text}</pre></details>"

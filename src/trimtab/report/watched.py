"""The only place that lays out what a watch found: its findings, and how much of the run it saw."""

from html import escape
from typing import cast

from trimtab.report.data import Json, RunData, number
from trimtab.report.section import cut, question, table
from trimtab.report.words import percent


def is_watched(run: RunData) -> bool:
    """Whether the folder comes from a watch inside another trainer."""
    return isinstance(run.config.get("watch"), dict) or bool(run.findings)


def findings(run: RunData) -> str:
    """Each finding with its step. Nothing on the page of a run that nobody watched."""
    if not is_watched(run):
        return ""
    rows = [
        [
            f"<th><code>{escape(str(one.get('name', '')))}</code></th>",
            f"step {int(number(one.get('step')) or 0)}",
            cut(str(one.get("text", ""))),
        ]
        for one in run.findings
    ]
    told = f"{len(rows)} finding{'s' if len(rows) != 1 else ''}. " if rows else "Nothing was found. "
    return question("findings", "What did the watch find?", told + _seen(run), table((), rows))


def _seen(run: RunData) -> str:
    """How much was watched, and at what cost."""
    held = run.summary.get("watch")
    if not isinstance(held, dict):
        return "The run has no summary, so it is not known how many of its steps were watched."
    watch = cast(Json, held)
    rate, steps = number(watch.get("rate")) or 0.0, int(number(watch.get("steps_watched_whole")) or 0)
    seconds = number(watch.get("seconds")) or 0.0
    return f"{percent(rate)} of the steps ({steps}) were watched whole, which took {seconds:.1f} seconds in all."

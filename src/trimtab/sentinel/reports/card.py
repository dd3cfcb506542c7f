"""The only place that draws a finding as a card of the page: what a maintainer must know, then the evidence."""

from collections.abc import Mapping, Sequence

from trimtab.sentinel.reports import detail
from trimtab.sentinel.reports.causes import Finding
from trimtab.sentinel.reports.data import Report, Teaching
from trimtab.sentinel.reports.matrix import shown
from trimtab.sentinel.reports.outcome import subject_of
from trimtab.sentinel.reports.replay import binding_lines, callers, chosen, command_of, place_of
from trimtab.sentinel.reports.wording import few, happened, one_line

FULL = 300
"""Largest number of verdicts drawn with their evidence on a page. The JSON report holds all of them."""


def cards(
    report: Report, found: Sequence[Finding], invariants: Teaching, at: Mapping[int, str], fresh: set[str] | None
) -> str:
    """Bugs as open cards, the worst first; suspects, latent bugs and hygiene as closed ones."""
    room = FULL
    blocks: list[str] = []
    for finding in found:
        blocks.append(_card(report, finding, invariants, at, fresh, room))
        room -= len(finding.verdicts)
    return "".join(blocks)


def _card(
    report: Report, finding: Finding, invariants: Teaching, at: Mapping[int, str], fresh: set[str] | None, room: int
) -> str:
    since = "" if fresh is None else " · new" if finding.is_new(fresh) else " · known"
    severity = f" · {finding.severity}" if finding.status == "bug" else ""
    badge = f'<span class="badge {finding.status}-cell">{finding.status}{severity}{since}</span>'
    place = place_of(report, finding)
    where = f"<code>{shown(finding.name)}</code>{f' <small>{shown(place)}</small>' if place else ''}"
    only_if = f'<p class="note">only if {shown(finding.needs)}</p>' if finding.status == "latent" else ""
    head = f"{badge}{where}<h3>{shown(finding.headline)}</h3>{only_if}"
    opened = " open" if finding.status == "bug" and room > 0 else ""
    body = _body(report, finding, invariants, room) + _others(report, finding, invariants, at, room)
    return (
        f'<details class="card {finding.status}"{opened}><summary>{head}</summary>'
        f'<div id="{at[id(finding.lead)]}">{body}</div></details>\n'
    )


def _body(report: Report, finding: Finding, invariants: Teaching, room: int) -> str:
    lead = finding.lead
    labels = finding.subjects if finding.subjects != [finding.name] else []
    told = happened(lead) if happened(lead) != one_line(finding.headline) else ""
    pairs = [
        ("only if" if finding.status == "latent" else "needs", finding.needs),
        ("called by", callers(report, finding)),
        ("breaks", ", ".join(finding.broken)),
        ("repair", finding.repair),
        ("with", ", ".join(few(labels, 6))),
        ("what", told),
    ]
    replay = f'<pre class="command">{shown(command_of(report, finding))}</pre>'
    if room <= 0:
        return detail.facts(pairs) + replay
    title = "The smallest case, why it matters, and how to repair it"
    more = f"<details><summary>{title}</summary>{detail.rest(report, lead, invariants)}</details>"
    return (
        detail.facts(pairs) + detail.triggered(lead) + detail.numbers(lead) + replay + more + _binding(report, finding)
    )


def _binding(report: Report, finding: Finding) -> str:
    """For a binding that nobody wrote: what was chosen, and the lines that make it one's own."""
    subject = subject_of(report, finding.lead)
    if not chosen(subject):
        return ""
    lines = "\n".join(shown(line) for line in binding_lines(report, subject))
    said = "If this is wrong, put these lines into a file, correct them, and check that file:"
    copied = f'<p class="note">{said}</p><pre>{lines}</pre>' if lines else ""
    # A suspect stands and falls with its binding.
    opened = " open" if finding.status == "suspect" else ""
    title = "How it was called: nobody bound it, so this is a guess"
    return f"<details{opened}><summary>{title}</summary><p>{shown(chosen(subject))}</p>{copied}</details>"


def _others(report: Report, finding: Finding, invariants: Teaching, at: Mapping[int, str], room: int) -> str:
    """The other verdicts with this cause, folded."""
    rest = finding.verdicts[1:]
    if not rest:
        return ""
    folds = [
        detail.fold(report, verdict, invariants, at[id(verdict)], full=i + 1 < room) for i, verdict in enumerate(rest)
    ]
    return f'<p class="note">The same cause breaks these as well:</p>{"".join(folds)}'

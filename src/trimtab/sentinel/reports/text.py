"""The only place that lays out a report for a terminal: what ran first, the worst bug last, above the summary line."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.sentinel.reports.causes import Finding, findings
from trimtab.sentinel.reports.compare import Comparison
from trimtab.sentinel.reports.data import Report, Status, Teaching
from trimtab.sentinel.reports.evidence import LABEL, WIDTH, evidence, said
from trimtab.sentinel.reports.outcome import grouped, subject_of, with_status
from trimtab.sentinel.reports.quiet import counts, listed_quietly
from trimtab.sentinel.reports.replay import binding_lines, callers, chosen, command_of, place_of
from trimtab.sentinel.reports.summary import found_line, meaning, ran_line
from trimtab.sentinel.reports.wording import changed, few, happened, one_line, plural

_COLOURS = {"bug": "\033[1;31m", "suspect": "\033[1;33m", "latent": "\033[1;33m", "hygiene": "\033[1;33m"}


@dataclass(frozen=True)
class Setting:
    """What every part of the text needs to know."""

    report: Report
    invariants: Teaching
    fresh: set[str] | None
    colour: bool
    first: dict[str, Finding]
    """For each function, the finding that is told first, and with it how the function was bound."""


def render(
    report: Report,
    invariants: Teaching,
    comparison: Comparison | None = None,
    *,
    colour: bool = False,
    verbose: bool = False,
) -> str:
    """The whole report as lines of text. `verbose` lists what is else only counted; `colour` is for a terminal."""
    fresh = {verdict["id"] for verdict in comparison.new} if comparison else None
    worst_last = findings(report)[::-1]
    # Suspects are told before bugs, and the mildest of each before the worst.
    order = sorted((f for f in worst_last if f.status in ("bug", "suspect")), key=lambda f: f.status == "bug")
    first = {finding.function: finding for finding in reversed(order)}
    setting = Setting(report, invariants, fresh, colour, first)
    meant = meaning(report)
    blocks = [[ran_line(report), *counts(report, verbose=verbose), *([meant] if meant else [])]]
    blocks += [listed(title, lines) for title, lines in listed_quietly(report) if verbose]
    blocks += [_unbound(report), _failed(report), _compared(comparison)]
    for status in ("hygiene", "latent", "suspect"):
        blocks += _short(setting, [one for one in worst_last if one.status == status], status)
    blocks += [_bug(setting, one) for one in worst_last if one.status == "bug"]
    last = found_line(report) + (f"; {comparison.line()}" if comparison else "")
    return "\n\n".join("\n".join(block) for block in [*blocks, [last]] if block) + "\n"


def _bug(setting: Setting, finding: Finding) -> list[str]:
    severity = f" {finding.severity}" if finding.severity != "none" else ""
    lead = finding.lead
    lines = said("function", f"{_labels(finding)}{_at(setting, finding)}")
    lines += said("breaks", ", ".join(finding.broken))
    lines += said("needs", finding.needs)
    lines += said("callers", callers(setting.report, finding))
    lines += said("what", happened(lead)) if happened(lead) != one_line(finding.headline) else []
    lines += evidence(lead)
    lines += _guessed(setting, finding)
    lines += said("repair", finding.repair or setting.invariants.get(lead["invariant"], {}).get("repair", ""))
    lines += said("more", f"trimtab explain {lead['invariant']} · finding {lead['id']}")
    lines += [_replay(setting, finding)]
    head = f"{_painted('bug', setting.colour)}{severity}{_since(setting, finding)}  {_headline(finding)}"
    return [head, *(f"  {line}" for line in lines)]


def _short(setting: Setting, found: Sequence[Finding], status: Status) -> list[list[str]]:
    """A few lines per finding. Latent findings with one condition are told together."""
    if not found:
        return []
    together: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        key = (finding.cause, finding.needs) if status == "latent" else (finding.id, "")
        together.setdefault(key, []).append(finding)
    lines = [f"{_painted(status, setting.colour)} ({len(found)})"]
    for group in together.values():
        first, *rest = _alone(setting, group[0], status) if len(group) == 1 else _together(setting, group[::-1])
        lines += [f"  {first}", *(f"    {line}" for line in rest)]
    return [lines]


def _alone(setting: Setting, finding: Finding, status: Status) -> list[str]:
    violation = finding.lead["violation"]
    lines = [f"{_headline(finding)}{_since(setting, finding)}"]
    lines += said("only if", finding.needs) if status == "latent" else []
    lines += said("callers", callers(setting.report, finding)) if status in ("latent", "hygiene") else []
    lines += said("breaks", f"{', '.join(finding.broken)}{_at(setting, finding)}")
    moved = "; ".join(changed(violation)) if violation else ""
    lines += said("changed", moved + (f" ({KINDS})" if "tokens of sequence" in moved else ""))
    lines += _guessed(setting, finding) if status == "suspect" else []
    return [*lines, _replay(setting, finding)]


KINDS = "p prompt, a trained, o not trained"
"""What the letters of a sequence mean."""


def _together(setting: Setting, group: Sequence[Finding]) -> list[str]:
    names = few([f"{one_line(one.name)}{_since(setting, one)}" for one in group], 20)
    broken = dict.fromkeys(name for one in group for name in one.invariants)
    lines = [f"{plural(len(group), 'finding')}, only if {one_line(group[0].needs)}"]
    lines += said("callers", callers(setting.report, *group))
    return [*lines, *said("in", ", ".join(names)), *said("breaks", ", ".join(broken)), _replay(setting, *group)]


def _replay(setting: Setting, *found: Finding) -> str:
    """A command is not wrapped: it is there to be copied."""
    return f"{'replay':<{LABEL}}{command_of(setting.report, *found)}"


def _guessed(setting: Setting, finding: Finding) -> list[str]:
    """For a binding that nobody wrote: what was chosen, and the lines that make it one's own."""
    subject = subject_of(setting.report, finding.lead)
    lines = said("binding", chosen(subject))
    if not lines or setting.first.get(finding.function) is not finding:
        return []
    lines += said("", "if this is wrong, put these lines into a file, correct them, and check that file:")
    return [*lines, *(f"{'':<{LABEL}}    {line}" for line in binding_lines(setting.report, subject))]


def _headline(finding: Finding) -> str:
    return f"{one_line(finding.name)}: {one_line(finding.headline)}"


def _painted(status: Status, colour: bool) -> str:
    return f"{_COLOURS[status]}{status.upper()}\033[0m" if colour else status.upper()


def _since(setting: Setting, finding: Finding) -> str:
    return "" if setting.fresh is None else " (new)" if finding.is_new(setting.fresh) else " (known)"


def _at(setting: Setting, finding: Finding) -> str:
    place = place_of(setting.report, finding)
    return f" at {place}" if place else ""


def _labels(finding: Finding) -> str:
    return one_line(", ".join(few(finding.subjects, 4)))


def listed(title: str, lines: Sequence[str]) -> list[str]:
    """A title above indented lines; empty when there are no lines."""
    wrapped = [part for line in lines for part in _wrapped(line)]
    return [title, *wrapped] if lines else []


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(one_line(line), WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)


def _failed(report: Report) -> list[str]:
    failed = with_status(report, "could not run")
    lines = [
        f"{len(g.verdicts)} × {g.reason}: {', '.join(few(g.invariants, 4))} on {', '.join(few(g.subjects, 4))}"
        for g in grouped(failed)
    ]
    return listed(f"COULD NOT RUN ({len(failed)})", lines)


def _unbound(report: Report) -> list[str]:
    unbound = report["could_not_bind"]
    lines = [f"{one['subject']} · looked for {one['looked_for']}: {one['reason']}" for one in unbound]
    return listed(f"COULD NOT BIND ({len(unbound)})", lines)


def _compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return []
    named = [("new", comparison.new), ("fixed", comparison.fixed), ("still there", comparison.still)]
    lines = [f"{word}: {v['subject']} · {v['invariant']} · {v['id']}" for word, found in named for v in found]
    lines += [
        f"not checked any more: {one.verdict['subject']} · {one.verdict['invariant']} ({one.reason})"
        for one in comparison.gone_unchecked
    ]
    lines += [f"note: {comparison.remark}"] if comparison.remark else []
    return listed("AGAINST THE BASELINE", lines or [f"{plural(0, 'finding')} in either report"])

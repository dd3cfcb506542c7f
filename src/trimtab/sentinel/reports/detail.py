"""The only place that draws the evidence of one verdict for the page: trigger, numbers, the case, the explanation."""

from collections.abc import Sequence
from html import escape

from trimtab.sentinel.reports.data import CaseData, Report, Teaching, VerdictData, ViolationData
from trimtab.sentinel.reports.drawing import Place, differing, drawn, places
from trimtab.sentinel.reports.outcome import boundary_of, subject_of
from trimtab.sentinel.reports.wording import (
    changed,
    effect_words,
    few,
    happened,
    labels,
    loaded,
    one_line,
    plural,
    ran,
    when_drawn,
    words,
)

COLUMNS = 24
"""Number of positions of a result that are drawn side by side."""
KINDS = {"a": "action: chosen by the policy, trained", "p": "prompt", "o": "observation"}


def line(verdict: VerdictData) -> str:
    """A verdict without a counter-example, in one line."""
    told = happened(verdict)
    return (
        f"<b>{verdict['status']}</b> {_code(verdict['subject'])} {_code(verdict['invariant'])}, "
        f"{plural(verdict['exercised'], 'case')}, {verdict['seconds']:.1f} s{': ' + _text(told) if told else ''}"
    )


def fold(report: Report, verdict: VerdictData, invariants: Teaching, anchor: str, *, full: bool = True) -> str:
    """One verdict, folded: what happened, the trigger, observed against expected, the smallest case."""
    status = verdict["status"]
    severity = f" · {verdict['severity']}" if verdict["severity"] != "none" else ""
    badge = f'<span class="badge {status}-cell">{status}{severity}</span>'
    verb = "differs on" if status == "convention" else "breaks"
    head = f"{badge}{_code(verdict['subject'])} {verb} {_code(verdict['invariant'])}"
    what = f'<p class="what">{_text(happened(verdict))}</p>'
    body = what + (evidence(report, verdict, invariants) if full else "")
    # The anchor is inside the fold, because a browser opens a closed fold when it follows a link into it.
    return f'<details class="finding"><summary>{head}</summary><div id="{anchor}">{body}</div></details>\n'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A list of names and values without the empty ones."""
    told = "".join(f"<dt>{_text(name)}</dt><dd>{_text(said)}</dd>" for name, said in pairs if said)
    return f"<dl>{told}</dl>" if told else ""


def evidence(report: Report, verdict: VerdictData, invariants: Teaching) -> str:
    """The trigger, the numbers, the smallest case, the explanation and the code."""
    return triggered(verdict) + numbers(verdict) + rest(report, verdict, invariants)


def rest(report: Report, verdict: VerdictData, invariants: Teaching) -> str:
    """The smallest case, the explanation and the code of a verdict."""
    case = verdict["case"]
    teaching = invariants.get(verdict["invariant"], {})
    boundary = boundary_of(report, subject_of(report, verdict))
    pairs = [(key, teaching.get(key, "")) for key in ("statement", "why", "bug", "repair")]
    if boundary is not None:
        pairs += [("code", f"{boundary['boundary']}, lines that ran: {ran(boundary)}"), ("loaded", loaded(boundary))]
    pairs += [("exercised", f"{plural(verdict['exercised'], 'case')} in {verdict['seconds']:.1f} s")]
    pairs += [("finding", verdict["id"])]
    return (_case(case, when_drawn(verdict)) if case else "") + facts(pairs)


def triggered(verdict: VerdictData) -> str:
    """What was changed before the results were wrong, one line per change."""
    violation = verdict["violation"]
    lines = changed(violation) if violation else []
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f'<dl><dt>changed</dt><dd><ul class="changes">{items}</ul></dd></dl>' if lines else ""


def numbers(verdict: VerdictData) -> str:
    """Observed above expected, position by position where there are positions, and the effect."""
    violation = verdict["violation"]
    if violation is None:
        return ""
    return _against(violation, *labels(verdict)) + facts([("effect", effect_words(violation["effect"]))])


def _against(violation: ViolationData, observed: str, expected: str) -> str:
    lined = places(violation)
    if not lined:
        at = differing(violation)
        pairs = [(observed, words(violation["observed"], at)), (expected, words(violation["expected"], at))]
        return facts([*pairs, ("differs at", ", ".join(few([str(place) for place in at])))])
    chosen = _chosen(lined)
    rest = len(lined) - len(chosen)
    more = f'<p class="note">{rest} more positions are not drawn.</p>' if rest else ""
    top = "".join(f'<th class="at">{place.at}</th>' for place in chosen)
    seen = "".join(f"<td{_apart(place)}>{_text(place.observed)}</td>" for place in chosen)
    owed = "".join(f"<td{_apart(place)}>{_text(place.expected)}</td>" for place in chosen)
    return (
        f'<div class="scroll"><table class="numbers"><tr><th>position</th>{top}</tr>'
        f"<tr><th>{observed}</th>{seen}</tr><tr><th>{expected}</th>{owed}</tr></table></div>{more}"
    )


def _chosen(lined: list[Place]) -> list[Place]:
    """All positions if they fit; else the differing ones are preferred. The order stays."""
    if len(lined) <= COLUMNS:
        return lined
    ranked = sorted(lined, key=lambda place: (not place.differs, place.at))[:COLUMNS]
    return sorted(ranked, key=lambda place: place.at)


def _apart(place: Place) -> str:
    return ' class="apart"' if place.differs else ""


def _case(case: CaseData, when: str) -> str:
    """The smallest case: one row per sequence, tokens as letters, numbers in the order of the letters."""
    drawing = drawn(case)
    names = [*drawing.per_sequence, *drawing.per_token]
    top = "".join(f"<th>{_text(name)}</th>" for name in names)
    rows = "".join(
        f'<tr><th>{i}</th><td class="tokens">{_kinds(kinds)}</td>'
        + "".join(f"<td>{_text(cells[i])}</td>" for cells in drawing.per_sequence.values())
        + "".join(f'<td class="tokens">{_numbers(cells[i], kinds)}</td>' for cells in drawing.per_token.values())
        + "</tr>"
        for i, kinds in enumerate(drawing.kinds)
    )
    same = ", ".join(f"{name} {value}" for name, value in drawing.everywhere.items())
    letters = sorted({kind for kinds in drawing.kinds for kind in kinds if kind in KINDS})
    notes = [f"Everywhere: {same}." if same else "", f"{drawing.padding[:1].upper()}{drawing.padding[1:]}."]
    notes += ["; ".join(f"{letter} {KINDS[letter]}" for letter in letters) + "."]
    said = " ".join(note for note in notes if note != ".")
    when = f", {when}" if when else ""
    return (
        f'<p class="note">Smallest case{when}: {drawing.size}.</p><div class="scroll"><table class="numbers">'
        f'<tr><th>row</th><th>tokens</th>{top}</tr>{rows}</table></div><p class="note">{_text(said)}</p>'
    )


def _kinds(kinds: str) -> str:
    known = "".join(f'<span class="k k-{kind if kind in KINDS else "p"}">{_text(kind)}</span>' for kind in kinds[:40])
    return known + (f" … {len(kinds) - 40} more" if len(kinds) > 40 else "") or "(none)"


def _numbers(cells: list[str], kinds: str) -> str:
    """One number per token. Numbers at untrainable tokens are faint."""
    shown = [
        f'<span class="t{"" if kind == "a" else " t-quiet"}">{_text(cell)}</span>'
        for cell, kind in zip(cells[:40], kinds, strict=False)
    ]
    return "".join(shown) + (f" … {len(cells) - 40} more" if len(cells) > 40 else "")


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _text(text: str) -> str:
    return escape(one_line(text))

"""The only place that knows how a symptom is written: in docs/troubleshooting.md, and folded into a run's page.

The page travels without the repository, so the texts live in the package and the document is made from them:
`python -m trimtab.report > docs/troubleshooting.md`.
"""

import os
import re
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCUMENT = "docs/troubleshooting.md"
INTRODUCTION = """# Troubleshooting, by symptom

Find what you see. Metric names are those of `metrics.jsonl`. Settings are those of `[train]` unless another table is
named. `report.html` links here and holds the paragraphs that apply to its run. [report.md](report.md) explains how to
read it. This file is made by `python -m trimtab.report` from [`symptoms.py`](../src/trimtab/report/symptoms.py).
"""


@dataclass(frozen=True)
class Symptom:
    """What you see, what it means, what to do. `anchor` never changes, because old pages link to it."""

    anchor: str
    title: str
    see: str
    means: str
    do: str


def document(symptoms: dict[str, Symptom]) -> str:
    """The text of docs/troubleshooting.md. Anchors are explicit, so that a new title breaks no link."""
    listed = "\n".join(f"- [{symptom.title}](#{symptom.anchor})" for symptom in symptoms.values())
    entries = "\n".join(_entry(symptom) for symptom in symptoms.values())
    return f"{INTRODUCTION}\n{listed}\n\n{entries}"


def _entry(symptom: Symptom) -> str:
    lines = (f"**You see** {symptom.see}", f"**It means** {symptom.means}", f"**Do** {symptom.do}")
    text = "\n".join(textwrap.fill(line, 150, break_long_words=False, break_on_hyphens=False) for line in lines)
    return f'<a id="{symptom.anchor}"></a>\n\n## {symptom.title}\n\n{text}\n'


def link(symptom: Symptom, text: str = "") -> str:
    """A link to the paragraph inside the page. A browser unfolds it when it follows the link."""
    return f'<a href="#help-{symptom.anchor}">{escape(text or "what to do")}</a>'


def folded(symptom: Symptom, folder: Path | None) -> str:
    """The paragraph in the page, folded, with its place in the document."""
    place = f"{DOCUMENT}#{symptom.anchor}"
    target = from_folder(folder) if folder is not None else None
    shown = f'<a href="{escape(target)}#{symptom.anchor}">{place}</a>' if target else f"<code>{place}</code>"
    return (
        f'<details class="help"><summary>{escape(symptom.title)}</summary><div id="help-{symptom.anchor}">'
        f"<p><b>You see</b> {coded(symptom.see)}</p><p><b>It means</b> {coded(symptom.means)}</p>"
        f'<p><b>Do</b> {coded(symptom.do)}</p><p class="place">{shown}</p></div></details>'
    )


def from_folder(folder: Path) -> str | None:
    """The path of the document from a run folder in the same checkout; None elsewhere, where no link would work."""
    checkout = Path(__file__).resolve().parents[3]
    inside = folder.resolve().is_relative_to(checkout) and (checkout / DOCUMENT).is_file()
    return Path(os.path.relpath(checkout / DOCUMENT, folder.resolve())).as_posix() if inside else None


def coded(text: str) -> str:
    """Plain text with `code` and *emphasis* in it, as HTML. A link of the document becomes its text.

    >>> coded("see *this*: `a < b` and `drift/*`, `x_*`")
    'see <em>this</em>: <code>a &lt; b</code> and <code>drift/*</code>, <code>x_*</code>'
    """
    plain = escape(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text), quote=False)
    return re.sub(r"`([^`]+)`|\*([^*]+)\*", _marked, plain)


def _marked(found: re.Match[str]) -> str:
    code, stressed = found.groups()
    return f"<code>{code}</code>" if code else f"<em>{stressed}</em>"

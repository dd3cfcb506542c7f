"""The only place that knows how a section of a page looks: a question, a sentence, a figure."""

from collections.abc import Sequence
from html import escape

MOST_CHARACTERS = 1200
"""Characters shown of one text of the run: enough to judge an answer, few enough for a page of 2 MB."""


def question(anchor: str, title: str, said: str, *drawings: str) -> str:
    """One question of the page. `said` is plain text, one paragraph per line, and is escaped; drawings are HTML."""
    told = "".join(f"<p>{escape(line)}</p>" for line in said.splitlines())
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{told}{"".join(drawings)}</section>\n'


def table(top: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    """Cells are HTML; a table wider than the page scrolls by itself."""
    head = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in top)}</tr>" if top else ""
    body = "".join(
        f"<tr>{''.join(cell if cell.startswith('<t') else f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table class="{kind}">{head}{body}</table></div>' if rows else ""


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """A text of the run, escaped. A long one is cut, with the number of characters left out."""
    left = len(text) - most
    return (
        escape(text) if left <= 0 else f'{escape(text[:most])}<span class="left-out"> … {left:,} more characters</span>'
    )


def bar(parts: Sequence[tuple[str, float]]) -> str:
    """Shares side by side: (role, share)."""
    cells = "".join(
        f'<i style="flex: {share:.4f}; background: var(--{role})"></i>' for role, share in parts if share > 0
    )
    return f'<div class="bar">{cells}</div>'

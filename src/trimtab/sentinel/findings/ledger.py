"""The ledger of findings, one row each: the only place that reads and writes BUG_FINDINGS.md."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

NAME = "BUG_FINDINGS.md"
TITLE = "# Findings\n\nOne row per finding. Its folder holds the reproduction file, runner, payload, test and report.\n"


@dataclass(frozen=True)
class Row:
    """One finding: `Row("slime-opsm", "2026-01-31", "slime", "624b824a8", "ppo_utils.py:opsm", …)`."""

    id: str
    date: str
    target: str
    commit: str
    boundary: str
    invariant: str
    severity: str
    status: str
    folder: str


COLUMNS = tuple(one.name for one in fields(Row))


def rows(folder: Path) -> list[Row]:
    """The rows in the ledger of a findings folder. Lines in another format are skipped."""
    file = folder / NAME
    if not file.exists():
        return []
    cells = [_cells(line) for line in file.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [Row(*row) for row in cells if len(row) == len(COLUMNS) and row != list(COLUMNS)]


def _cells(line: str) -> list[str]:
    """The cells of one line of the table, with escaped bars restored."""
    marked = line.strip().strip("|").replace("\\|", "\0")
    return [cell.strip().replace("\0", "|") for cell in marked.split("|")]


def enter(folder: Path, row: Row) -> Path:
    """Add the row, or replace the one with the same id. The date of the first finding stays."""
    known = rows(folder)
    before = next((one for one in known if one.id == row.id), None)
    kept = Row(**{**asdict(row), "date": before.date}) if before else row
    listed = [kept if one.id == row.id else one for one in known] if before else [*known, kept]
    file = folder / NAME
    file.write_text(table(listed), "utf-8")
    return file


def table(listed: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(_escaped(asdict(row))) + " |" for row in listed]
    return TITLE + "\n" + "\n".join(lines) + "\n"


def _escaped(row: Mapping[str, str]) -> list[str]:
    return [" ".join(str(value).split()).replace("|", "\\|") or "-" for value in row.values()]


def alike(folder: Path, row: Row) -> list[Row]:
    """Other findings about the same boundary and invariant."""
    return [
        one
        for one in rows(folder)
        if (one.boundary, one.invariant) == (row.boundary, row.invariant) and one.id != row.id
    ]

"""The only place that tells the course of a study on the terminal: a table that fills, or a line for each run."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from trimtab.report.study import interval, seeds, verdict
from trimtab.train.show.progress import Redrawn

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from trimtab.config.study import Protocol as StudyProtocol
    from trimtab.train.study.table import Cell


class StudyProgress(Protocol):
    """What a study reports, and when."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def opened(self, protocol: "StudyProtocol", folder: Path) -> None: ...
    def began(self, arm: str, seed: int, *, resumed: bool) -> None: ...
    def ended(self, cell: "Cell", *, known: bool = False) -> None: ...
    def finished(self, study: dict[str, Any], folder: Path) -> None: ...


class Silent:
    """Says nothing; what `run_study` uses inside a program."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def opened(self, protocol: "StudyProtocol", folder: Path) -> None: ...
    def began(self, arm: str, seed: int, *, resumed: bool) -> None: ...
    def ended(self, cell: "Cell", *, known: bool = False) -> None: ...
    def finished(self, study: dict[str, Any], folder: Path) -> None: ...


class Lines(Silent):
    """Plain lines: the protocol's hash first, then each run, then the table."""

    def __init__(self) -> None:
        self._started: float = time.monotonic()
        self._all: int = 0
        self._ended: int = 0
        self._run_here: int = 0

    def opened(self, protocol: "StudyProtocol", folder: Path) -> None:
        study = protocol.study
        self._all = len(protocol.arms) * len(study.seeds)
        print(f"protocol {protocol.path} sha256 {protocol.sha256}", flush=True)
        if protocol.base_sha256:
            print(f"base     {study.base} sha256 {protocol.base_sha256}", flush=True)
        print(f"study    {study.title}: {len(protocol.arms)} arms x {len(study.seeds)} seeds in {folder}", flush=True)

    def began(self, arm: str, seed: int, *, resumed: bool) -> None:
        print(f"{'resume' if resumed else 'start':<8} {arm}, seed {seed}", flush=True)

    def ended(self, cell: "Cell", *, known: bool = False) -> None:
        self._ended += 1
        self._run_here += not known
        value = "no number" if cell.value is None else f"{cell.value:.4f}"
        note = f"  {cell.note}" if cell.note else ""
        word = "known" if known else "done"
        print(f"{word:<8} {cell.arm}, seed {cell.seed}: {value} ({cell.status}){note}  {self._left()}", flush=True)

    def finished(self, study: dict[str, Any], folder: Path) -> None:
        wide = max(len(arm["arm"]) for arm in study["arms"])
        for arm in study["arms"]:
            print(f"{arm['arm']:<{wide}}  {interval(arm)}  [{seeds(arm)}]", flush=True)
        for one in study["expectations"]:
            print(f"expected {one['says']}: {verdict(one['met'])}", flush=True)
        if study["interrupted"]:
            print("stopped  run the same command again to go on", flush=True)
        print(f"report   {folder / 'study.html'}", flush=True)

    def _left(self) -> str:
        left = self._all - self._ended
        pace = (time.monotonic() - self._started) / self._run_here if self._run_here else 0.0
        minutes = round(left * pace / 60)
        when = f"about {minutes} min left" if minutes else "under a minute left"
        return f"[{self._ended}/{self._all}" + (f", {when}]" if left and pace else "]")


class Live(Redrawn, Lines):
    """Arms by seeds, redrawn in place: results as they come, the steps of the runs under way; then the lines."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live as RichLive

        super().__init__()
        self._protocol: StudyProtocol | None = None
        self._folder: Path = Path()
        self._cells: dict[tuple[str, int], Cell | None] = {}  # None for a run under way
        self._live = RichLive(console=console, get_renderable=self._drawn, refresh_per_second=2, transient=True)

    def opened(self, protocol: "StudyProtocol", folder: Path) -> None:
        super().opened(protocol, folder)
        self._protocol, self._folder = protocol, folder

    def began(self, arm: str, seed: int, *, resumed: bool) -> None:
        del resumed
        self._cells[arm, seed] = None

    def ended(self, cell: "Cell", *, known: bool = False) -> None:
        self._ended += 1
        self._run_here += not known
        self._cells[cell.arm, cell.seed] = cell

    def finished(self, study: dict[str, Any], folder: Path) -> None:
        self._live.stop()
        super().finished(study, folder)

    def _drawn(self) -> "RenderableType":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        if self._protocol is None:
            return Text("")
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("arm")
        for seed in self._protocol.study.seeds:
            table.add_column(f"seed {seed}", justify="right")
        for arm in self._protocol.arms:
            cells = (self._cell(arm.name, seed, arm.run.train.steps) for seed in self._protocol.study.seeds)
            table.add_row(arm.name, *cells)
        return Group(table, Text(self._left().strip("[]"), style="dim"))

    def _cell(self, arm: str, seed: int, steps: int) -> "RenderableType":
        from rich.text import Text

        if (arm, seed) not in self._cells:
            return Text("·", style="dim")
        cell = self._cells[arm, seed]
        if cell is None:
            done = min(steps_done(self._folder / arm / f"seed{seed}"), steps)  # the last line is an evaluation
            return Text(f"{done}/{steps}", style="cyan")
        return Text("no number", style="red") if cell.value is None else Text(f"{cell.value:.4f}", style="bold")


def steps_done(folder: Path) -> int:
    """How many steps a run under way has written down."""
    try:
        return (folder / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:  # not there yet
        return 0


def study_progress(*, quiet: bool) -> StudyProgress:
    """Nothing with `quiet`; live on a terminal; plain lines elsewhere."""
    if quiet:
        return Silent()
    from rich.console import Console

    return Live(Console()) if sys.stdout.isatty() else Lines()

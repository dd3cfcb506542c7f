"""The only place that talks to the terminal during a run: a live bar, plain lines, one line, or nothing."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live as RichLive

    from trimtab.config.train import TrainSettings
    from trimtab.train.record.record import Summary

SPARKS = "▁▂▃▄▅▆▇█"
ENDINGS = {
    "finished": "all steps done",
    "early_stop": "stopped early, accurate enough",
    "interrupted": "interrupted",
    "time_limit": "time was up",
    "nonfinite": "stopped: loss or gradient not finite",
    "diverged": "stopped: the parameters diverged",
    "learned_nothing": "all steps done, nothing learned",
}
RESUMABLE = ("interrupted", "time_limit")


class Progress(Protocol):
    """What a run reports, and when."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def opened(self, settings: "TrainSettings", recipe: str, run_dir: Path) -> None: ...
    def stage(self, text: str) -> None: ...
    def step(self, line: Mapping[str, object]) -> None: ...
    def finished(self, summary: "Summary") -> None: ...


class Silent:
    """Says nothing; what `train` uses inside a program."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def opened(self, settings: "TrainSettings", recipe: str, run_dir: Path) -> None: ...
    def stage(self, text: str) -> None: ...
    def step(self, line: Mapping[str, object]) -> None: ...
    def finished(self, summary: "Summary") -> None: ...


class OneLine(Silent):
    """Only the result: what `--quiet` prints."""

    def finished(self, summary: "Summary") -> None:
        print(result_line(summary), flush=True)
        if summary.outcome in RESUMABLE:
            print(f"resume  {resume_line(summary)}", flush=True)


class Lines(Silent):
    """Plain lines, one for each evaluation: for logs and pipes."""

    _runtime: str = "inline"

    def opened(self, settings: "TrainSettings", recipe: str, run_dir: Path) -> None:
        self._runtime = settings.runtime
        print(f"run     {run_dir}", flush=True)
        print(f"recipe  {recipe}, task {settings.task.name}, seed {settings.seed}", flush=True)
        print(f"sampler {sampler_line(settings)}", flush=True)

    def stage(self, text: str) -> None:
        print(f"        {text}", flush=True)

    def step(self, line: Mapping[str, object]) -> None:
        if "eval/accuracy" in line:
            print(
                f"step {line['step']:>4}  held-out {_number(line, 'eval/accuracy'):.3f}  "
                f"reward {_number(line, 'rollout/reward_mean'):.3f}  "
                f"{_number(line, 'staleness/mean'):.0f} updates old  drift {_drift(line):.3f}  "
                f"{roles_line(line, self._runtime)}"
                f"{_number(line, 'time/elapsed_seconds'):5.1f} s",
                flush=True,
            )

    def finished(self, summary: "Summary") -> None:
        for warning in summary.warnings:
            print(f"warning {warning}")
        print(result_line(summary))
        if summary.outcome in RESUMABLE:
            print(f"resume  {resume_line(summary)}")
        print(f"report  {summary.run_dir / 'report.html'}", flush=True)


class Unbroken:
    """Passes everything on to another progress until that fails: a closed terminal or pipe must not end the run."""

    def __init__(self, told: Progress) -> None:
        self._told: Progress = told

    def __enter__(self) -> Self:
        self._tell(lambda told: told.__enter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell(lambda told: told.__exit__(kind, error, trace))

    def opened(self, settings: "TrainSettings", recipe: str, run_dir: Path) -> None:
        self._tell(lambda told: told.opened(settings, recipe, run_dir))

    def stage(self, text: str) -> None:
        self._tell(lambda told: told.stage(text))

    def step(self, line: Mapping[str, object]) -> None:
        self._tell(lambda told: told.step(line))

    def finished(self, summary: "Summary") -> None:
        self._tell(lambda told: told.finished(summary))

    def _tell(self, how: Callable[[Progress], object]) -> None:
        try:
            _ = how(self._told)
        except OSError:
            self._told = Silent()
            nowhere = os.open(os.devnull, os.O_WRONLY)  # what is still buffered would fail again at the end
            _ = os.dup2(nowhere, 1)
            os.close(nowhere)


class Redrawn:
    """Owns a live display while it is open."""

    _live: "RichLive"

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


class Live(Redrawn, Silent):
    """A bar, the accuracy so far as a spark line, reward and speed, redrawn in place."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live as RichLive

        self._console: Console = console
        self._live = RichLive(console=console, refresh_per_second=8, transient=True)
        self._accuracies: list[float] = []
        self._line: Mapping[str, object] = {}
        self._stage: str = ""
        self._steps: int = 1
        self._runtime: str = "inline"

    def opened(self, settings: "TrainSettings", recipe: str, run_dir: Path) -> None:
        from rich.markup import escape

        self._steps, self._runtime = settings.steps, settings.runtime
        self._console.print(
            f"[bold]trimtab train[/]  {escape(settings.task.name)} · {escape(recipe)} · seed {settings.seed}",
            highlight=False,
        )
        self._console.print(f"[dim]sampler[/]  {sampler_line(settings)}", highlight=False)

    def stage(self, text: str) -> None:
        self._stage = text
        self._live.update(self._drawn())

    def step(self, line: Mapping[str, object]) -> None:
        self._line = line
        if "eval/accuracy" in line:
            self._accuracies.append(_number(line, "eval/accuracy"))
        self._stage = ""
        self._live.update(self._drawn())

    def finished(self, summary: "Summary") -> None:
        from rich.markup import escape

        self._live.stop()
        for warning in summary.warnings:
            self._console.print(f"[yellow]warning[/]  {escape(warning)}", highlight=False)
        self._console.print(f"[dim]held-out[/]  {sparks(self._accuracies)}", highlight=False)
        self._console.print(f"[bold green]{escape(result_line(summary))}[/]", highlight=False, soft_wrap=True)
        if summary.outcome in RESUMABLE:
            self._console.print(f"resume  {escape(resume_line(summary))}", highlight=False, soft_wrap=True)
        self._console.print(f"report  {escape(str(summary.run_dir / 'report.html'))}", highlight=False, soft_wrap=True)

    def _drawn(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        if not self._line:
            return Text(self._stage, style="dim")
        done = int(_number(self._line, "step")) + 1
        top = Table.grid(padding=(0, 1))
        top.add_row(f"step {done}/{self._steps}", ProgressBar(total=self._steps, completed=done, width=32))
        accuracy = f"{self._accuracies[-1]:.3f}" if self._accuracies else "-"
        below = Text.assemble(
            ("held-out ", "dim"),
            (accuracy, "bold cyan"),
            f" {sparks(self._accuracies)}  ",
            ("reward ", "dim"),
            f"{_number(self._line, 'rollout/reward_mean'):.3f}  ",
            ("stale ", "dim"),
            f"{_number(self._line, 'staleness/mean'):.0f}  ",
            ("drift ", "dim"),
            f"{_drift(self._line):.3f}  ",
            roles_line(self._line, self._runtime),
            ("tokens/s ", "dim"),
            f"{_number(self._line, 'time/tokens_per_second'):,.0f}  ",
            ("time ", "dim"),
            f"{_number(self._line, 'time/elapsed_seconds'):.0f} s",
        )
        return Group(top, below, Text(self._stage, style="dim")) if self._stage else Group(top, below)


def terminal_progress(*, quiet: bool) -> Progress:
    """One line with `quiet`; live on a terminal; plain lines elsewhere."""
    if quiet:
        return OneLine()
    from rich.console import Console

    return Live(Console()) if sys.stdout.isatty() else Lines()


def result_line(summary: "Summary") -> str:
    """The run in one line.

    held-out accuracy 0.984 after 90 steps in 17.2 s (stopped early, accurate enough): runs/20260101T000000Z-seed0
    """
    return (
        f"held-out accuracy {summary.held_out_accuracy:.3f} after {summary.steps} steps in {summary.seconds:.1f} s "
        f"({ENDINGS[summary.outcome]}): {summary.run_dir}"
    )


def sampler_line(settings: "TrainSettings") -> str:
    """How the sampler differs from the trainer, in a few words."""
    old = "always the newest parameters" if not settings.staleness else f"at most {settings.staleness} updates old"
    return f"{settings.engine.format} weights, {old}, runtime {settings.runtime}"


def resume_line(summary: "Summary") -> str:
    return f"trimtab train --resume {summary.run_dir}"


def roles_line(line: Mapping[str, object], runtime: str) -> str:
    """Who samples with which version, and how far that is behind; nothing for a run in one process.

    >>> roles_line({"samplers/count": 2, "samplers/oldest_version": 11, "samplers/newest_version": 12,
    ...             "publish/lag_versions": 1}, "ray")
    'samplers 2 at 11-12, lag 1  '
    """
    if runtime == "inline" or "samplers/count" not in line:
        return ""
    first, last = (int(_number(line, f"samplers/{which}_version")) for which in ("oldest", "newest"))
    versions = f"{first}" if first == last else f"{first}-{last}"
    count, lag = (int(_number(line, name)) for name in ("samplers/count", "publish/lag_versions"))
    return f"samplers {count} at {versions}, lag {lag}  "


def sparks(values: list[float]) -> str:
    """Values between 0 and 1 as a line of blocks.

    >>> sparks([0.0, 0.5, 1.0])
    '▁▅█'
    """
    return "".join(SPARKS[min(int(value * len(SPARKS)), len(SPARKS) - 1)] for value in values)


def _number(line: Mapping[str, object], key: str) -> float:
    value = line.get(key)
    return float(value) if isinstance(value, int | float) else float("nan")


def _drift(line: Mapping[str, object]) -> float:
    """Mean |log-ratio| to the sampler: of the old policy where the recipe has one, else of the current one."""
    for pair in ("engine", "total"):
        if f"logratio_{pair}/token_abs_mean" in line:
            return _number(line, f"logratio_{pair}/token_abs_mean")
    return float("nan")

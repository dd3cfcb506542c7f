"""The end of a watched run: the only place that merges ranks and writes the summary and the page."""

from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.errors import TrimtabError
from trimtab.watch import folder as disk
from trimtab.watch.finding import Finding, new
from trimtab.watch.harmless import note
from trimtab.watch.judge import judge
from trimtab.watch.trend import Trend

if TYPE_CHECKING:
    from trimtab.watch.watch import Watch


def finish(watch: "Watch") -> None:
    """Merge what the ranks saw, judge the whole once more, and write summary and report."""
    if watch.ranks > 1:
        merge(watch)
    rate = watch.watched / max(watch.number, 1)
    disk.write_json(
        watch.folder / "summary.json",
        {
            "steps": watch.number,
            "warnings": list(watch.failures),
            "outcome": "watched",
            "tokens": watch.tokens,
            "watch": {
                "steps_watched_whole": watch.watched,
                "rate": rate,
                "ranks": watch.ranks,
                "seconds": watch.seconds,
                "milliseconds_per_300k_tokens": 1e3 * watch.seconds * 3e5 / max(watch.tokens, 1),
                "findings": [one.name for one in watch.findings],
            },
        },
    )
    _write_page(watch)


def merge(watch: "Watch") -> None:
    """Rewrite the metrics with those of all ranks, and judge them; what a rank found alone is kept."""
    merged = disk.read_ranks(watch.folder)
    lines, histograms = [], []
    trend, found = Trend(), list[Finding]()
    watch.tokens = 0
    for step, metrics in merged.items():
        numbers = metrics.numbers()
        watch.tokens += int(numbers.get("watch/tokens", 0))
        lines.append({"step": step, **disk.shown(numbers)})
        histograms += [line] if (line := disk.histogram_line(step, metrics)) is not None else []
        told = [*judge(numbers, watch.where, watch.accumulation), *trend.observe(step, numbers, watch.where)]
        found += [Finding(name, step, text) for name, text in told]
    disk.write_lines(watch.folder / "metrics.jsonl", lines)
    disk.write_lines(watch.folder / "diagnostics.jsonl", histograms)
    alone = [one for path in sorted(watch.folder.glob("ranks/findings_*.jsonl")) for one in disk.read_lines(path)]
    for one in sorted(new([*found, *alone], watch.findings), key=lambda one: one.step):
        watch.say([(one.name, one.text)], one.step)


def _write_page(watch: "Watch") -> None:
    """The page is for people and needs matplotlib; without it, everything else is there."""
    try:
        from trimtab.report import write_report

        _ = write_report(Path(watch.folder))
    except (ImportError, TrimtabError) as error:
        note(watch, "report", error)

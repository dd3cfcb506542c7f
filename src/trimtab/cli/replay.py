"""`trimtab replay`: a recorded step once more, under the run's recipe or another one."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from trimtab.cli.console import plain_console
from trimtab.config import load_run, parse_run
from trimtab.errors import ConfigError
from trimtab.signal import Recipe, names, recipe

SHOWN = (
    "train/loss", "kept/token_fraction", "effective_batch/token_fraction", "ratio_", "ess_", "logratio_", "advantage",
    "clipped", "importance", "rejected", "alone",
)  # fmt: skip
"""Metrics that tell two recipes apart, by a part of their name."""


def run_replay(folder: Path, step: int, overrides: list[str], *, trust: bool = False) -> int:
    """0 when every metric came out as recorded, or for another recipe; 1 when one did not."""
    from trimtab.train.record.identity import read_json
    from trimtab.train.record.replay import read_dump, replay

    config = read_json(folder / "config.json")
    dump = read_dump(folder, step)
    asked = _recipe(folder, config, overrides, trust=trust)
    _check_recorded(asked, dump.recorded)
    again = replay(dump, asked, updates_per_batch=int(config["updates_per_batch"]))
    console = plain_console()
    compared = [name for name in again.metrics if name in dump.metrics]
    if not overrides:
        if not again.differences:
            console.print(f"step {step}: all {len(compared)} metrics of the signal came out as recorded, bit for bit")
            return 0
        console.print(f"step {step}: {len(again.differences)} of {len(compared)} metrics came out other than recorded")
        _show(console, again.differences, "recorded", "now")
        return 1
    pairs = {
        name: (float(dump.metrics.get(name, float("nan"))), value)
        for name, value in sorted(again.metrics.items())
        if any(part in name for part in SHOWN)
    }
    _show(console, pairs, f"{config['recipe']['name']} (recorded)", f"{asked.name} (the same batch)")
    return 0


def _recipe(folder: Path, config: dict[str, Any], overrides: list[str], *, trust: bool) -> Recipe:
    """The recipe given here, or the run's own; code that only the run names is imported on trust alone."""
    from trimtab.train.record.inputs import named_formulas, refuse_code

    origin: dict[str, object] | None = config.get("origin")
    if overrides:
        return load_run(None, overrides).build_recipe()
    if not trust:
        refuse_code(named_formulas(origin), "replay", folder)
    if not origin:
        raise ConfigError(
            f"replay: {folder} was started from Python with a recipe of its own, so it cannot be rebuilt from the "
            "folder. Call trimtab.train.record.replay.replay(dump, recipe, updates_per_batch=…)."
        )
    return parse_run(origin, str(folder / "config.json")).build_recipe()


def _check_recorded(asked: Recipe, recorded: frozenset[str]) -> None:
    """A batch holds what its own recipe needed. Say which others need no more."""
    missing = sorted(asked.needs - recorded)
    if missing:
        possible = [name for name in names() if recipe(name).needs <= recorded]
        raise ConfigError(
            f"replay: recipe {asked.name!r} needs {', '.join(missing)}, which the run's own recipe did not, so it was "
            f"not recorded. From this batch these can be computed: {', '.join(possible)}. For {asked.name!r}, train "
            "with a recipe that needs the same."
        )


def _show(console: Console, pairs: dict[str, tuple[float, float]], left: str, right: str) -> None:
    table = Table("metric", left, right, box=None, pad_edge=False)
    for name, (first, second) in pairs.items():
        table.add_row(name, *("–" if value != value else f"{value:.6g}" for value in (first, second)))
    console.print(table)

"""`trimtab replay`: a recorded step once more, under the run's recipe or another one."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from trimtab.cli.console import plain_console
from trimtab.config import load_run, parse_run
from trimtab.errors import ConfigError
from trimtab.signal import Recipe

SHOWN = (
    "train/loss", "kept/token_fraction", "effective_batch/token_fraction", "ratio_", "ess_", "logratio_", "advantage",
    "clipped", "importance", "rejected", "alone",
)  # fmt: skip
"""Metrics that tell two recipes apart, by a part of their name."""


def run_replay(folder: Path, step: int, overrides: list[str]) -> int:
    """0 when every metric came out as recorded, or for another recipe; 1 when one did not."""
    from trimtab.train.opening import read_json
    from trimtab.train.replay import read_dump, replay

    config = read_json(folder / "config.json")
    dump = read_dump(folder, step)
    recipe = _recipe(folder, config.get("origin"), overrides)
    again = replay(dump, recipe, updates_per_batch=int(config["updates_per_batch"]))
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
        name: (float(dump.metrics.get(name) or float("nan")), value)
        for name, value in sorted(again.metrics.items())
        if any(part in name for part in SHOWN)
    }
    _show(console, pairs, f"{config['recipe']['name']} (recorded)", f"{recipe.name} (the same batch)")
    return 0


def _recipe(folder: Path, origin: dict[str, object] | None, overrides: list[str]) -> Recipe:
    if overrides:
        return load_run(None, overrides).build_recipe()
    if not origin:
        raise ConfigError(
            f"replay: {folder} was started from Python with a recipe of its own, so it cannot be rebuilt from the "
            "folder. Call trimtab.train.replay.replay(dump, recipe, updates_per_batch=…)."
        )
    return parse_run(origin, str(folder / "config.json")).build_recipe()


def _show(console: Console, pairs: dict[str, tuple[float, float]], left: str, right: str) -> None:
    table = Table("metric", left, right, box=None, pad_edge=False)
    for name, (first, second) in pairs.items():
        table.add_row(name, f"{first:.6g}", f"{second:.6g}")
    console.print(table)

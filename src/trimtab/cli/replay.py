"""`trimtab replay`: a recorded step once more, under the run's recipe or another one."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor

import trimtab
from trimtab.cli.console import plain_console
from trimtab.config import load_run, parse_run
from trimtab.errors import ConfigError, TrimtabError
from trimtab.signal import Recipe, names, recipe

SHOWN = (
    "train/loss", "kept/token_fraction", "effective_batch/token_fraction", "ratio_", "ess_", "logratio_", "advantage",
    "clipped", "importance", "rejected", "alone",
)  # fmt: skip
"""Metrics that tell two recipes apart, by a part of their name."""


def run_replay_dumped(path: Path, step: int, recipes: list[Recipe], framework: str | None) -> int:
    """A batch that a watch dumped, or that somebody exported, under each of these recipes, side by side."""
    from trimtab.watch.dump import dumped_files, read_dumped

    if not recipes:
        raise ConfigError(
            f"replay: a dumped batch has no recipe of its own. Name one or more: --recipe {' or '.join(names()[:3])}, …"
        )
    files = dumped_files(path, step)
    dumped = read_dumped(files, framework)
    console = plain_console()
    for note in dumped.notes:
        console.print(note)
    mask = dumped.fields["mask"].bool()
    console.print(
        f"{len(files)} micro-batch{'es' if len(files) > 1 else ''}, {len(mask)} rows, {int(mask.sum())} tokens"
    )
    found = [_loss_of(dumped.fields, one) for one in recipes]
    table = Table("metric", *(one.name for one in recipes), box=None, pad_edge=False)
    for name in dict.fromkeys(name for numbers in found for name in numbers):
        if name.startswith(("loss", "gradient")) or any(part in name for part in SHOWN):
            table.add_row(name, *(f"{numbers[name]:.6g}" if name in numbers else "–" for numbers in found))
    console.print(table)
    return 0


def asked_recipes(named: list[str], overrides: list[str]) -> list[Recipe]:
    """Each recipe by its name; settings such as signal.loss.band=[0.8,1.3] change every one of them."""
    if not named and not overrides:
        return []
    changed = [text for text in overrides if not text.startswith("recipe=")]
    chosen = [*named, *(text.removeprefix("recipe=") for text in overrides if text.startswith("recipe="))]
    return [load_run(None, [f"recipe={name}", *changed]).build_recipe() for name in chosen]


def _loss_of(fields: dict[str, Tensor], chosen: Recipe) -> dict[str, float]:
    """Loss, size of its gradient, and metrics. A dumped advantage is taken as it is."""
    given = {name: values.double() if values.is_floating_point() else values for name, values in fields.items()}
    leaf = given.pop("logp_current").requires_grad_()
    mask = given.pop("mask").bool()
    has = frozenset(given)
    missing = sorted(_needs(chosen, has) - has)
    if missing:
        possible = [name for name in names() if _can_run(recipe(name), has)]
        raise ConfigError(
            f"replay: recipe {chosen.name!r} needs {', '.join(missing)}, which this batch does not hold. From it these "
            f"can be computed: {', '.join(possible) or 'none'}."
        )
    read = _needs(chosen, has) | {"advantage", "reward", "group", "logp_rollout", "logp_old"}
    fitted = chosen.with_given_advantage if "advantage" in has else chosen
    held: dict[str, Any] = {name: values for name, values in given.items() if name in read}
    loss, metrics = trimtab.loss(leaf, recipe=fitted, mask=mask, grad_scale=None, **held)
    loss.backward()
    assert leaf.grad is not None
    size: dict[str, float] = {"loss": loss.item(), "gradient/norm": leaf.grad.norm().item()}
    return {**size, **{name: value for name, value in metrics.items() if name not in size}}


def _needs(chosen: Recipe, has: frozenset[str]) -> frozenset[str]:
    """What a recipe reads beside the current log-probs; with an advantage at hand, nothing that comes before one."""
    return (chosen.with_given_advantage if "advantage" in has else chosen).needs - {"logp_current", "mask"}


def _can_run(chosen: Recipe, has: frozenset[str]) -> bool:
    try:
        return _needs(chosen, has) <= has
    except TrimtabError:  # its value term needs the advantage to be its own
        return False


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

"""`trimtab explain`: what a name stands for, in words a person can act on."""

import inspect

from rich.console import Console
from rich.table import Table

from trimtab.cli.console import bold
from trimtab.cli.words import is_word, settings, show_word
from trimtab.config import RunFile, explain_recipe, load_run
from trimtab.errors import ConfigError, SignalError, closest
from trimtab.lexicon import aliases
from trimtab.sentinel import INVARIANTS
from trimtab.signal import METRICS, Formula, Recipe, catalog, find, metric_spec, names, recipe


def explain_name(name: str, overrides: list[str], console: Console) -> None:
    """Find what is meant and say it; a name with two meanings shows both."""
    if name.endswith(".toml"):
        run = load_run(name, overrides)
        show_recipe(run.build_recipe(), console, title=f"{name} runs")
        _show_cautions(run, console)
        return
    if overrides and name not in names():
        raise ConfigError("explain: overrides change a run file or a recipe. Name one of these, or leave them out.")
    if overrides:
        show_recipe(
            load_run(None, [f"recipe={name}", *overrides]).build_recipe(),
            console,
            title=f"{name} {' '.join(overrides)}",
        )
        return
    if name.endswith((".yaml", ".yml", ".json")):
        raise ConfigError(f"explain: {name} is not a run file; run files are TOML.")
    shown = False
    if name in names():
        show_recipe(recipe(name), console)
        shown = True
    for entry in [] if is_word(name) else _formulas(name):
        show_formula(entry, console)
        shown = True
    if name in INVARIANTS:
        _show_invariant(name, console)
        shown = True
    if any(name == spec.name for spec in METRICS) or ("/" in name and _is_metric(name)):
        spec = metric_spec(name)
        console.print(
            bold(
                name,
                f"  metric\n  {spec.means}\n  population: {spec.population}\n  range: [{spec.low:g}, {spec.high:g}]",
            )
        )
        shown = True
    shown = show_word(name, console) or shown
    if not shown:
        raise ConfigError(_unknown(name))


def _show_cautions(run: RunFile, console: Console) -> None:
    """What the recipe and the trainer's settings, together, make unlikely to be meant."""
    from trimtab.train.checks.cautions import cautions

    for text in cautions(run.train, run.build_recipe()):
        console.print(bold("  caution: ", text), soft_wrap=True)


def _unknown(name: str) -> str:
    choices = [
        *names(),
        *catalog(),
        *(f.name.partition(".")[2] for f in catalog().values()),
        *INVARIANTS,
        *[spec.name for spec in METRICS],
        *(key for key, _ in settings()),
        *(key.rpartition(".")[2] for key, _ in settings()),
        *(one.theirs for one in aliases()),
    ]
    near = closest(name, choices)
    hint = f"; did you mean {near!r}?" if near else "."
    return (
        f"explain: nothing is called {name!r}{hint} "
        f"Recipes are {', '.join(names())}; trimtab catalog lists all the rest."
    )


def _formulas(name: str) -> list[Formula]:
    known = catalog()
    wanted = name.lower()
    found = [
        f for f in known.values() if wanted in (f.name, f.name.partition(".")[2], *(k.lower() for k in f.known_as))
    ]
    if (
        not found
        and "." in name
        and "/" not in name
        and name.partition(".")[0] not in {f.stage for f in known.values()}
    ):
        try:
            return [find(name)]
        except SignalError as error:
            raise ConfigError(str(error)) from error
    return found


def _is_metric(name: str) -> bool:
    try:
        metric_spec(name)
    except SignalError:
        return False
    return True


def show_recipe(one: Recipe, console: Console, title: str | None = None) -> None:
    """The formulas that will run, in order, with their sources; then what they need and cost."""
    console.print(
        bold(
            title or one.name,
            f"  recipe{f' {one.name}' if title else ''}\n  {one.summary}\n  source: {one.source}\n",
        )
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("stage", "what runs", "source"):
        table.add_column(column, overflow="fold")
    for row in explain_recipe(one):
        table.add_row(*row)
    console.print(table)
    needs = ", ".join(sorted(one.needs)) or "nothing beyond rewards, groups and the current log-probs"
    console.print(f"\n  needs: {needs}")
    console.print(f"  logp_old: {one.old}")
    passes = ["logp_old: one without gradient per batch"] if "logp_old" in one.needs else []
    passes += ["logp_ref: one of the reference per batch"] if "logp_ref" in one.needs else []
    passes += ["decide: one without gradient per optimiser step after the first"] if one.needs_logp_now else []
    cost = "; ".join(passes) or "none"
    console.print(f"  forward passes beyond the training one: {cost}")
    carried = {factor: str(stage.part.formula.name) for stage in (one.loss, *one.correction) for factor in stage.spends}
    for factor, pair in (("engine", "old/rollout"), ("update", "current/old")):
        console.print(f"  {pair}: {'corrected by ' + carried[factor] if factor in carried else 'not corrected'}")


def show_formula(entry: Formula, console: Console) -> None:
    """Its docstring, inputs, settings, scope and promises."""
    console.print(
        bold(entry.name, "  formula" + (f"  (known as {', '.join(entry.known_as)})" if entry.known_as else ""))
    )
    console.print("  " + (inspect.getdoc(entry.fn) or "").replace("\n", "\n  "))
    console.print(f"\n  source: {entry.source}")
    console.print(f"  inputs: {', '.join(entry.inputs)}")
    for name, parameter in entry.settings.items():
        default = "no default" if parameter.default is inspect.Parameter.empty else f"default {parameter.default}"
        console.print(f"  setting {name}: {default}")
    console.print(f"  scope: {entry.scope}; consumes: {entry.consumes}")
    console.print(f"  promises: {', '.join(entry.promises)}\n")


def _show_invariant(name: str, console: Console) -> None:
    law = INVARIANTS[name]
    rows = (("", law.statement), ("why: ", law.why), ("a real bug: ", law.bug), ("repair: ", law.repair))
    console.print(bold(name, "  invariant"))
    for label, text in rows:
        console.print(f"  {label}{text}")
    held = [f.name for f in catalog().values() if name in f.promises]
    console.print(f"  promised by {len(held)} formulas\n")

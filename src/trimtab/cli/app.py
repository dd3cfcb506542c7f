"""The commands and what they say about themselves."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import trimtab

app = typer.Typer(
    name="trimtab",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Keeps the training signal of LLM reinforcement learning true.\n\n"
    "Start with [bold]trimtab catalog[/] to see what there is, [bold]trimtab explain dapo[/] to read one recipe, "
    "[bold]trimtab train[/] to watch it learn, [bold]trimtab check trimtab[/] to see it held to its promises.",
)


class CatalogFormat(StrEnum):
    """How the catalogue is printed."""

    text = "text"
    json = "json"
    markdown = "markdown"
    papers = "papers"


class CheckFormat(StrEnum):
    """How verdicts are printed."""

    text = "text"
    json = "json"
    markdown = "markdown"
    html = "html"
    sarif = "sarif"
    junit = "junit"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"trimtab {trimtab.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Nothing of its own: every command stands alone."""


@app.command()
def check(
    target: Annotated[
        str | None,
        typer.Argument(
            help="trimtab; a formula (policy_loss.clipped); a framework (verl, skyrl, areal, openrlhf, trl as "
            "released; slime, miles, nemo-rl, prime-rl, roll, open-instruct with --path); or your own: mypkg (all "
            "its modules), mypkg.losses, mypkg.losses:my_loss, losses.py. Or a run's folder with "
            "dumped batches."
        ),
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(
            metavar="DIR[@COMMIT]",
            help="Check this checkout, or git directory at a commit or branch; for your own module, the folder it is "
            "imported from.",
        ),
    ] = None,
    discover: Annotated[
        bool,
        typer.Option(
            "--discover", help="No target: search every file of --path for functions of the signal, and guess bindings."
        ),
    ] = False,
    wheel: Annotated[Path | None, typer.Option(help="Check this wheel file instead of the locked release.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use a cached wheel only; never download.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--function", help="Only this function; may be given again.")
    ] = None,
    invariants: Annotated[
        list[str] | None, typer.Option("--invariant", help="Only this invariant; may be given again.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the search; the same seed finds the same counter-example.")
    ] = 0,
    examples: Annotated[
        int, typer.Option(min=1, help="Random cases for each check, on top of the directed ones.")
    ] = 12,
    output: Annotated[CheckFormat, typer.Option("--format", help="How verdicts are printed.")] = CheckFormat.text,
    out: Annotated[Path | None, typer.Option(help="Write the verdicts to this file instead of the terminal.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="An earlier --format json report: show what is new, fixed, still there.")
    ] = None,
    changed: Annotated[
        str | None, typer.Option(metavar="BASE..HEAD", help="Only functions whose lines changed between two commits.")
    ] = None,
    findings: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a folder for each bug, with a runner and a test that were run."),
    ] = None,
    online: Annotated[
        bool, typer.Option("--online", help="Let the duplicate check of --findings search upstream; nothing is posted.")
    ] = False,
    fixed: Annotated[
        str | None,
        typer.Option(
            metavar="DIR[@COMMIT]",
            help="Repaired code: the regression test of each folder of --findings must pass on it.",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Replay one recorded finding against --path: reproduced or fixed. s1, s3, s4 are ours."
        ),
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Give a function up when it has not answered for this long; loading does not count.",
        ),
    ] = 120.0,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="GIB",
            help="Memory of all child processes together, shared equally; default: two thirds of the machine's.",
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Child processes at once; default: cores, at most 4.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="auto|local|HOST:PORT",
            help="Check on the nodes of a Ray cluster, which run the target's code; a file or folder of it is sent.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit code 1 also for suspects, latent bugs and hygiene.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            help="Also list conventions, checks that do not apply, times, and functions that could not be bound.",
        ),
    ] = False,
    saved: Annotated[
        Path | None,
        typer.Option("--render", metavar="REPORT", help="Show a saved --format json report again; nothing is run."),
    ] = None,
) -> None:
    """Hold functions of the training signal to invariants, and show the smallest counter-example of each failure.

    The target's code runs in child processes of this machine, with a time and memory limit.
    Exit code 0: no bug. 1: bugs (with --strict: any finding). 2: something could not be run.

    Examples: trimtab check areal · trimtab check slime --path ~/slime@045310b2b · trimtab check losses.py ·
    trimtab check policy_loss.clipped --seed 7 · trimtab check verl --format html --out verl.html ·
    trimtab check runs/b ·
    trimtab check --recipe findings/x/recipe.json --path ~/slime · trimtab check --render verl.json --format html
    """
    from trimtab.cli.check import Asked, run_check, run_recipe
    from trimtab.cli.verify import is_run, run_verify

    if recipe is not None:
        raise typer.Exit(run_recipe(recipe, path))
    if target is not None and is_run(target):
        raise typer.Exit(run_verify(Path(target), output.value))
    if target is None and saved is None and not discover:
        raise typer.BadParameter("name a target, --recipe FILE, --render REPORT or --discover", param_hint="TARGET")
    if target is not None and saved is not None:
        raise typer.BadParameter("a saved report names its own target; leave TARGET out", param_hint="--render")
    asked = Asked(
        target or "", path, wheel, offline, seed, examples, output.value, out, tuple(only or ()),
        tuple(invariants or ()), baseline, changed, findings, online, fixed, time_limit, memory_limit, jobs, discover,
        strict, verbose, cluster,
    )  # fmt: skip
    raise typer.Exit(run_check(asked, saved))


@app.command()
def catalog(
    output: Annotated[
        CatalogFormat,
        typer.Option("--format", help="text, json, or the markdown of docs/catalogue.md and docs/paper_index.md."),
    ] = CatalogFormat.text,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="What eleven frameworks have, row by row, and what of it is here.")
    ] = False,
    pairings: Annotated[
        bool, typer.Option("--pairings", help="Every loss with every correction: it composes, or why it is refused.")
    ] = False,
) -> None:
    """List every recipe, formula, invariant and metric, with its source.

    Examples: trimtab catalog · trimtab catalog --coverage · trimtab catalog --pairings --format json
    """
    from trimtab.cli.catalog import show_catalog, show_coverage
    from trimtab.cli.console import plain_console
    from trimtab.cli.pairing import show_pairings

    if coverage and pairings:
        raise typer.BadParameter("--coverage and --pairings are two lists. Name one.")
    show = show_coverage if coverage else show_pairings if pairings else show_catalog
    show(output.value, plain_console())


@app.command()
def integrate(
    name: Annotated[str | None, typer.Argument(help="verl, skyrl, slime, prime_rl, openrlhf, areal, …")] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Check that the installed version still has the hooks; nothing is imported."),
    ] = False,
) -> None:
    """Print the lines that put the watch, or a recipe, into another framework. Without NAME: list the frameworks.

    Examples: trimtab integrate · trimtab integrate verl · trimtab integrate verl --verify
    """
    from trimtab.cli import integrate as command

    if name is None:
        command.show_frameworks()
    elif verify:
        raise typer.Exit(command.verify(name))
    else:
        command.show_lines(name)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def convert(
    context: typer.Context,
    framework: Annotated[
        str, typer.Option("--from", metavar="verl|trl|skyrl|slime|openrlhf|areal|nemo-rl|prime-rl", help="Whose words.")
    ],
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="YAML, TOML, JSON, a shell script, or Python. Or flags after --.")
    ] = "",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="The run file; without it, it is printed.")] = None,
) -> None:
    """Write a run file from another framework's configuration. Nothing is executed.

    Every option is in the file: kept, said in other words, or in a comment that says why it is not. Switches that do
    nothing, or contradict each other, come first.

    Examples: trimtab convert --from verl run_grpo.sh -o run.toml ·
    trimtab convert --from slime -- --eps-clip 0.2 --use-tis
    """
    from trimtab.cli.convert import run_convert

    flags = [one for one in context.args if one != "--"]
    if source.startswith("-"):
        source, flags = "", [source, *flags]
    raise typer.Exit(run_convert(framework, source, tuple(flags), out))


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="A run file, recipe, formula, metric or invariant.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted overrides of a run file.", metavar="KEY=VALUE")
    ] = None,
) -> None:
    """Say what a name stands for: the formulas that will run, their settings, sources, needs and costs.

    Examples: trimtab explain dapo · trimtab explain dapo signal.loss.band=[0.8,1.3] · trimtab explain run.toml ·
    trimtab explain split · trimtab explain ess_engine/token
    """
    from trimtab.cli.console import plain_console
    from trimtab.cli.explain import explain_name

    explain_name(name, list(overrides or []), plain_console())

"""`trimtab train`: from a run file and options to a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from trimtab.cli.ranks import in_rank, is_first, start_ranks
from trimtab.config import RunFile, load_run
from trimtab.errors import ConfigError
from trimtab.signal import names

if TYPE_CHECKING:
    from trimtab.train.record.record import Summary


@dataclass(frozen=True)
class Asked:
    """The command line of `trimtab train`."""

    run_file: Path | None
    overrides: list[str]
    run_dir: Path | None
    seed: int | None
    resume: Path | None
    last_good: bool
    accept_changes: bool
    start_over: bool
    trust: bool
    twin: bool
    """Train the control run too: the same run without correction."""
    max_minutes: float | None
    dry_run: bool
    quiet: bool
    ranks: int = 1
    """Processes that train together. More than one are started by torchrun, which runs this command in each."""
    cluster: str | None = None
    """A Ray cluster: auto, local or its address. It places samplers, reward workers, and ranks beside this process."""


def run_training(asked: Asked) -> None:
    """Read, resolve, train; options on the command line win over the file."""
    if asked.resume is not None:
        _resume(asked)
        return
    for name in ("last_good", "accept_changes", "start_over", "trust"):
        if getattr(asked, name):
            raise ConfigError(
                f"train: --{name.replace('_', '-')} says how to go on with a run, so it needs --resume RUN."
            )
    if asked.run_file is not None and not asked.run_file.exists():
        raise ConfigError(_not_a_file(str(asked.run_file)))
    run = load_run(asked.run_file, [*asked.overrides, *cluster_words(asked)])
    changes: dict[str, Any] = {"run_dir": asked.run_dir, "seed": asked.seed, "max_minutes": asked.max_minutes}
    if run.train.runtime == "ray":
        changes["cluster"] = run.train.cluster.model_copy(update=cluster_changes(asked))
    settings = run.train.model_copy(update={k: v for k, v in changes.items() if v is not None})
    if asked.dry_run:
        from trimtab.cli.console import plain_console
        from trimtab.cli.dry_run import show_plan

        show_plan(settings, run.build_recipe(), plain_console())
        return
    recipe = run.build_recipe()
    if asked.ranks > 1 and not in_rank() and settings.runtime != "ray":
        start_ranks(asked.ranks)
    from trimtab.train import train

    origin = run.model_dump(mode="json", include={"recipe", "signal", "off_policy_correction"}, exclude_unset=True)
    summary = train(settings, recipe, quiet=asked.quiet, origin={"recipe": run.recipe, **origin})
    _exit_if_stopped(summary)
    if asked.twin:
        _train_control(settings, recipe, summary, asked.quiet)


def cluster_words(asked: Asked) -> list[str]:
    """Overrides that --cluster stands for: it makes Ray the runtime."""
    if asked.cluster is None:
        return []
    return ["train.runtime=ray", *(f"train.cluster.{name}={value}" for name, value in cluster_changes(asked).items())]


def cluster_changes(asked: Asked) -> dict[str, Any]:
    """Settings of [train.cluster] that --cluster and --ranks name."""
    named: dict[str, Any] = {} if asked.cluster is None else {"address": asked.cluster}
    return named | ({"ranks": asked.ranks} if asked.ranks > 1 else {})


def _train_control(settings: Any, recipe: Any, summary: Any, quiet: bool) -> None:
    """Train the control run, the same run without correction, and print both accuracies."""
    from trimtab.train.study.twin import train_twin

    quiet = quiet or not is_first()
    if not quiet:
        print("control run: the same run without correction ...", flush=True)
    twin = train_twin(settings, recipe, summary)
    pair = f"{twin.held_out_accuracy:.3f} without correction, {summary.held_out_accuracy:.3f} with"
    if is_first():
        print(f"control run: held-out accuracy {pair} correction")
    if not quiet:
        print(f"report  {summary.run_dir / 'report.html'} shows both runs", flush=True)
    _exit_if_stopped(twin)


def _resume(asked: Asked) -> None:
    from trimtab.train import resume

    given = {"run_file": asked.run_file, "--run-dir": asked.run_dir, "--seed": asked.seed}
    extra = [name for name, value in given.items() if value is not None]
    if extra or asked.dry_run or asked.twin:
        named = ", ".join([*extra, *(["--dry-run"] if asked.dry_run else []), *(["--twin"] if asked.twin else [])])
        raise ConfigError(f"train: --resume goes on with a run as it is, so {named} cannot be given. Leave it out.")
    changes: dict[str, object] = dict(_changed(asked.overrides))
    if asked.max_minutes is not None:
        changes["max_minutes"] = asked.max_minutes
    assert asked.resume is not None
    is_ray = _resume_cluster(asked, asked.resume, changes)
    if asked.ranks > 1 and not in_rank() and not is_ray:
        start_ranks(asked.ranks)
    summary = resume(
        asked.resume,
        changes=changes,
        last_good=asked.last_good,
        accept_changes=asked.accept_changes,
        start_over=asked.start_over,
        trust=asked.trust,
        quiet=asked.quiet,
    )
    _exit_if_stopped(summary)


def _resume_cluster(asked: Asked, folder: Path, changes: dict[str, object]) -> bool:
    """Whether the run is one of a cluster. Which cluster, and on how many ranks, may change with each resume."""
    from trimtab.train.record.identity import read_identity

    config = read_identity(folder).config
    if config.get("runtime") != "ray":
        if asked.cluster is not None:
            raise ConfigError(
                f"train: {folder} was started with runtime {config.get('runtime')!r}, so it cannot go on with "
                "--cluster. Leave it out; a run that is started with --cluster can."
            )
        return False
    if cluster_changes(asked):
        changes["cluster"] = {**config.get("cluster", {}), **cluster_changes(asked)}
    return True


LEARNED_NOTHING = 3
"""Exit code of a run that did all its steps, and every gradient was 0."""


def _exit_if_stopped(summary: "Summary") -> None:
    """Exit with 128 + signal, as shells, Slurm and Kubernetes expect it, or with 3 if nothing was learned.

    `nonfinite` and `diverged` do not come here: they raise an error, and every error exits with 2.
    """
    from trimtab.train.interrupt import exit_code

    if summary.outcome == "learned_nothing":
        raise typer.Exit(LEARNED_NOTHING)
    if summary.outcome == "interrupted":
        raise typer.Exit(exit_code(summary.stopped_by or "SIGINT"))


def _changed(overrides: list[str]) -> dict[str, Any]:
    """The [train] settings that overrides name. Nothing else can change when a run is resumed."""
    if not overrides:
        return {}
    given = load_run(None, overrides)
    other = sorted(given.model_fields_set - {"train"})
    if other:
        raise ConfigError(f"resume: {other[0]} cannot change in the middle of a run. Start a new run for that.")
    return given.train.model_dump(mode="json", include=given.train.model_fields_set)


def _not_a_file(name: str) -> str:
    if name in names():
        return f"{name}: there is no such file; to train this recipe, write recipe={name}."
    if name.split(".")[0] in RunFile.model_fields:
        return f"{name}: there is no such file; to change a setting, write {name}=VALUE."
    return f"{name}: there is no such file. Name a TOML run file."

"""`trimtab train`: from a run file and options to a run."""

from pathlib import Path
from typing import Any

import typer

from trimtab.config import RunFile, load_run
from trimtab.errors import ConfigError
from trimtab.signal import names

INTERRUPTED = 130
"""What a shell reports of a process that Ctrl-C ended."""


def run_training(
    run_file: Path | None, overrides: list[str], run_dir: Path | None, seed: int | None, quiet: bool
) -> None:
    """Read, resolve, train; options on the command line win over the file."""
    from trimtab.train import train

    if run_file is not None and not run_file.exists():
        raise ConfigError(_not_a_file(str(run_file)))
    run = load_run(run_file, overrides)
    changes: dict[str, Any] = {"run_dir": run_dir, "seed": seed}
    settings = run.train.model_copy(update={k: v for k, v in changes.items() if v is not None})
    summary = train(settings, run.build_recipe(), quiet=quiet)
    if summary.outcome == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _not_a_file(name: str) -> str:
    if name in names():
        return f"{name}: there is no such file; to train this recipe, write recipe={name}."
    if name.split(".")[0] in RunFile.model_fields:
        return f"{name}: there is no such file; to change a setting, write {name}=VALUE."
    return f"{name}: there is no such file. Name a TOML run file."

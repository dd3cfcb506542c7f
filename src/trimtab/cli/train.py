"""`trimtab train`: from a run file and options to a run."""

from pathlib import Path
from typing import Any

from trimtab.config import load_run


def run_training(
    run_file: Path | None, overrides: list[str], run_dir: Path | None, seed: int | None, quiet: bool
) -> None:
    """Read, resolve, train; options on the command line win over the file."""
    from trimtab.train import train

    run = load_run(run_file, overrides)
    changes: dict[str, Any] = {"run_dir": run_dir, "seed": seed}
    settings = run.train.model_copy(update={k: v for k, v in changes.items() if v is not None})
    train(settings, run.build_recipe(), quiet=quiet)

"""`trimtab init`: a run file with every setting, its default and what it means."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trimtab.config import RunFile
from trimtab.config.train import TrainSettings
from trimtab.errors import ConfigError, unknown_name
from trimtab.signal import names

HEAD = """\
# A run of trimtab: what is learned from, and how it is trained.
#   trimtab explain {name}            what will run, formula by formula, with sources
#   trimtab train {name} --dry-run    the same, with an estimate of memory and time
#   trimtab train {name}              the run
# Every setting is here with its default. A line that begins with "#" and a key is switched off: take the sign away and
# change the value. What stays switched off follows the defaults, also where they depend on other settings.

{recipe}   # trimtab catalog lists them

[signal]
# Fields of the recipe that are your own: not_ended = "suppress", loss.band = [0.8, 1.3], …

[off_policy_correction]
# SkyRL's block, key for key: docs/off_policy_correction.md
"""


def write_run_file(path: Path, recipe: str) -> None:
    """Write it; a file that is there stays as it is."""
    if recipe and recipe not in names():
        raise ConfigError(unknown_name("recipe", recipe, list(names())))
    if path.suffix != ".toml":
        raise ConfigError(f"init: {path} does not end in .toml, so no command would read it. Name it {path.stem}.toml.")
    try:
        with path.open("x", encoding="utf-8") as file:
            _ = file.write(run_file_text(path.name, recipe))
    except FileExistsError as error:
        raise ConfigError(
            f"init: {path} is already there, so it is left as it is. Give another name, or delete it."
        ) from error
    except OSError as error:
        raise ConfigError(f"init: {path} cannot be written ({error.strerror}). Give another place.") from error
    print(f"wrote   {path}\nnext    trimtab train {path} --dry-run")


def run_file_text(name: str, recipe: str) -> str:
    """The whole file. It sets the recipe that was asked for and nothing else."""
    line = f"recipe = {json.dumps(recipe)}" if recipe else f"#recipe = {json.dumps(RunFile().recipe)}"
    return HEAD.format(name=name, recipe=line) + "\n" + _table("train", TrainSettings())


def _table(name: str, settings: BaseModel) -> str:
    """One table and the tables in it, each key under its sentence."""
    lines = [f"[{name}]"]
    tables: list[str] = []
    for key, field in type(settings).model_fields.items():
        value = getattr(settings, key)
        if isinstance(value, BaseModel) and key != "early_stop":
            tables.append(_table(f"{name}.{key}", value))
            continue
        lines.append(f"# {field.description}")
        lines.append(f"#{key} = …" if value is None else f"#{key} = {_toml(value)}")
    return "\n".join(lines) + "\n\n" + "".join(tables)


def _toml(value: Any) -> str:
    if isinstance(value, BaseModel):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.model_dump().items()) + " }"
    if isinstance(value, dict):
        return "{}" if not value else "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(inner) for inner in value) + "]"  # pyright: ignore[reportUnknownVariableType]
    return json.dumps(str(value) if isinstance(value, Path) else value)

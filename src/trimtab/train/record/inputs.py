"""The only place that knows which files outside of its folder a run depends on: data, tokenizer, the user's code.

Their hashes are in the run's record, so that a run never goes on with other files unless told to. Nothing is imported
here: a run folder that came from elsewhere may name code that nobody has looked at.
"""

import hashlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, cast

from trimtab.config.train import TrainSettings
from trimtab.errors import CheckpointError, ConfigError
from trimtab.signal import Recipe
from trimtab.signal.catalogue import STAGES, Formula

Inputs = dict[str, dict[str, str]]
"""By setting: what it names, and the hash of the file behind it ("" where there is none to look at)."""
MODEL_FILES = (".json", ".txt", ".model", ".jinja")
"""Files of a model folder that are read again on a resume: config and tokenizer. The checkpoint has the parameters."""


def hash_inputs(settings: TrainSettings, origin: Mapping[str, object] | None, recipe: Recipe | None = None) -> Inputs:
    """Every file that a run reads again when it is resumed, with its hash now.

    A recipe that was made in Python has no origin that names its formulas: then the recipe itself does.
    """
    task = settings.task
    files = {"train.task.file": task.file, "train.task.eval_file": task.eval_file}
    found: Inputs = {
        key: {"named": str(path), "sha256": _hash(Path(path))} for key, path in files.items() if path is not None
    }
    for key, name in named_code(settings, origin).items():
        found[key] = {"named": name, "sha256": _hash(source_of(name))}
    if not origin and recipe is not None:
        for formula in _own_formulas(recipe):
            file = inspect.getsourcefile(inspect.unwrap(formula.fn))
            named = f"{formula.fn.__module__}.{formula.fn.__qualname__}"
            found[f"formula {formula.name}"] = {"named": named, "sha256": _hash(Path(file) if file else None)}
    if settings.model.path is not None:
        for path in sorted(settings.model.path.glob("*")):
            if path.is_file() and path.suffix in MODEL_FILES:
                found[f"train.model.path {path.name}"] = {"named": str(path), "sha256": _hash(path)}
    return found


def changed_inputs(before: Inputs, now: Inputs) -> Inputs:
    """What differs: for each setting, the file that it names, the hash before and the hash now."""
    return {
        key: {
            "named": (now.get(key) or before[key])["named"],
            "before": before.get(key, {}).get("sha256", ""),
            "now": now.get(key, {}).get("sha256", ""),
        }
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    }


def refuse_changed(changed: Inputs) -> None:
    """Refuse changed files: with other data or another reward it is another run, and its record would not say so."""
    if not changed:
        return
    key, one = next(iter(changed.items()))
    others = f", and {len(changed) - 1} more ({', '.join(list(changed)[1:4])})" if len(changed) > 1 else ""
    raise CheckpointError(
        f"resume: {one['named']} ({key}) is not what the run was started with: sha256 {_short(one['before'])} then, "
        f"{_short(one['now'])} now{others}. The rest of the run would learn from other files than its record says. "
        "Put the file back; or add --accept-changes, and the change is written to manifest.json."
    )


def named_code(settings: TrainSettings, origin: Mapping[str, object] | None) -> dict[str, str]:
    """Code outside of trimtab that a run imports, by the setting that names it."""
    named = {"train.task.reward": settings.task.reward, "train.task.name": settings.task.name}
    named |= {"train.engine.name": settings.engine.name, **{f"train.log_to {one}": one for one in settings.log_to}}
    code = {key: name for key, name in named.items() if ":" in name}
    return code | named_formulas(origin)


def named_formulas(origin: Mapping[str, object] | None) -> dict[str, str]:
    """Formulas outside of trimtab that a run's recipe is made of, by the setting that names them."""
    return dict(_formulas("signal", (origin or {}).get("signal")))


def refuse_code(code: Mapping[str, str], where: str, folder: Path) -> None:
    """Refuse a run that another user or machine started, and name the code that it would import."""
    if not code:
        return
    listed = ", ".join(f"{name} ({key})" for key, name in code.items())
    raise ConfigError(
        f"{where}: {folder} names code that would run on this machine with your rights: {listed}. A run folder from "
        "somebody else can name anything. Look at the code, then add --trust."
    )


def source_of(name: str) -> Path | None:
    """The file behind `file.py:function`, `module:function` or `module.function`, found without importing anything."""
    place, colon, _ = name.rpartition(":")
    if place.endswith(".py"):
        return Path(place)
    parts = (place if colon else name.rpartition(".")[0]).split(".")
    path: list[str] = [*sys.path, os.getcwd()]
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        if count == len(parts):
            return Path(spec.origin) if spec.origin and Path(spec.origin).is_file() else None
        path = list(spec.submodule_search_locations or [])
    return None


def _formulas(key: str, table: object) -> Iterator[tuple[str, str]]:
    """Dotted paths among a signal table's values; names of the catalogue have no dot, or begin with their stage."""
    if isinstance(table, Mapping):
        for name, value in cast("Mapping[str, Any]", table).items():
            yield from _formulas(f"{key}.{name}", value)
    elif isinstance(table, list | tuple):
        for place, value in enumerate(cast("list[Any]", table)):
            yield from _formulas(f"{key}.{place}", value)
    elif isinstance(table, str) and (":" in table or ("." in table and table.partition(".")[0] not in STAGES)):
        yield key, table


def _own_formulas(value: object) -> Iterator[Formula]:
    """Formulas outside of trimtab, wherever in a recipe they are."""
    if isinstance(value, Formula):
        if value.fn.__module__.partition(".")[0] != "trimtab":
            yield value
    elif is_dataclass(value):
        for one in fields(value):
            yield from _own_formulas(getattr(value, one.name))
    elif isinstance(value, tuple):
        for one in cast("tuple[object, ...]", value):
            yield from _own_formulas(one)


def _hash(path: Path | None) -> str:
    try:
        return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""  # the code that needs the file reports what is wrong with it


def _short(digest: str) -> str:
    return f"{digest[:12]}…" if digest else "(no file)"

"""The only place that sends files to nodes that do not see this disk: bytes by name, and settings that name the copies.

A parcel is a message like any other (`rollout/wire.py`); a file is a tensor of bytes. What a setting names as a module
is not sent: it must be installed where it runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from trimtab.config.train import TrainSettings

MODEL = "model"


def folder_bytes(folder: Path, under: str, pattern: str = "*") -> dict[str, Tensor]:
    """Every file of a folder with such a name, by its path in it."""
    paths = [path for path in sorted(folder.rglob(pattern)) if path.is_file()]
    return {f"{under}/{path.relative_to(folder).as_posix()}": _bytes(path) for path in paths}


def file_bytes(path: Path) -> Tensor:
    """One file."""
    return _bytes(path)


def settings_bytes(settings: "TrainSettings") -> dict[str, Tensor]:
    """The files that settings name, except the model: data, and code in a file of its own."""
    return {f"{key}/{path.name}": _bytes(path) for key, path in _named(settings).items()}


def model_bytes(settings: "TrainSettings") -> dict[str, Tensor]:
    """The model folder that settings name, if they do."""
    return {} if settings.model.path is None else folder_bytes(settings.model.path, MODEL)


def write_parcel(parcel: Mapping[str, Tensor], folder: Path) -> None:
    """Put every file where `settings_here` looks for it."""
    for name, content in parcel.items():
        path = folder / name
        if folder.resolve() not in path.resolve().parents:
            raise ConfigError(f"parcel: {name!r} would be written outside of {folder}, so it is refused.")
        path.parent.mkdir(parents=True, exist_ok=True)
        _ = path.write_bytes(content.numpy().tobytes())


def settings_here(settings: "TrainSettings", folder: Path) -> "TrainSettings":
    """The same settings, with the files of a parcel that was written to `folder`."""
    task: dict[str, object] = {}
    engine: dict[str, object] = {}
    for key, path in _named(settings).items():
        place, name = folder / key / path.name, key.rpartition(".")[2]
        if key.startswith("engine"):
            engine[name] = _renamed(settings.engine.name, place)
        else:
            given = getattr(settings.task, name)
            task[name] = _renamed(given, place) if isinstance(given, str) else place
    model = {} if settings.model.path is None else {"path": folder / MODEL}
    return settings.model_copy(
        update={
            "task": settings.task.model_copy(update=task),
            "model": settings.model.model_copy(update=model),
            "engine": settings.engine.model_copy(update=engine),
        }
    )


def _named(settings: "TrainSettings") -> dict[str, Path]:
    """Files that settings name, by setting: data, and code in a file of its own (`file.py:function`)."""
    task = settings.task
    data = {"task.file": task.file, "task.eval_file": task.eval_file}
    code = {"task.reward": task.reward, "task.name": task.name, "engine.name": settings.engine.name}
    found = {key: Path(path) for key, path in data.items() if path is not None}
    places = {key: name.rpartition(":")[0] for key, name in code.items()}
    return found | {key: Path(place) for key, place in places.items() if place.endswith(".py")}


def _renamed(name: str, place: Path) -> str:
    return f"{place}:{name.rpartition(':')[2]}"


def _bytes(path: Path) -> Tensor:
    content = path.read_bytes()
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.zeros(0, dtype=torch.uint8)

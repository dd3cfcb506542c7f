"""The only place that puts a version where a server can read it: a folder of safetensors, whole or absent.

The folder is written under a hidden name, put on the disk, read back and compared with the publisher's checksum, and
then renamed. A server is never told of a name that could hold half a version. It knows no server.
"""

import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trimtab.errors import DiskError, EngineError, StaleWeights
from trimtab.rollout.adapter import WEIGHTS_FILE as ADAPTER_FILE
from trimtab.rollout.adapter import Adapter, read_adapter
from trimtab.rollout.publication import Publication
from trimtab.rollout.weights import digest

WEIGHTS_FILE = "model.safetensors"
BESIDE = ("*.json", "*.jinja", "*.txt", "*.model")
"""What lies beside the weights of a model folder and a server may want: config, tokenizer, chat template."""
INDEX_FILE = "model.safetensors.index.json"
"""Names the files of other weights; ours are one file."""


@dataclass(frozen=True)
class Held:
    """What a server is told to hold: the folder of a model, and the folder of an adapter beside it, if there is one."""

    model: Path
    adapter: Path | None = None

    @property
    def paths(self) -> set[Path]:
        return {self.model} if self.adapter is None else {self.model, self.adapter}


@dataclass(frozen=True)
class Place:
    """A folder for versions. Each is a model folder of its own: `version_000007`, or an adapter's: `adapter_000007`.

    `model` is a folder whose config and tokenizer every version gets. Its parameters are those that adapters lie
    beside; where whole versions are published they are not read. `seen_as` is the name of `folder` on the server's
    machine, where it is another (a container, a network disk).
    """

    folder: Path
    model: Path
    seen_as: str = ""
    keep: int = 2
    """Versions that stay: the one in use, and the one before it, which a proof compares with."""

    def put(self, publication: Publication, name: str = "") -> Path:
        """Write one version, and return its folder. What is there under its name is replaced."""
        return self._write(name or f"version_{publication.version:06d}", lambda draft: self._fill(draft, publication))

    def put_base(self, publication: Publication) -> Path:
        """Write the model beneath an adapter, once for all of its versions, after a look at whether it is the one."""
        base = _whole_state(self.model)
        _check_base(self.model, base, publication)
        return self.put(Publication(publication.version, base), "base")

    def put_adapter(self, version: int, adapter: Adapter, name: str = "") -> Path:
        """Write one version's adapter, and nothing else of it."""

        def fill(draft: Path) -> None:
            adapter.write(draft)
            _settle(draft, draft / ADAPTER_FILE)
            _check_written(version, read_adapter(draft).digest, adapter.digest)

        return self._write(name or f"adapter_{version:06d}", fill)

    def _write(self, name: str, fill: Callable[[Path], None]) -> Path:
        path = (self.folder / name).absolute()
        draft = path.with_name(f".{path.name}.draft")
        with _disk(path):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            try:
                fill(draft)
                shutil.rmtree(path, ignore_errors=True)
                os.replace(draft, path)
                _sync(path.parent)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        return path

    def seen(self, path: Path) -> str:
        """The name under which the server finds a folder of this place."""
        return f"{self.seen_as.rstrip('/')}/{path.name}" if self.seen_as else str(path)

    def tidy(self, *, keep: set[Path]) -> None:
        """Remove all but the newest versions, and those that are still needed."""
        for kind in ("version_*", "adapter_*"):
            versions = sorted(self.folder.absolute().glob(kind))
            for path in versions[: -self.keep]:
                if path not in keep:
                    shutil.rmtree(path, ignore_errors=True)

    def _fill(self, draft: Path, publication: Publication) -> None:
        from safetensors.torch import save_file

        if not (self.model / "config.json").is_file():
            raise EngineError(
                f"publish: {self.model} holds no config.json, so a server could not read the parameters beside it. "
                "Give the model folder that the server was started with."
            )
        for pattern in BESIDE:
            for source in self.model.glob(pattern):
                if source.name != INDEX_FILE:
                    _ = shutil.copyfile(source, draft / source.name)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in publication.state.items()}
        save_file(state, draft / WEIGHTS_FILE, metadata={"format": "pt"})
        _settle(draft, draft / WEIGHTS_FILE)
        _check_written(publication.version, digest(read_state(draft)), publication.digest)


def _settle(draft: Path, weights: Path) -> None:
    os.chmod(weights, 0o644)  # safetensors writes for the owner alone; a server may be another user
    for file in draft.iterdir():
        _sync(file)
    _sync(draft)


def _check_written(version: int, found: str, wanted: str) -> None:
    if found != wanted:
        raise StaleWeights(
            f"publish: version {version} was written with the checksum {found[:16]}… and its publisher says "
            f"{wanted[:16]}…, so it changed while it was written. Publish a copy (Publication.copy), which no training "
            "step changes."
        )


def _check_base(folder: Path, base: Mapping[str, Tensor], publication: Publication) -> None:
    """The published parameters are those of the folder with the adapter in them; otherwise it is another model's."""
    import torch

    assert publication.adapter is not None
    lost = [name for name, _, _ in publication.adapter.pairs() if name not in base or name not in publication.state]
    merged = {} if lost else publication.adapter.merged(base)
    for name in lost or (one for one in publication.state if one in merged):
        wanted = publication.state[name].detach().cpu() if name in publication.state else None
        if wanted is not None and name in merged and wanted.shape == merged[name].shape:
            largest = float(wanted.abs().max()) if wanted.numel() else 0.0
            off = float((merged[name].float() - wanted.float()).abs().max()) if wanted.numel() else 0.0
            if not wanted.is_floating_point() or off <= 4 * torch.finfo(wanted.dtype).eps * max(largest, 1.0):
                continue
        raise EngineError(
            f"publish: {name} in {folder} is not what version {publication.version} has beneath its adapter, so a "
            "server would compute with another model. Give the folder of the model that the adapter is trained beside: "
            "as it was when training began, after a warm start."
        )


def read_state(folder: Path) -> dict[str, Tensor]:
    """The parameters of a folder, read as they are needed."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / WEIGHTS_FILE)
    except (SafetensorError, OSError) as error:
        raise StaleWeights(
            f"publish: {folder / WEIGHTS_FILE} is damaged or cut short ({error}), so no engine may load it. "
            "Publish the version again."
        ) from error


def _whole_state(folder: Path) -> dict[str, Tensor]:
    """The parameters of a model folder that may lie in several files."""
    from safetensors.torch import load_file

    if not (folder / INDEX_FILE).is_file():
        return read_state(folder)
    named = json.loads((folder / INDEX_FILE).read_text(encoding="utf-8"))["weight_map"]
    return {name: tensor for file in sorted(set(named.values())) for name, tensor in load_file(folder / file).items()}


def decoy(state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """Parameters that are near `state` and are not it: each matrix moved by `scale` of its own spread."""
    import torch

    random = torch.Generator().manual_seed(0)
    moved: dict[str, Tensor] = {}
    for name in sorted(state):
        values = state[name].detach().cpu()
        if values.is_floating_point() and values.ndim > 1:
            noise = torch.randn(values.shape, generator=random)
            values = (values.float() + scale * values.float().std() * noise).to(values.dtype)
        moved[name] = values
    return moved


@contextmanager
def _disk(path: Path) -> Generator[None]:
    """Turn a refusal of the system into one sentence. safetensors is written in Rust and hides its own in a text."""
    try:
        yield
    except OSError as error:
        raise DiskError(_refusal(path, error.strerror or str(error))) from error
    except Exception as error:
        if "(os error " not in str(error):
            raise
        raise DiskError(_refusal(path, str(error))) from error


def _refusal(path: Path, why: str) -> str:
    return (
        f"publish: {path} cannot be written ({why}), so no engine was told of this version and all go on with the one "
        "before. Make room there, or give another folder."
    )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""The only place that puts a version where a server can read it: a folder of safetensors, whole or absent.

The folder is written under a hidden name, put on the disk, read back and compared with the publisher's checksum, and
then renamed. A server is never told of a name that could hold half a version. It knows no server.
"""

import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from trimtab.errors import DiskError, EngineError, StaleWeights
from trimtab.rollout.publication import Publication
from trimtab.rollout.weights import digest

WEIGHTS_FILE = "model.safetensors"
BESIDE = ("*.json", "*.jinja", "*.txt", "*.model")
"""What lies beside the weights of a model folder and a server may want: config, tokenizer, chat template."""
INDEX_FILE = "model.safetensors.index.json"
"""Names the files of other weights; ours are one file."""


@dataclass(frozen=True)
class Place:
    """A folder for versions. Each is a model folder of its own: `version_000007`.

    `model` is a folder whose config and tokenizer every version gets. `seen_as` is the name of `folder` on the server's
    machine, where it is another (a container, a network disk).
    """

    folder: Path
    model: Path
    seen_as: str = ""
    keep: int = 2
    """Versions that stay: the one in use, and the one before it, which a proof compares with."""

    def put(self, publication: Publication, name: str = "") -> Path:
        """Write one version, and return its folder. What is there under its name is replaced."""
        path = (self.folder / (name or f"version_{publication.version:06d}")).absolute()
        draft = path.with_name(f".{path.name}.draft")
        with _disk(path):
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
            try:
                self._fill(draft, publication)
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
        versions = sorted(self.folder.absolute().glob("version_*"))
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
        os.chmod(draft / WEIGHTS_FILE, 0o644)  # safetensors writes for the owner alone; a server may be another user
        for file in draft.iterdir():
            _sync(file)
        _sync(draft)
        if (found := digest(read_state(draft))) != publication.digest:
            raise StaleWeights(
                f"publish: version {publication.version} was written with the checksum {found[:16]}… and its publisher "
                f"says {publication.digest[:16]}…, so it changed while it was written. Publish a copy "
                "(Publication.copy), which no training step changes."
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

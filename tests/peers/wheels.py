"""Released wheels of other frameworks: the only place that downloads, verifies and unpacks one.

A wheel is fetched once with `pip download --no-deps`, checked against its sha256 and unpacked into a cache folder. It
is never installed: nobody's environment changes, and only the child process of `peer.py` can import it.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wheel:
    """skyrl 0.3.0 is the file skyrl-0.3.0-py3-none-any.whl with this sha256."""

    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}-py3-none-any.whl"


SKYRL = Wheel("skyrl", "0.3.0", "0110e9434a58d6eb2aa533dd06e6346c8303757800af3c2b5a0d3f341cbad414")
VERL = Wheel("verl", "0.9.1", "db6e6f2a8d9d5808d9ec32d357a42319fdc6967df688ff9d9810050f49bfdd14")


class WheelError(Exception):
    """The wheel is neither in the cache nor to be had."""


def cache() -> Path:
    """TRIMTAB_CACHE, or the user's cache folder."""
    chosen = os.environ.get("TRIMTAB_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen) if chosen else home / "trimtab") / "peers"


def unpacked(wheel: Wheel) -> Path:
    """The folder with the wheel's contents, fetched if need be."""
    root = cache()
    folder = root / f"{wheel.name}-{wheel.version}-{wheel.sha256[:12]}"
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            path = _fetched(wheel, root, Path(scratch))
            fresh = Path(scratch) / "unpacked"
            with zipfile.ZipFile(path) as archive:
                archive.extractall(fresh)
            # Two test processes may get here at once: a rename is all or nothing, and the second one's is not needed.
            try:
                fresh.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder


def _fetched(wheel: Wheel, root: Path, scratch: Path) -> Path:
    path = root / wheel.file
    if not path.is_file():
        if os.environ.get("TRIMTAB_OFFLINE") == "1":
            raise WheelError(f"{wheel.file} is not in the cache and TRIMTAB_OFFLINE=1 forbids fetching it")
        _download(wheel, scratch)
        (scratch / wheel.file).replace(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wheel.sha256:
        path.unlink()
        raise WheelError(
            f"{wheel.file} has sha256 {found}, not {wheel.sha256}, so it is not the release these tests were written "
            "for. It was deleted from the cache; run again, and if this repeats, find out who serves another file."
        )
    return path


def _download(wheel: Wheel, into: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(into), f"{wheel.name}=={wheel.version}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0 or not (into / wheel.file).is_file():
        said = [line for line in result.stderr.splitlines() if line.strip()]
        raise WheelError(
            f"{wheel.file} could not be downloaded ({said[-1] if said else 'pip gave no reason'}), so nothing can be "
            "compared with it. Connect to a package index once, put the wheel into "
            f"{cache()}, or set TRIMTAB_OFFLINE=1 to skip these tests."
        )

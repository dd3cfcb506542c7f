"""Released wheels of other frameworks: the only place that downloads, verifies and unpacks one.

A wheel is fetched once with `pip download --no-deps`, checked against its sha256 and unpacked into a cache folder. It
is never installed, so no environment changes. The unpacked files are compared with the wheel's own record at every use.
The lock file next to this one lists the known releases.
"""

import base64
import csv
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trimtab.errors import AdapterError, unknown_name

_PURE = "py3-none-any"


class WheelError(AdapterError):
    """The wheel is not in the cache and cannot be fetched."""


@dataclass(frozen=True)
class Wheel:
    """skyrl 0.3.0 is the file skyrl-0.3.0-py3-none-any.whl with this sha256."""

    name: str
    version: str
    sha256: str
    tags: str = _PURE

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}-{self.tags}.whl"


@dataclass(frozen=True)
class Unpacked:
    """A wheel as a folder. `note` is not empty if it is not the locked release, or if its copy had been changed."""

    folder: Path
    wheel: Wheel
    is_locked: bool = True
    note: str = ""


@functools.cache
def locked() -> dict[str, Wheel]:
    """The releases of the lock file by name."""
    with (Path(__file__).parent / "wheels.lock.toml").open("rb") as file:
        return {name: Wheel(name, **entry) for name, entry in tomllib.load(file).items()}


def wheel(name: str, *, offline: bool = False, file: Path | None = None) -> Unpacked:
    """Unpack the locked release of a framework, or the user's own file of it."""
    if name not in locked():
        raise WheelError(unknown_name("wheels", name, sorted(locked())))
    if file is None:
        edited = edited_files(_folder(locked()[name]))
        note = f"its unpacked copy was changed, so it was unpacked again: {_few(edited)}" if edited else ""
        return Unpacked(unpack(locked()[name], offline=offline), locked()[name], note=note)
    return _own(locked()[name], Path(file))


def cache() -> Path:
    """TRIMTAB_CACHE, or the user's cache folder."""
    chosen = os.environ.get("TRIMTAB_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(chosen) if chosen else home / "trimtab") / "peers"


def unpack(wheel: Wheel, *, offline: bool = False) -> Path:
    """Return the folder with the contents of the wheel, and fetch or unpack it again if needed."""
    folder = _folder(wheel)
    if not folder.is_dir() or edited_files(folder):
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            file = _fetch(wheel, Path(scratch), offline)
            _set_aside(folder)
            _unpack(file, folder, Path(scratch))
    return folder


def edited_files(folder: Path) -> list[str]:
    """Files of an unpacked wheel that are not what its record says: changed, missing or added."""
    record = next(folder.glob("*.dist-info/RECORD"), None)
    if record is None:
        return []
    known: dict[str, str] = {}
    with record.open(encoding="utf-8", newline="") as file:
        for name, said, _ in csv.reader(file):
            known[re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", name)] = said
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    added = [name for name in found.keys() - known.keys() if "__pycache__" not in name]
    changed = [name for name, said in known.items() if name not in found or not _is_same(found[name], said)]
    return sorted({*added, *changed})


def _is_same(path: Path, said: str) -> bool:
    """Whether a file has the digest of its line in the record. The record itself and signatures have none."""
    kind, _, digest = said.partition("=")
    if kind not in hashlib.algorithms_available:
        return not kind
    return base64.urlsafe_b64encode(hashlib.new(kind, path.read_bytes()).digest()).decode().rstrip("=") == digest


def _set_aside(folder: Path) -> None:
    """Keep a changed copy under another name: somebody may want those changes."""
    if edited_files(folder):  # another process may have unpacked it again by now
        kept = folder.with_name(f"{folder.name}.changed")
        shutil.rmtree(kept, ignore_errors=True)
        folder.rename(kept)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _folder(wheel: Wheel) -> Path:
    return cache() / f"{wheel.name}-{wheel.version}-{wheel.sha256[:12]}"


def _own(known: Wheel, file: Path) -> Unpacked:
    named = re.fullmatch(r"(?P<name>[^-]+)-(?P<version>[^-]+)-(?P<tags>.+)\.whl", file.name)
    if not file.is_file() or not named:
        raise WheelError(
            f"{file}: not a wheel file, so nothing can be read from it. Give a name-version-tags.whl file."
        )
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    own = Wheel(named["name"].lower(), named["version"], found, named["tags"])
    if own.name != known.name:
        raise WheelError(f"{file.name} is a wheel of {own.name}, not of {known.name}. Name the target it belongs to.")
    if not _folder(own).is_dir() or edited_files(_folder(own)):
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            _set_aside(_folder(own))
            _unpack(file, _folder(own), Path(scratch))
    same = found == known.sha256
    note = "" if same else f"{file.name} (sha256 {found[:12]}…) is not the locked release {known.file}"
    return Unpacked(_folder(own), own, same, note)


def _unpack(file: Path, folder: Path, scratch: Path) -> None:
    fresh = scratch / "unpacked"
    try:
        with zipfile.ZipFile(file) as archive:
            _check_members(file.name, archive)
            archive.extractall(fresh)
    except zipfile.BadZipFile as error:
        raise WheelError(
            f"{file.name} is not a zip archive ({error}), so it is not a wheel. Fetch it again."
        ) from error
    # An installer moves name.data/purelib to site-packages. A wheel with platform tags may keep its code there.
    for kind in ("purelib", "platlib"):
        for spread in fresh.glob(f"*.data/{kind}"):
            shutil.copytree(spread, fresh, dirs_exist_ok=True)
            shutil.rmtree(spread)
    # Two processes may get here at once. A rename is atomic, and the second one is not needed.
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _check_members(name: str, archive: zipfile.ZipFile) -> None:
    for member in archive.infolist():
        path = PurePosixPath(member.filename.replace("\\", "/"))
        is_link = (member.external_attr >> 16) & 0o170000 == 0o120000
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0] or is_link:
            raise WheelError(f"{name} holds {member.filename!r}, which leaves its folder, so it was not unpacked.")


def _fetch(wheel: Wheel, scratch: Path, offline: bool) -> Path:
    path = cache() / wheel.file
    if not path.is_file():
        if offline or os.environ.get("TRIMTAB_OFFLINE") == "1":
            what = "--offline" if offline else "TRIMTAB_OFFLINE=1"
            raise WheelError(
                f"{wheel.file} is not in the cache and {what} forbids fetching it. "
                f"Run once with a package index, or put the file into {cache()}."
            )
        _download(wheel, scratch)
        (scratch / wheel.file).replace(path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != wheel.sha256:
        path.unlink()
        raise WheelError(
            f"{wheel.file} has sha256 {found}, not {wheel.sha256}, so it is not the release these checks were written "
            "for. It was deleted from the cache; run again. If this repeats, find out which server sends that file."
        )
    return path


def _download(wheel: Wheel, into: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    # A wheel is read and never installed, so the Python versions that it requires do not matter.
    command += ["--only-binary=:all:", "--ignore-requires-python"]
    command += ["--dest", str(into), f"{wheel.name}=={wheel.version}"]
    if wheel.tags != _PURE:  # pip would choose the wheel for the running Python, which has another hash
        python, abi, platform = wheel.tags.split("-")
        command += [
            "--implementation",
            python[:2],
            "--python-version",
            python[2:],
            "--abi",
            abi,
            "--platform",
            platform,
        ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0 or not (into / wheel.file).is_file():
        said = [line for line in result.stderr.splitlines() if line.strip()]
        raise WheelError(
            f"{wheel.file} could not be downloaded ({said[-1] if said else 'pip gave no reason'}), so nothing can be "
            "compared with it. Connect to a package index once, put the wheel into "
            f"{cache()}, or set TRIMTAB_OFFLINE=1 to skip these tests."
        )

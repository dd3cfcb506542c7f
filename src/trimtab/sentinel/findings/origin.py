"""Which code it was: the only place that names the release or the commit of a target."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from trimtab.sentinel.examination.wheels import cache, locked
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.replay import commit_of
from trimtab.sentinel.loading.tree import CouldNotLoad, Tree, git


@dataclass(frozen=True)
class Origin:
    """A release (name, version, sha256 of its wheel), a commit, or else the sha256 of the file."""

    name: str = ""
    version: str = ""
    wheel_sha256: str = ""
    commit: str = ""
    is_changed: bool = False
    file_sha256: str = ""

    def __str__(self) -> str:
        """`skyrl==0.3.0`, a commit (with `+changed`), or `file:1a2b3c4d5e6f`."""
        if self.commit:
            return self.commit + ("+changed" if self.is_changed else "")
        if self.version:
            return f"{self.name}=={self.version}"
        return f"file:{self.file_sha256[:12]}" if self.file_sha256 else "unknown"

    @property
    def words(self) -> str:
        """The same for a person."""
        if self.commit:
            return f"commit {self.commit}" + (", with changes that are not committed" if self.is_changed else "")
        if self.version:
            wheel = f" (wheel, sha256 {self.wheel_sha256})" if self.wheel_sha256 else ""
            return f"release {self.name} {self.version}{wheel}"
        return f"a file without git history, sha256 {self.file_sha256}" if self.file_sha256 else "unknown code"

    def as_data(self) -> Data:
        told = {name: value for name, value in asdict(self).items() if value}
        return told | {"is_changed": self.is_changed and bool(self.commit), "words": self.words}


def origin_of(tree: Tree, file: str) -> Origin:
    """The commit of a checkout; the release of an unpacked or installed wheel; else the content of the file."""
    if tree.commit:
        return Origin(commit=tree.commit)
    release = _release(tree.root, file)
    if release is not None:
        return release
    head, _, changed = commit_of(tree, file).partition("+")
    if head != "unknown":
        return Origin(commit=head, is_changed=bool(changed))
    return Origin(commit=_head(tree, file), is_changed=True, file_sha256=_digest(tree.root / file))


def _head(tree: Tree, file: str) -> str:
    """The commit around a file that git does not track; empty without git, or where git ignores the file."""
    try:
        head = git(tree.root, "rev-parse", "HEAD").decode().strip()
        return "" if git(tree.root, "status", "--porcelain", "--ignored", "--", file).startswith(b"!!") else head
    except (CouldNotLoad, OSError):
        return ""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _release(root: Path, file: str) -> Origin | None:
    """The distribution whose record names the file."""
    for folder in sorted(root.glob("*.dist-info")):
        found = metadata.PathDistribution(folder)
        told: Mapping[str, str] = found.metadata  # pyright: ignore[reportAssignmentType]
        if any(one.as_posix() == file for one in found.files or ()):
            name = str(told["Name"])
            return Origin(name=name, version=found.version, wheel_sha256=_wheel_digest(root, name))
    return None


def _wheel_digest(root: Path, name: str) -> str:
    """The digest of the wheel, where its folder in our cache tells it."""
    known = locked().get(name.lower().replace("-", "_"))
    short = re.search(r"-([0-9a-f]{12})$", root.name)
    if short is None or root.parent != cache().resolve():
        return ""
    return known.sha256 if known is not None and known.sha256.startswith(short[1]) else f"{short[1]}…"

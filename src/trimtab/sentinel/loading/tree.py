"""The source of a target, and the spec of what to load: the only place that reads files of a target.

A tree is a folder or one commit of a git directory. A spec names one thing in it. Neither runs anything.
"""

import difflib
import functools
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal


class CouldNotLoad(Exception):
    """A name was not found. The message says where it was searched and which names exist."""


def near(name: str, choices: Iterable[str], *, limit: int = 6) -> str:
    """The names closest to one that is missing, for a message.

    >>> near("masked_men", ["masked_mean", "whiten"])
    'there are masked_mean, whiten'
    """
    names = list(dict.fromkeys(choices))
    leaf = {choice: re.split(r"[./]", choice.removesuffix(".py"))[-1].lower() for choice in names}
    wanted = re.split(r"[./]", name.removesuffix(".py"))[-1].lower()
    names.sort(key=lambda choice: -difflib.SequenceMatcher(None, wanted, leaf[choice]).ratio())
    shown = ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
    return f"there are {shown}" if names else "there are none"


def git(root: Path, *arguments: str) -> bytes:
    """The output of git in a repository or a bare git directory."""
    # A hook or an outer git process sets these variables for another repository.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, check=False, env=clean)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CouldNotLoad(f"git {arguments[0]} in {root}: {said[-1] if said else 'failed without a message'}")
    return done.stdout


@functools.lru_cache(maxsize=64)
def _listing(root: Path, commit: str) -> frozenset[str]:
    return frozenset(git(root, "ls-tree", "-r", "-z", "--full-tree", "--name-only", commit).decode().split("\0"))


@functools.lru_cache(maxsize=512)
def _blob(root: Path, commit: str, file: str) -> str:
    return git(root, "show", f"{commit}:{file}").decode("utf-8-sig")


def unpack(archive: bytes, into: Path) -> None:
    """Write the files of a tar archive below a folder; refuse a member that leads out of it or is not a plain file.

    A repository can hold a link to anywhere. Python has a filter for such members since 3.11.4. We check them
    ourselves, so that every Python refuses the same ones with the same sentence.
    """
    root = Path(os.path.realpath(into))
    own_filter: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if (why := _why_unsafe(member, root)) is not None:
                raise CouldNotLoad(f"{member.name!r} in the archive {why}, so nothing more of it is unpacked.")
            tar.extract(member, root, **own_filter)


def _why_unsafe(member: tarfile.TarInfo, root: Path) -> str | None:
    """The problem with a member. It is checked just before the member is written, because earlier links count."""

    def is_outside(*parts: str) -> bool:
        return not Path(os.path.realpath(os.path.join(root, *parts))).is_relative_to(root)

    if is_outside(member.name):
        return "lies outside its folder"
    if member.issym() and is_outside(os.path.dirname(member.name), member.linkname):
        return f"is a link to {member.linkname!r}, outside its folder"
    if member.islnk() and is_outside(member.linkname):
        return f"is a link to {member.linkname!r}, outside its folder"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "is a device or a pipe"
    return None


@dataclass(frozen=True)
class Tree:
    """A folder, or a git directory at one commit: `Tree.folder("slime")`, `Tree.git("slime/.git", "045310b2b")`."""

    root: Path
    commit: str | None = None

    @staticmethod
    def folder(path: Path | str) -> "Tree":
        root = Path(path).resolve()
        if not root.is_dir():
            raise CouldNotLoad(
                f"{path}: no such folder. Give the root of a checkout, the folder that holds the package."
            )
        return Tree(root)

    @staticmethod
    def git(root: Path | str, commit: str = "HEAD") -> "Tree":
        if not Path(root).is_dir():
            raise CouldNotLoad(f"{root}: no such folder. Give a git repository or a bare git directory.")
        full = git(Path(root), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
        return Tree(Path(root).resolve(), full.decode().split()[-1])

    def __str__(self) -> str:
        return self.commit[:9] if self.commit else self.root.name

    def has(self, file: str) -> bool:
        return file in _listing(self.root, self.commit) if self.commit else (self.root / file).is_file()

    def has_folder(self, folder: str) -> bool:
        if not self.commit:
            return (self.root / folder).is_dir()
        return any(file.startswith(f"{folder}/") for file in _listing(self.root, self.commit))

    def files(self) -> list[str]:
        """Every Python file, relative to the root."""
        if self.commit:
            return sorted(file for file in _listing(self.root, self.commit) if file.endswith(".py"))
        return sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*.py"))

    def read(self, file: str) -> str:
        """The text of one file."""
        if not self.has(file):
            leaf = file.rpartition("/")[2]
            same = [other for other in self.files() if other.rpartition("/")[2] == leaf]
            raise CouldNotLoad(f"{file} at {self}: no such file; {near(file, same or self.files())}")
        return _blob(self.root, self.commit, file) if self.commit else (self.root / file).read_text("utf-8-sig")

    def shown(self, file: str) -> str:
        """The name a traceback shows: a path in a folder, commit:path in git."""
        return f"{self.commit[:9]}:{file}" if self.commit else str(self.root / file)

    def extract(self, paths: Iterable[str], into: Path) -> Path:
        """Write these paths of a commit as files, for import. A folder needs nothing."""
        if not self.commit:
            return self.root
        unpack(git(self.root, "archive", "--format=tar", self.commit, "--", *paths), into)
        return into


@dataclass(frozen=True)
class Spec:
    """What to load, as plain data: `Spec("PolicyLoss.forward", file="openrlhf/models/loss.py")`.

    `first` and `last` select statements of the named function; `expression` or `keyword` selects one value in it.
    """

    name: str
    file: str = ""
    or_files: tuple[str, ...] = ()  # other places of the function, tried in order
    module: str = ""  # dotted, for import; else it follows from file and roots
    roots: tuple[str, ...] = ()  # the folders inside the tree that go on sys.path, such as "src"; else its root
    how: Literal["import", "stubs", "cut"] = "cut"
    stubs: tuple[str, ...] = ()  # modules to replace by stubs even if installed; "auto": all that are absent
    bare_packages: tuple[str, ...] = ()  # packages whose __init__ is not run
    first: str = ""
    last: str = ""
    nth: int = 0  # which of several places that fit `first`, counted from 1; 0: there is one
    results: tuple[str, ...] = ()
    expression: str = ""
    keyword: str = ""

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(file for file in (self.file, *self.or_files) if file)

    def as_data(self) -> dict[str, Any]:
        """Only what differs from the defaults, with lists for tuples."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        kept = {name: value for name, value in told.items() if value}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}  # pyright: ignore[reportUnknownArgumentType]

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "Spec":
        known = {field.name for field in fields(Spec)}
        if unknown := sorted(set(data) - known):
            raise CouldNotLoad(f"a spec has no {', '.join(unknown)}; {near(unknown[0], known, limit=20)}")
        told: dict[str, Any] = {
            name: tuple(data[name]) if isinstance(data[name], list) else data[name] for name in data
        }
        return Spec(**told)

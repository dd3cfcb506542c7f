"""A job: what to check, as plain data, and the subjects it stands for.

The only place that turns the name of a target into functions: Trimtab itself, one of its formulas, a ready target (a
released wheel or a checkout at any commit), or your own module.
"""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from trimtab.errors import AdapterError, unknown_name
from trimtab.sentinel.binding.discover import subjects_of
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.wheels import wheel
from trimtab.sentinel.loading import CouldNotLoad, Tree
from trimtab.sentinel.targets.target import Target, Unbound

READY = (
    "areal", "miles", "nemo_rl", "open_instruct", "openrlhf", "prime_rl", "roll", "skyrl", "slime", "trl", "verl",
)  # fmt: skip
"""Frameworks for which we provide bindings."""


@dataclass(frozen=True)
class Job:
    """One examination: the target, its location, and the effort of the search."""

    target: str
    root: str | None = None
    """A folder, or a git directory together with `commit`."""
    commit: str | None = None
    version: str | None = None
    seed: int = 0
    examples: int = 12
    subjects: tuple[str, ...] = ()
    """Names (or labels) of the functions to check; all when empty."""
    invariants: tuple[str, ...] = ()
    lines: Mapping[str, list[list[int]]] | None = None
    """Changed line ranges by file. Only functions in these ranges are checked."""
    findings: str | None = None
    """The folder for reports to maintainers: one subfolder per bug."""
    online: bool = False

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "Job":
        told: dict[str, Any] = {**data, "subjects": tuple(data["subjects"]), "invariants": tuple(data["invariants"])}
        return Job(**told)

    @property
    def tree(self) -> Tree:
        assert self.root is not None
        return Tree.git(self.root, self.commit) if self.commit else Tree.folder(self.root)


def locate(
    target: str, *, path: str | None = None, file: Path | None = None, offline: bool = False
) -> tuple[dict[str, Any], str]:
    """Find a ready target (root, commit, version), and fetch its wheel if needed; return a sentence about it too."""
    name = ready_name(target)
    if name is None:
        return {}, f"{target}: code in this environment"
    if path is not None:
        root, _, commit = path.rpartition("@") if "@" in Path(path).name else (path, "", "")
        try:
            tree = Tree.git(root, commit) if commit else Tree.folder(root)
        except CouldNotLoad as error:
            raise AdapterError(str(error)) from error
        if not commit and not any(tree.root.glob("*.py")) and (tree.root / "HEAD").is_file():
            tree = Tree.git(root)
        where = {"root": str(tree.root), "commit": tree.commit}
        return where, f"{name}: code of {tree.root}" + (f" at {tree.commit[:9]}" if tree.commit else "")
    found = target_of(name)
    if found.wheel is None:
        raise AdapterError(
            f"{name} has no released wheel among our targets. Give a checkout: trimtab check {name} --path DIR, "
            f"or DIR@COMMIT. Its repository is {found.repository}."
        )
    unpacked = wheel(found.wheel, offline=offline, file=file)
    note = f" ({unpacked.note})" if unpacked.note else ""
    return (
        {"root": str(unpacked.folder), "version": unpacked.wheel.version},
        f"{name}: code of the released wheel {unpacked.wheel.name} {unpacked.wheel.version}{note}",
    )


def ready_name(target: str) -> str | None:
    """The ready target with this name: `NeMo-RL` and `nemo_rl` are the same."""
    plain = target.lower().replace("-", "_")
    return plain if plain in READY else None


def target_of(name: str) -> Target:
    """The bindings of a ready target."""
    return cast("Target", importlib.import_module(f"trimtab.sentinel.targets.{name}").TARGET)


def subjects(job: Job) -> Iterator[Subject | Unbound]:
    """Every function of the job, bound; functions that could not be bound come with a reason."""
    for found in _all(job):
        if isinstance(found, Subject):
            if job.subjects and found.name not in job.subjects and found.label not in job.subjects:
                continue
            if job.lines is not None and not touched(found, job.lines):
                continue
        elif (job.subjects and found.binding not in job.subjects) or job.lines is not None:
            continue
        yield found


def _all(job: Job) -> Iterator[Subject | Unbound]:
    name = ready_name(job.target)
    if name is not None:
        yield from target_of(name).subjects(job.tree)
    elif job.target == "trimtab":
        from trimtab.sentinel.targets.trimtab import formula_subjects, recipe_subjects

        yield from (*formula_subjects(), *recipe_subjects())
    elif job.target.endswith(".py") or _is_module(job.target):
        yield from subjects_of(job.target)
    else:
        yield from _formula(job.target)


def _is_module(name: str) -> bool:
    module, _, attribute = name.partition(":")
    if attribute:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _formula(target: str) -> Iterator[Subject]:
    from trimtab.errors import SignalError
    from trimtab.sentinel.targets.trimtab import named_subjects
    from trimtab.signal import catalog

    try:
        yield from named_subjects(target)
    except SignalError as error:
        known = sorted({*READY, "trimtab", *catalog()})
        raise AdapterError(f"{error} Targets: {unknown_name('target', target, known)}") from error


def touched(subject: Subject, lines: Mapping[str, list[list[int]]]) -> bool:
    """Whether a changed range overlaps the lines of the function."""
    boundary = subject.boundary
    if boundary is None:
        return False
    # Your own files are shown relative to their import root, which may differ from that of the repository.
    ranges = [r for file, found in lines.items() if f"/{file}".endswith(f"/{boundary.file}") for r in found]
    return any(first <= boundary.last_line and last >= boundary.first_line for first, last in ranges)

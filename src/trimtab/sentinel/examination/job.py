"""A job: what to check, as plain data, and the units it stands for.

The only place that turns the name of a target into units: Trimtab itself, one of its formulas, a ready target (a
released wheel or a checkout at any commit), your own module or package, or a repository without bindings.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from trimtab.errors import AdapterError, unknown_name
from trimtab.sentinel.binding.discover import units_of
from trimtab.sentinel.binding.repository import units_in
from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.examination.wheels import wheel
from trimtab.sentinel.loading import Boundary, CouldNotLoad, Tree
from trimtab.sentinel.targets.target import Part, Target, Unbound, Unit

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
    folder: str | None = None
    """Where your own module is looked for."""
    is_discovery: bool = False
    """Whether every file of `root` is searched for functions, without bindings."""
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
    fixed: str | None = None
    """Repaired code, DIR or DIR@COMMIT: the regression test of each finding must pass on it."""

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
    """Find the code of a target (root, commit, version, folder), and fetch its wheel if needed; and a sentence."""
    name = ready_name(target)
    if name is None:
        return _own(target, path, file)
    if path is not None:
        where, tree = located(path)
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


def _own(target: str, path: str | None, file: Path | None) -> tuple[dict[str, Any], str]:
    """Your own code is looked for in the current folder, or in the one that --path names."""
    if file is not None:
        raise AdapterError(f"check: --wheel is for a framework with bindings ({', '.join(READY)}), not for {target}.")
    if path is None:
        return {"folder": str(Path.cwd())}, f"{target}: code in this environment"
    if target == "trimtab" or _is_formula(target):
        raise AdapterError(f"check: {target} is part of this Trimtab, so --path {path} cannot be used. Leave it out.")
    where, tree = located(path)
    if tree.commit is not None:
        raise AdapterError(
            f"check: {target} has no bindings of ours, so it is imported from a folder, and --path {path} names a "
            "commit. Check that commit out (git worktree add DIR COMMIT) and give --path DIR, or use --discover."
        )
    return {"folder": where["root"]}, f"{target}: code of {tree.root}"


def located(path: str) -> tuple[dict[str, Any], Tree]:
    """A folder, or a git directory at a commit: DIR, DIR@COMMIT, DIR@origin/main."""
    root, commit = _split(path)
    try:
        tree = Tree.git(root, commit) if commit else Tree.folder(root)
    except CouldNotLoad as error:
        raise AdapterError(str(error)) from error
    if not commit and not any(tree.root.glob("*.py")) and (tree.root / "HEAD").is_file():
        tree = Tree.git(root)
    return {"root": str(tree.root), "commit": tree.commit}, tree


def _split(path: str) -> tuple[str, str]:
    """The folder before an @ that exists; a branch may hold a slash, and a folder may hold an @."""
    places = [i for i, sign in enumerate(path) if sign == "@"]
    if not places or Path(path).is_dir():
        return path, ""
    known = [i for i in places if Path(path[:i]).is_dir()]
    at = known[-1] if known else places[-1]
    return path[:at], path[at + 1 :]


def ready_name(target: str) -> str | None:
    """The ready target with this name: `NeMo-RL` and `nemo_rl` are the same."""
    plain = target.lower().replace("-", "_")
    return plain if plain in READY else None


def target_of(name: str) -> Target:
    """The bindings of a ready target."""
    return cast("Target", importlib.import_module(f"trimtab.sentinel.targets.{name}").TARGET)


def units(job: Job) -> list[Unit]:
    """What there is to check, by name. Your own module is imported for that; nothing is bound yet."""
    if job.is_discovery:
        return units_in(job.tree, job.lines)
    name = ready_name(job.target)
    if name is not None:
        return target_of(name).units(job.tree)
    if job.target == "trimtab":
        from trimtab.sentinel.targets.trimtab import formula_subjects, recipe_subjects

        return [_made(one) for one in (*formula_subjects(), *recipe_subjects())]
    # The current folder of a child is a scratch folder.
    if job.folder is not None and job.folder not in sys.path:
        sys.path.append(job.folder)
    if job.target.endswith(".py") or _is_module(job.target, job.folder):
        return units_of(job.target, job.folder)
    return [_made(one) for one in _formula(job.target)]


def _made(subject: Subject) -> Unit:
    return Unit.of(Part(subject.name, lambda: (subject,)))


def subjects(job: Job) -> Iterator[Subject | Unbound]:
    """Every function of the job, bound in this process; functions that could not be bound come with a reason."""
    for unit in units(job):
        if not job.subjects or not unit.is_exact or any(may_hold(unit.name, asked) for asked in job.subjects):
            for part in unit.parts():
                yield from (found for found in part.make() if is_wanted(job, part.name, found))


def may_hold(unit: str, asked: str) -> bool:
    """Whether a unit of this name can hold the function: the class of a method, a module, or the function itself."""
    return is_called(unit, asked) or asked.startswith((f"{unit}(", f"{unit}."))


def is_called(name: str, asked: str) -> bool:
    """Whether a name is what was asked for: itself, inside of it, or the same without its module."""
    return name == asked or name.startswith(f"{asked}.") or name.endswith(f".{asked}")


def names_of(part: str, found: Subject | Unbound) -> list[str]:
    """Every name by which a function can be asked for."""
    own = [found.name, found.label] if isinstance(found, Subject) else [found.binding]
    return list(dict.fromkeys([part, *own]))


def is_wanted(job: Job, part: str, found: Subject | Unbound) -> bool:
    """Whether the job asks for this function, by name and by changed lines."""
    if job.subjects and not any(is_called(name, asked) for name in names_of(part, found) for asked in job.subjects):
        return False
    if job.lines is None:
        return True
    return isinstance(found, Subject) and found.boundary is not None and touched(found.boundary, job.lines)


def is_untouched(job: Job, part: Part) -> bool:
    """Whether a part lies outside the changed lines, as far as that can be known before it is bound."""
    if job.lines is None or part.where is None:
        return False
    try:
        boundary = part.where()
    except Exception:  # then it cannot be bound either, and that says why
        return False
    return boundary is not None and not touched(boundary, job.lines)


def _is_module(name: str, folder: str | None) -> bool:
    module, _, attribute = name.partition(":")
    place = Path(folder or ".", *module.split("."))
    if attribute or place.is_dir() or place.with_name(f"{place.name}.py").is_file():
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _is_formula(target: str) -> bool:
    from trimtab.signal import catalog

    return target in catalog()


def _formula(target: str) -> Iterator[Subject]:
    from trimtab.errors import SignalError
    from trimtab.sentinel.targets.trimtab import named_subjects
    from trimtab.signal import catalog

    try:
        yield from named_subjects(target)
    except SignalError as error:
        known = sorted({*READY, "trimtab", *catalog()})
        raise AdapterError(f"{error} Targets: {unknown_name('target', target, known)}") from error


def touched(boundary: Boundary, lines: Mapping[str, list[list[int]]]) -> bool:
    """Whether a changed range overlaps the lines of the function."""
    # Your own files are shown relative to their import root, which may differ from that of the repository.
    ranges = [r for file, found in lines.items() if f"/{file}".endswith(f"/{boundary.file}") for r in found]
    return any(first <= boundary.last_line and last >= boundary.first_line for first, last in ranges)

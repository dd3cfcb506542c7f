"""A target: what there is to check, by name, before any of it is loaded; and frameworks with bindings.

A unit is one function of yours, one binding of a framework, or one formula. A binding names places of a function
(in order of preference, since functions move) and makes subjects of the loaded function. One that is not found is
reported with the searched places; it never counts as a pass.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trimtab.sentinel.binding.subject import Subject
from trimtab.sentinel.loading import Boundary, CouldNotLoad, Spec, Tree

Make = Callable[[Boundary], Subject | Sequence[Subject]]


class CouldNotBind(Exception):
    """The function exists, but it no longer fits its binding."""


@dataclass(frozen=True)
class Binding:
    """`Binding("agg_loss", (Spec("agg_loss", file="verl/trainer/ppo/core_algos.py"),), make)`."""

    name: str
    places: tuple[Spec, ...]
    make: Make
    given: Callable[[], dict[str, object]] | None = None
    """Stand-ins for names of the target, such as a fake process group."""


@dataclass(frozen=True)
class Unbound:
    """A binding that found no function, and where it looked."""

    binding: str
    looked_for: str
    reason: str
    is_asked: bool = True
    """False for a function that was only come across while a whole package was searched."""


@dataclass(frozen=True)
class Part:
    """One function of a unit. `make` loads and binds it, so it may raise anything, hang or die."""

    name: str
    make: Callable[[], Iterable[Subject | Unbound]]
    is_exact: bool = True
    """Whether its subjects carry its name. If not, a function asked for by another name may be in it."""
    where: Callable[[], Boundary | None] | None = None
    """Its place, found without calling anything of it."""


@dataclass(frozen=True)
class Unit:
    """What one process works on: its name, and its parts, which are not known before it is loaded."""

    name: str
    parts: Callable[[], Iterable[Part]]
    is_exact: bool = False

    @staticmethod
    def of(part: Part) -> "Unit":
        """A unit with one part."""
        return Unit(part.name, lambda: (part,), part.is_exact)

    def subjects(self) -> Iterator[Subject | Unbound]:
        for part in self.parts():
            yield from part.make()


@dataclass(frozen=True)
class Target:
    """A framework: its name, its public repository, the released wheel if there is one, and its bindings."""

    name: str
    repository: str
    bindings: tuple[Binding, ...]
    wheel: str | None = None

    def units(self, tree: Tree) -> list[Unit]:
        """Every binding, not loaded yet. A binding may make several subjects, with names of their own."""
        return [Unit.of(Part(one.name, partial(bound, one, tree), is_exact=False)) for one in self.bindings]

    def subjects(self, tree: Tree, only: Sequence[str] | None = None) -> Iterator[Subject | Unbound]:
        """Every bound function of one version of the framework."""
        for binding in self.bindings:
            if only is None or binding.name in only:
                yield from bound(binding, tree)


def bound(binding: Binding, tree: Tree) -> Iterator[Subject | Unbound]:
    """The subjects of one binding, or why there are none."""
    looked_for = ", ".join(f"{spec.file or spec.module}:{spec.name}" for spec in binding.places)
    reason = ""
    for spec in binding.places:
        try:
            boundary = load(spec, tree, binding)
            made = binding.make(boundary)
        except CouldNotLoad as error:
            reason = reason or str(error)
            continue
        except CouldNotBind as error:
            reason = str(error)
            continue
        for subject in [made] if isinstance(made, Subject) else made:
            yield replace(subject, boundary=subject.boundary or boundary)
        return
    yield Unbound(binding.name, looked_for, reason)


def load(spec: Spec, tree: Tree, binding: Binding) -> Boundary:
    """The binding's function, with its stand-ins."""
    from trimtab.sentinel import loading

    return loading.load(spec, tree, binding.given() if binding.given is not None else None)

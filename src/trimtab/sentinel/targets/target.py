"""A target: a framework with bindings for its functions, at any version.

A binding names the places of a function (in order of preference, since functions move) and makes subjects of the loaded
function. A function that is not found is reported with the searched places; it never counts as a pass.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Target:
    """A framework: its name, its public repository, the released wheel if there is one, and its bindings."""

    name: str
    repository: str
    bindings: tuple[Binding, ...]
    wheel: str | None = None

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

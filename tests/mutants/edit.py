"""A planted bug is an edit: one or two pieces of text in a function of ours, replaced while a subject is called.

The text must occur exactly once, so a mutant whose function has changed fails aloud instead of testing nothing.
"""

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trimtab.sentinel import Case, Out, Subject
from trimtab.signal import use_path
from trimtab.signal.catalogue import Formula, catalog
from trimtab.signal.tensors import as_on_a_device


@dataclass(frozen=True)
class Edit:
    """`Edit("signal.reduce:sequence_mean", "torch.where(keep, values, …)", "values * keep")`."""

    place: str
    old: str
    new: str

    @cached_property
    def spots(self) -> list[tuple[Any, str, Any, Any]]:
        """Everywhere the function is known, with what stands there and what is put there: owner, name, was, now."""
        module_name, _, path = self.place.partition(":")
        module: Any = importlib.import_module(f"trimtab.{module_name}")
        *outer, name = path.split(".")
        owner = getattr(module, outer[0]) if outer else module
        was = vars(owner)[name]
        now = edited(was, self.old, self.new)
        if outer:
            return [(owner, name, was, now)]
        known = [
            m
            for n, m in list(sys.modules.items())
            if n.startswith(("trimtab.", "mutants.")) and vars(m).get(name) is was
        ]
        entries = [entry for entry in catalog().values() if entry.fn is was]
        return [*[(one, name, was, now) for one in known], *[(entry, "fn", was, now) for entry in entries]]


def edited(fn: Any, old: str, new: str) -> Any:
    """The function with a piece of its text replaced, living in the same module."""
    plain = inspect.unwrap(fn.__func__ if isinstance(fn, classmethod | staticmethod) else fn)
    source = textwrap.dedent(inspect.getsource(plain))
    if source.count(old) != 1:
        raise AssertionError(f"{plain.__qualname__} holds {old!r} {source.count(old)} times; a mutant needs it once")
    tree = ast.parse(source.replace(old, new))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = [d for d in definition.decorator_list if "formula(" not in ast.unparse(d)]
    found: dict[str, Any] = {}
    exec(compile(tree, f"<mutant of {plain.__qualname__}>", "exec"), plain.__globals__, found)
    return found[definition.name]


def _put(owner: Any, name: str, value: Any) -> None:
    # Catalogue entries are frozen for everyone but a mutant.
    (object.__setattr__ if isinstance(owner, Formula) else setattr)(owner, name, value)


@contextmanager
def planted(edits: tuple[Edit, ...]) -> Iterator[None]:
    """Bugs are planted in the formulas as they are written, so these run; test_fast_faults.py plants others."""
    with use_path("reference"), as_on_a_device():
        yield from _planted(edits)


def _planted(edits: tuple[Edit, ...]) -> Iterator[None]:
    spots = [spot for edit in edits for spot in edit.spots]
    for owner, name, _, now in spots:
        _put(owner, name, now)
    try:
        yield
    finally:
        for owner, name, was, _ in spots:
            _put(owner, name, was)


@dataclass(frozen=True)
class Mutant:
    """One planted bug: the invariant it was planted for, the subject it was planted in, and the edits."""

    name: str
    invariant: str
    original: Subject
    edits: tuple[Edit, ...]

    @cached_property
    def subject(self) -> Subject:
        return replace(self.original, name=self.name, call=self._calling(self.original.call))

    def _calling(self, call: Callable[[Case, Mapping[str, Any]], Out]) -> Callable[[Case, Mapping[str, Any]], Out]:
        def mutated(case: Case, options: Mapping[str, Any]) -> Out:
            with planted(self.edits):
                return call(case, options)

        return mutated


MUTANTS: list[Mutant] = []


def plant(invariant: str, name: str, original: Subject, place: str, old: str, new: str, *more: Edit) -> None:
    """Plant one bug; `more` are further edits that belong to it, of other functions."""
    assert len({place, *(edit.place for edit in more)}) == 1 + len(more), f"{name}: one edit a function"
    MUTANTS.append(Mutant(name, invariant, original, (Edit(place, old, new), *more)))

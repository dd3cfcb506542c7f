"""From a subject's result back to the boundary's own numbers: the only place that runs a binding on position codes.

A binding takes its inputs from views of the case, calls the boundary, and gathers results from the return value. To
find out which numbers it gathers, it runs once more with a boundary that returns codes: a different number in every
element. Codes in the result then name these elements. In the same way, codes in the inputs show which argument holds
which token. If a binding computes instead of gathering, the codes do not survive, and the answer is None.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.calling import call_subject
from trimtab.sentinel.binding.subject import Out, Subject
from trimtab.sentinel.findings.decode import Data
from trimtab.sentinel.findings.encode import Encoder
from trimtab.sentinel.findings.stand_in import real_function, standing_in
from trimtab.sentinel.findings.walk import OPAQUE, at, flat, numbers_in
from trimtab.sentinel.loading import Boundary
from trimtab.sentinel.loading.boundary import copied

Path = tuple[str | int, ...]
Element = tuple[int, str, int]
"""A number of the boundary: its call, "returned" or "argument", and its index there."""


@dataclass(frozen=True)
class Recorded:
    """One run of a binding: the calls of its boundary as data, their return values, and the results made of them."""

    calls: list[Data]
    returned: list[Any]
    arguments: list[dict[str | int, Any]]
    """The values after the call."""
    before: list[dict[str | int, Any]]
    out: Out


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str | int, Any]:
    return {**dict(enumerate(args)), **kwargs}


def with_gradient(subject: Subject, case: Case) -> Case:
    """The case with leaves that require gradients, as the invariants use it."""
    leaves = {
        name: values.detach().clone().requires_grad_()
        for name, values in case.tokens.items()
        if values.dtype.is_floating_point and (subject.reads is None or name in subject.reads)
    }
    return case.with_tokens(**leaves)


def record(subject: Subject, boundary: Boundary, case: Case) -> Recorded:
    """Run the binding once and record what crosses the boundary; without gradients if it writes to its inputs."""
    try:
        return _record(subject, boundary, with_gradient(subject, case))
    except RuntimeError:
        with torch.no_grad():
            return _record(subject, boundary, case.with_tokens(**{n: v.clone() for n, v in case.tokens.items()}))


def _record(subject: Subject, boundary: Boundary, case: Case) -> Recorded:
    real = real_function(boundary)
    calls: list[Data] = []
    returned: list[Any] = []
    arguments: list[dict[str | int, Any]] = []
    before: list[dict[str | int, Any]] = []

    def watched(*args: Any, **kwargs: Any) -> Any:
        calls.append(Encoder().call(args, kwargs))
        before.append(arguments_of(copied(args), copied(kwargs)))
        given = real(*args, **kwargs)
        returned.append(given)
        arguments.append(arguments_of(args, kwargs))
        return given

    with standing_in(boundary, watched):
        out = call_subject(subject, case)
    return Recorded(calls, returned, arguments, before, out)


class Codes:
    """Distinct whole numbers that single precision can hold, and what each of them stands for."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._drawn = torch.randperm(2**20, generator=self._generator) + 2**22
        self.meaning: dict[float, Any] = {}

    def like(self, values: Tensor, means: Sequence[Any]) -> Tensor:
        first = len(self.meaning)
        codes = self._drawn[first : first + values.numel()].double()
        self.meaning |= dict(zip(cast("list[float]", codes.tolist()), means, strict=True))
        return codes.reshape(values.shape)


def elements(
    subject: Subject, boundary: Boundary, case: Case, name: str, *, outside: bool = False
) -> list[Element] | None:
    """The numbers of the boundary that the named result consists of; None if the binding computes it."""
    codes, real, number = Codes(), real_function(boundary), 0

    def coded(*args: Any, **kwargs: Any) -> Any:
        nonlocal number
        call, number = number, number + 1
        passed = arguments_of(args, kwargs)
        before = {path: (id(one), one.detach().clone()) for path, one in numbers_in(passed)}
        returned = real(*args, **kwargs)
        _code_arguments(passed, before, call, codes)
        position = 0

        def code(one: Tensor) -> Tensor:
            nonlocal position
            start, position = position, position + one.numel()
            return codes.like(one, [(call, "returned", i) for i in range(start, position)])

        return rebuilt(returned, code)

    try:
        with standing_in(boundary, coded), torch.no_grad():
            result = call_subject(subject, case.with_tokens(**{n: v.clone() for n, v in case.tokens.items()}))[name]
    except Exception:  # a binding that cannot handle codes does more than gather
        return None
    values = result.outside if outside and result.outside is not None else result.value
    found = [codes.meaning.get(float(one)) for one in values.detach().double().reshape(-1)]
    return None if any(one is None for one in found) else cast("list[Element]", found)


def _code_arguments(
    passed: dict[str | int, Any], before: Mapping[Path, tuple[int, Tensor]], call: int, codes: Codes
) -> None:
    """Values that the boundary wrote into its arguments are results too."""
    position = 0
    for path, one in list(numbers_in(passed)):
        start, position = position, position + one.numel()
        was = before.get(path)
        if was is not None and was[1].shape == one.shape and torch.equal(was[1], one.detach()):
            continue
        made = codes.like(one, [(call, "argument", i) for i in range(start, position)])
        parent = at(passed, path[:-1])
        if was is not None and was[0] == id(one):
            one.detach().copy_(made)
        elif isinstance(parent, (dict, list)):
            cast("Any", parent)[path[-1]] = made
        elif isinstance(path[-1], str):
            setattr(parent, path[-1], made)


def rebuilt(value: Any, code: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor and fraction replaced, visited in the order of `numbers_in`."""
    if isinstance(value, Tensor):
        return code(value)
    if isinstance(value, (bool, int)):
        code(
            torch.zeros(())
        )  # keeps its place in the numbering; the value stays, because a count or flag may control the binding
        return value
    if isinstance(value, float):
        return float(code(torch.zeros(())))
    if isinstance(value, dict):
        return {key: rebuilt(one, code) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        parts = [rebuilt(one, code) for one in cast("Sequence[Any]", value)]
        kind = cast("Any", type(cast("object", value)))
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    if hasattr(value, "__dict__") and not isinstance(value, OPAQUE):
        made = copy.copy(value)
        for key, one in cast("dict[str, Any]", vars(value)).items():
            object.__setattr__(made, key, rebuilt(one, code))
        return made
    return value


def holders(
    subject: Subject, boundary: Boundary, case: Case, leaf: str, run: Recorded
) -> dict[int, list[Element]] | None:
    """Where the arguments of the boundary hold each token of a leaf."""
    codes, number = Codes(), 0
    values = codes.like(case.tokens[leaf], list(range(case.tokens[leaf].numel())))
    found: dict[int, list[Element]] = {}

    def looked(*args: Any, **kwargs: Any) -> Any:
        nonlocal number
        call, number = number, number + 1
        for position, one in enumerate(cast("list[float]", flat(arguments_of(args, kwargs)).tolist())):
            if one in codes.meaning:
                found.setdefault(codes.meaning[one], []).append((call, "argument", position))
        return rebuilt(run.returned[call], lambda one: one.detach().clone())

    try:
        with standing_in(boundary, looked), torch.no_grad():
            call_subject(subject, case.with_tokens(**{leaf: values}))
    except Exception:  # it refuses codes, so the places of its tokens are unknown, and the finding says this
        return None
    return found


def narrowed(source: Any, positions: Sequence[int]) -> tuple[list[str | int], list[int]]:
    """The deepest path that contains all given numbers, and their places below it."""
    owners: list[Path] = []
    starts: dict[Path, int] = {}
    total = 0
    for path, one in numbers_in(source):
        starts[path] = total
        owners += [path] * one.numel()
        total += one.numel()
    touched = {owners[i] for i in positions}
    common = list(next(iter(touched))) if touched else []
    for path in touched:
        while tuple(common) != path[: len(common)]:
            common.pop()
    first = min((start for path, start in starts.items() if path[: len(common)] == tuple(common)), default=0)
    return common, [i - first for i in positions]

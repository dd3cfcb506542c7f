"""A binding that nobody wrote: fields from names, layouts and shapes from what runs without accidental broadcasting.

    guess = guessed(of_function(my_loss))
    print(guess.lines)     # what was chosen, why, and the lines that turn it into a binding of your own

The only place that tries layouts. Every plausible way is kept: a finding that only one of them shows is a suspect.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trimtab.sentinel.batch.case import CannotRepresent, Case
from trimtab.sentinel.batch.directed import SHAPES, directed
from trimtab.sentinel.binding.callable import CannotCall, Found
from trimtab.sentinel.binding.words import field_of, fields_of

Way = Literal["padded", "list", "packed", "row"]
Size = Literal["token", "sequence"]
EITHER: dict[str, tuple[Size, ...]] = {
    "advantage": ("token", "sequence"), "reward": ("sequence", "token"), "batch": ("token", "sequence"),
}  # fmt: skip
"""Fields that frameworks hold per token or per sequence. The usual one comes first."""
ROWS = frozenset({"group", "ended", "length", "outcome", "reward"})
BATCHES = frozenset({"data", "inputs", "batch", "experience", "samples", "rollouts", "sample"})
"""Arguments that hold fields by key or attribute."""
BOUNDARIES = frozenset({"cu_seqlens", "cu_lens", "offsets"})
PROBES = ("tool output", "interleaved groups")
"""Shapes with more rows than columns, and more columns than rows: a wrong broadcast raises on one of them."""


@dataclass(frozen=True)
class Filling:
    """How one argument is filled."""

    argument: str
    field: str
    size: Size


@dataclass(frozen=True)
class Plan:
    """One plausible way to call a function."""

    way: Way
    fillings: tuple[Filling, ...]
    as_numpy: bool = False

    def inputs(self, case: Case) -> dict[str, Any]:
        return {one.argument: self.given(case, one.field, one.size) for one in self.fillings}

    def given(self, case: Case, field: str, size: Size) -> Any:
        values = _view(case, field, size, self.way)
        if not self.as_numpy:
            return values
        return [one.detach().numpy() for one in values] if isinstance(values, list) else values.detach().numpy()


def _view(case: Case, field: str, size: Size, way: Way) -> Any:
    if field == "count":
        return case.whole.segments.num_tokens
    if field in ("batch", "boundaries"):
        return _Fields(case, way, size) if field == "batch" else case.cu_seqlens
    if field in ("ratio", "log_ratio"):
        gap = [_view(case, name, "token", way) for name in ("logp_current", "logp_old")]
        if isinstance(gap[0], list):
            return [a - b if field == "log_ratio" else (a - b).exp() for a, b in zip(*gap, strict=True)]
        return gap[0] - gap[1] if field == "log_ratio" else (gap[0] - gap[1]).exp()
    if size == "sequence":
        return case.sequence("outcome" if field == "advantage" else field)
    name = "token_reward" if field == "reward" else field
    if way == "padded":
        return case.padded(name, with_prompt=False)
    return case.packed(name) if way == "packed" else case.list(name, with_prompt=False)


class _Fields(dict[str, Any]):
    """A batch that nobody has seen: a key is filled with the field that its name tells."""

    def __init__(self, case: Case, way: Way, size: Size) -> None:
        super().__init__()
        self._case, self._way, self._size = case, way, size

    def __missing__(self, key: str) -> Any:
        field = field_of(key)
        if field is None or field in ("batch", "boundaries"):
            raise self._case.cannot(f"nothing is known about the key {key!r}")
        size: Size = self._size if field in EITHER else "sequence" if field in ROWS else "token"
        self[key] = _view(self._case, field, size, self._way)
        return self[key]

    def __contains__(self, key: object) -> bool:
        return field_of(str(key)) is not None

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - dict.get does not ask __missing__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]


class _NoOuterProducts(TorchFunctionMode):
    """Notices an operation whose result is larger than each of its inputs: two shapes that were not meant to meet."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [one for one in args if isinstance(one, Tensor)]
        pairwise = isinstance(out, Tensor) and len(given) > 1 and func in _PAIRWISE
        if pairwise and out.numel() > max(one.numel() for one in given):
            self.seen = self.seen or " with ".join(str(list(one.shape)) for one in given)
        return out


_PAIRWISE = frozenset({
    torch.Tensor.add, torch.Tensor.sub, torch.Tensor.mul, torch.Tensor.div, torch.Tensor.__add__, torch.Tensor.__sub__,
    torch.Tensor.__mul__, torch.Tensor.__truediv__, torch.Tensor.__rsub__, torch.Tensor.__radd__, torch.Tensor.__rmul__,
    torch.min, torch.max, torch.minimum, torch.maximum, torch.where, torch.add, torch.sub, torch.mul, torch.div,
})  # fmt: skip


def probes() -> list[Case]:
    """Two batches whose numbers of rows and columns differ."""
    return [case for name, case in zip(SHAPES, directed(), strict=True) if name in PROBES]


def plans(found: Found) -> Iterator[Plan]:
    """Every way to fill the arguments, the most usual first."""
    names = list(found.arguments)
    fields = fields_of(names)
    for name in names:
        if name in BATCHES:
            fields[name] = "batch"
        elif name in BOUNDARIES:
            fields[name] = "boundaries"
    if set(fields.values()) == {"value", "trainable"}:  # a masked mean of any numbers
        fields = {n: "token_loss" if f == "value" else f for n, f in fields.items()}
    unknown = [n for n in names if n not in fields and found.arguments[n].default is found.arguments[n].empty]
    if unknown:
        raise CannotCall(f"nothing is known about {', '.join(unknown)}")
    sizes = [EITHER.get(f, ("sequence",) if f in ROWS else ("token",)) for f in fields.values()]
    for way in _ways(found):
        for chosen in itertools.product(*sizes):
            fillings = tuple(
                Filling(n, f, cast("Size", size)) for (n, f), size in zip(fields.items(), chosen, strict=True)
            )
            for as_numpy in (False, True) if _speaks_numpy(found) is None else (_speaks_numpy(found),):
                yield Plan(way, fillings, bool(as_numpy))


def _ways(found: Found) -> Sequence[Way]:
    if set(found.arguments) & BOUNDARIES:
        return ("packed",)
    told = " ".join(str(one.annotation) for one in found.arguments.values()).lower()
    if "list[torch" in told or "list[tensor" in told:
        return ("list",)
    return ("padded", "row", "list", "packed")


def _speaks_numpy(found: Found) -> bool | None:
    """Whether the module of a function computes with numpy; None where it imports both or neither."""
    held = getattr(found.function, "__globals__", {}).values()
    has_torch, has_numpy = torch in held, np in held
    return None if has_torch == has_numpy else has_numpy


def plausible(found: Found, adapt: Callable[[Case], Case], most: int = 3) -> list[tuple[Plan, Any]]:
    """The plans that run on every probe without an accidental broadcast, with what the first probe returned."""
    kept: list[tuple[Plan, Any]] = []
    why = ""
    for plan in plans(found):
        try:
            returned = [returned_by(found, plan, adapt(case)) for case in probes()]
        except CannotRepresent as error:
            why = why or str(error)
        except Exception as error:  # foreign code may raise anything
            why = why or f"{type(error).__name__}: {error}"
        else:
            if all(one is not None for one in returned):
                kept.append((plan, returned[0]))
        if len(kept) >= most:
            break
    if not kept:
        raise CannotCall(f"no layout of its arguments runs: {why}" if why else "it returns nothing")
    return kept


def returned_by(found: Found, plan: Plan, case: Case) -> Any:
    """What it returns on a case; refused where two shapes met that were not meant to."""
    with _NoOuterProducts() as watch:
        returned = called(found, plan, case, found.options)
    if watch.seen:
        raise CannotRepresent(f"shapes are broadcast against each other: {watch.seen}")
    return returned


def called(found: Found, plan: Plan, case: Case, options: Mapping[str, Any]) -> Any:
    """One call with all rows, or one call per row."""
    inputs = plan.inputs(case)
    if plan.way != "row":
        return found.call(inputs, options)
    rows: list[Any] = []
    for row in range(case.num_sequences):
        own = {one.argument: _of_row(inputs[one.argument], row) for one in plan.fillings}
        rows.append(found.call(own, options))
    return rows


def _of_row(values: Any, row: int) -> Any:
    if isinstance(values, _Fields):
        raise CannotRepresent("a batch by keys is not called row by row")
    return values[row]


Call = Callable[[Case, Mapping[str, Any]], Any]

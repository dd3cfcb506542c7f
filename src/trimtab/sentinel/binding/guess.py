"""A binding that nobody wrote: fields from names, layouts and shapes from what runs without accidental broadcasting.

    for plan, returned in plausible(of_function(my_loss), adapt): …

The only place that tries layouts. Every plausible way is kept: a finding that only one of them shows is a suspect.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trimtab.sentinel.batch.case import CannotRepresent, Case
from trimtab.sentinel.batch.directed import SHAPES, directed
from trimtab.sentinel.binding.callable import CannotCall, Found
from trimtab.sentinel.binding.given import IGNORED, ROWS, Form, Keys, Size, Way, of_row, view
from trimtab.sentinel.binding.usage import fields_by_use
from trimtab.sentinel.binding.words import field_of, fields_of, is_told, words_of
from trimtab.sentinel.binding.writes import noting_writes

BATCHES = frozenset({
    "data", "inputs", "batch", "experience", "samples", "rollouts", "sample", "experiences", "trajectories", "episodes",
    "items", "records", "minibatch", "micro_batch", "mini_batch",
})  # fmt: skip
"""Arguments that hold fields by key or attribute."""
ONE_BY_ONE = ("row", "alone")
"""Ways that call a function once per row."""
BOUNDARIES = frozenset({"cu_seqlens", "cu_lens", "offsets"})
PROBES = ("tool output", "interleaved groups")
"""Shapes with more rows than columns, and more columns than rows: a wrong broadcast raises on one of them."""


@dataclass(frozen=True)
class Filling:
    """How one argument is filled."""

    argument: str
    field: str
    size: Size
    form: Form = "tensor"


@dataclass(frozen=True)
class Plan:
    """One plausible way to call a function."""

    way: Way
    fillings: tuple[Filling, ...]
    as_numpy: bool = False
    shift: bool = False
    """Its results lie where a model predicts them, one position before their token."""
    by_use: frozenset[str] = frozenset()
    """Fields that no name told, only what a body does with them."""

    @property
    def takes_a_mask(self) -> bool:
        masks = ("trainable", "batch", "attention", "in_use", "reducer")
        return any(one.field in masks or one.form == "labels" for one in self.fillings)

    def inputs(self, case: Case) -> dict[str, Any]:
        given = {one.argument: self.given(case, one) for one in self.fillings}
        if any(one.field == "logp_current" for one in self.fillings):
            for batch in (value for value in given.values() if isinstance(value, Keys)):
                batch.beside_current = True
        return given

    def given(self, case: Case, one: Filling) -> Any:
        values = view(case, one.field, one.size, self.way, one.form)
        if not self.as_numpy:
            return values
        if isinstance(values, list):
            return [v.detach().numpy() if isinstance(v, Tensor) else v for v in cast("list[Any]", values)]
        return values.detach().numpy() if isinstance(values, Tensor) else values


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
        pairwise = isinstance(out, Tensor) and len(given) > 1 and getattr(func, "__name__", "") in _PAIRWISE
        # [1, n] against [n, 1] is meant; [n] against [n, 1] is the classic slip.
        of_one_kind = len({one.ndim for one in given if one.ndim}) < 2
        if pairwise and not of_one_kind and out.numel() > max(one.numel() for one in given):
            self.seen = self.seen or " with ".join(str(list(one.shape)) for one in given)
        return out


_PAIRWISE = frozenset({
    *(f"{under}{name}{under}" for name in ("add", "sub", "mul", "div", "and", "or", "lt", "le", "gt", "ge", "eq", "ne")
      for under in ("", "__")),
    "__radd__", "__rsub__", "__rmul__", "__truediv__", "__rtruediv__", "true_divide", "pow", "__pow__", "minimum",
    "maximum", "min", "max", "where", "logical_and", "logical_or", "bitwise_and", "bitwise_or",
})  # fmt: skip
"""Operations that broadcast."""


def probes() -> list[Case]:
    """Two batches whose numbers of rows and columns differ."""
    return [case for name, case in zip(SHAPES, directed(), strict=True) if name in PROBES]


def plans(found: Found, *, by_size: bool = False) -> Iterator[Plan]:
    """Every way to fill the arguments, the most usual first; `by_size`: its groups are so many rows in a row."""
    names = list(found.arguments)
    fields = fields_of(names)
    for name in names:
        if name in BATCHES or (name not in fields and set(words_of(name)) & BATCHES):
            fields[name] = "batch"
        elif name in BOUNDARIES:
            fields[name] = "boundaries"
    needed = [n for n in names if found.arguments[n].default is found.arguments[n].empty]
    for name in (n for n in needed if fields.get(n) == "token_id" and not set(words_of(n)) & {"ids", "id", "labels"}):
        rest = {n: f for n, f in fields.items() if n != name}
        fields |= {n: f for n, f in fields_by_use(found.function, [name], rest).items() if f == "trainable"}
    used = fields_by_use(found.function, [n for n in needed if n not in fields], fields)
    fields |= used
    if {"reward", "token_reward"} & set(fields.values()) and not {"advantage", "logp_ref"} & set(fields.values()):
        # What rewards are charged for is the distance from a reference, unless a name says otherwise.
        fields |= {n: "logp_ref" for n, f in fields.items() if f == "logp_old" and not is_told(n)}
    if "group" in fields.values() and not {"value", "reward", "token_reward"} & set(fields.values()):
        fields = {n: "reward" if f == "returns" else f for n, f in fields.items()}  # what is compared inside a group
    beside = {"trainable", "count", "rows", "in_use", "boundaries"}
    if set(fields.values()) - beside == {"value"} and "trainable" in fields.values():  # a masked mean of any numbers
        fields = {n: "token_loss" if f == "value" else f for n, f in fields.items()}
    if by_size and set(fields.values()) == {"token_loss"}:  # any numbers, one per row
        fields = dict.fromkeys(fields, "reward")
    unknown = [n for n in needed if n not in fields]
    if unknown:
        raise CannotCall(f"nothing is known about {', '.join(unknown)}")
    speaks = _speaks_numpy(found)
    by_row = "in_use" in fields.values() or _asks_for_rows(found)
    for way in _ways(found, fields):
        choices = [
            [_suppressed(one) if by_row else one for one in _fillings(found, n, f, way, fields)]
            for n, f in fields.items()
        ]
        for chosen in itertools.product(*choices):
            for as_numpy in (False, True) if speaks is None else (speaks,):
                plan = Plan(way, tuple(chosen), bool(as_numpy), by_use=frozenset(used.values()))
                yield plan
                if way == "model":
                    yield replace(plan, shift=True)


def _suppressed(one: Filling) -> Filling:
    """Beside flags per row, a mask of tokens also holds tokens of rows whose flag is 0."""
    masks = one.field == "trainable" or (one.field == "batch" and one.form == "keys")
    return replace(one, form="suppressed") if masks else one


def _asks_for_rows(found: Found) -> bool:
    """Whether a body takes flags per row out of a batch by key."""
    names = getattr(getattr(found.function, "__code__", None), "co_consts", ())
    return any(isinstance(name, str) and name.isidentifier() and field_of(name) == "in_use" for name in names)


def _fillings(found: Found, name: str, field: str, way: Way, fields: Mapping[str, str]) -> Iterator[Filling]:
    """The ways to fill one argument: per token or per sequence, and how groups are named. The usual one first."""
    annotation = str(found.arguments[name].annotation).lower()
    as_list: Form = "list" if "list" in annotation and "tensor" not in annotation else "tensor"
    if field == "batch":
        orders: list[tuple[Size, Form]] = [("token", "keys"), ("sequence", "keys"), ("token", "steps")]
        if way == "sliced":
            orders.append(("token", "cut"))
        yield from (Filling(name, field, size, form) for size, form in orders)
        if way == "list":
            yield Filling(name, field, "sequence", "rows")
    elif field == "group":
        yield from (Filling(name, field, "sequence", form) for form in ("numpy", "tensor", "names", "matrix"))
    elif field == "advantage" and way != "joined":
        yield from (Filling(name, field, "token"), Filling(name, field, "sequence"))
    elif field == "reward":
        # Beside a discount, rewards are those of one episode, step after step.
        sizes: tuple[Size, ...] = ("token", "sequence") if _discounts(found) else ("sequence", "token")
        if _discounts(found) and set(fields_of(list(found.arguments)).values()) == {"reward"}:
            sizes = ("token",)  # nothing else has steps
        yield from (Filling(name, field, size, as_list if size == "sequence" else "tensor") for size in sizes)
    elif field in ROWS:
        yield Filling(name, field, "sequence", as_list)
        if field == "ended" and way == "padded":
            yield Filling(name, field, "sequence", "steps")
    elif field == "trainable" and _is_about_rows(fields):
        about: tuple[Size, ...] = ("token", "sequence") if _discounts(found) else ("sequence", "token")
        yield from (Filling(name, field, size) for size in about)
    else:
        held: Form = "rows" if way == "joined" and "list" in annotation else as_list
        if field == "token_id" and _ignores(found):
            held = "labels"
        yield Filling(name, field, "token", held)
        if field == "trainable" and held == "tensor":  # some bodies choose and index with a mask as it is
            yield Filling(name, field, "token", "flags")


def _ignores(found: Found) -> bool:
    """Whether labels say which tokens count: there is no mask, and a setting names the label to ignore."""
    masks = {"trainable", "attention", "batch"} & set(fields_of(list(found.arguments)).values())
    told = any("ignore" in words_of(name) for name in found.options)
    return not masks and (told or IGNORED in getattr(getattr(found.function, "__code__", None), "co_consts", ()))


def _is_about_rows(fields: Mapping[str, str]) -> bool:
    """Whether every other argument has one entry per sequence, so that a mask has, too."""
    others = {f for f in fields.values() if f != "trainable"}
    return bool(others) and others <= ROWS


def _discounts(found: Found) -> bool:
    return any(set(name.lower().split("_")) & {"gamma", "discount", "lam", "lambd"} for name in found.options)


def _ways(found: Found, fields: Mapping[str, str]) -> Sequence[Way]:
    if set(found.arguments) & BOUNDARIES:
        return ("packed",)
    if "reducer" in fields.values():
        return ("list", "joined")
    if {"position", "segment"} & set(fields.values()):
        return ("packed", "padded", "row")
    told = [str(one.annotation).lower() for one in found.arguments.values()]
    lists = ["list[torch" in one or "list[tensor" in one or "list[list" in one for one in told]
    if any(lists):
        return ("list",) if all(lists) else ("list", "joined")
    if "width" in fields.values():
        return ("model",)
    if "logits" in fields.values() and "token_id" in fields.values():
        return ("padded", "model", "alone", "packed")
    if "batch" in fields.values():
        return ("padded", "sliced", "list", "packed")
    if "ended" in fields.values():
        return ("padded", "packed", "row", "list", "whole")
    if _discounts(found) and "trainable" not in fields.values():
        return ("row", "padded", "list", "packed", "whole")  # one episode, step after step
    return ("padded", "row", "list", "packed", "whole")


def _speaks_numpy(found: Found) -> bool | None:
    """Whether the module of a function computes with numpy; None where it imports both or neither."""
    held = getattr(found.function, "__globals__", {}).values()
    has_torch, has_numpy = any(one is torch for one in held), any(one is np for one in held)
    return None if has_torch == has_numpy else has_numpy


def plausible(found: Found, adapt: Callable[[Case], Case], *, by_size: bool = False) -> Iterator[Plan]:
    """The plans that run on every probe without an accidental broadcast."""
    kept: list[Plan] = []
    why = ""
    for plan in plans(found, by_size=by_size):
        if any(_same_but_for_form(plan, other) for other in kept):
            continue
        try:
            returned = [returned_by(found, plan, adapt(case)) for case in probes()]
        except CannotRepresent as error:
            why = why or str(error)
        except Exception as error:  # foreign code may raise anything
            why = why or f"{type(error).__name__}: {error}"
        else:
            if all(one is not None for one in returned):
                kept.append(plan)
                yield plan
    if not kept:
        raise CannotCall(f"no layout of its arguments runs: {why}" if why else "it returns nothing")


def _same_but_for_form(plan: Plan, other: Plan) -> bool:
    """Names of groups as numbers or as texts, and masks as numbers or as flags, are no two readings of a function."""
    alike = ("group", "trainable")
    first, second = ([replace(one, form="tensor") if one.field in alike else one for one in held.fillings]
                     for held in (plan, other))  # fmt: skip
    return first == second and plan.way == other.way and (plan.as_numpy, plan.shift) == (
        other.as_numpy, other.shift
    )  # fmt: skip


def returned_by(found: Found, plan: Plan, case: Case) -> Any:
    """What it returns on a case; refused where two shapes met that were not meant to."""
    with _NoOuterProducts() as watch:
        returned = called(found, plan, case, found.options)
    if watch.seen:
        raise CannotRepresent(f"shapes are broadcast against each other: {watch.seen}")
    return returned


def _fresh(returned: Any, inputs: Mapping[str, Any]) -> Any:
    """What was returned, without the inputs that a function hands on beside its results: `{**batch, "rewards": …}`."""
    if not isinstance(returned, Mapping):
        return returned
    pairs = cast("Mapping[Any, Any]", returned)
    given = [*inputs.values(), *(one for batch in inputs.values() if isinstance(batch, Keys) for one in batch.values())]
    kept = {name: value for name, value in pairs.items() if not any(value is one for one in given)}
    return kept or returned


def called(found: Found, plan: Plan, case: Case, options: Mapping[str, Any]) -> Any:
    """One call with all rows, or one call per row."""
    inputs = plan.inputs(case)
    if plan.way not in ONE_BY_ONE:
        with noting_writes(case, inputs):
            returned = found.call(inputs, options)
        return _fresh(returned, inputs)
    rows: list[Any] = []
    for row in range(case.num_sequences):
        own = {one.argument: of_row(inputs[one.argument], row, case) for one in plan.fillings}
        rows.append(found.call(own, options))
    return rows

"""A binding that nobody wrote: fields from names, layouts and shapes from what runs without accidental broadcasting.

    for plan, returned in plausible(of_function(my_loss), adapt): …

The only place that tries layouts. Every plausible way is kept: a finding that only one of them shows is a suspect.
"""

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trimtab.sentinel.batch.case import CannotRepresent, Case
from trimtab.sentinel.batch.directed import SHAPES, directed
from trimtab.sentinel.binding.body import rolled_keys
from trimtab.sentinel.binding.callable import CannotCall, Found
from trimtab.sentinel.binding.fields import fields_to_fill
from trimtab.sentinel.binding.given import IGNORED, ROWS, Form, Keys, Size, Way, of_row, view
from trimtab.sentinel.binding.outer import Broadcast, NoOuterProducts
from trimtab.sentinel.binding.words import field_of, fields_of, is_reason, words_of
from trimtab.sentinel.binding.writes import noting_writes

ONE_BY_ONE = ("row", "alone")
"""Ways that call a function once per row."""
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
    rolled: frozenset[str] = frozenset()
    """Keys of a batch that the body moves to the left by one, so that it is about the next token everywhere."""
    by_use: frozenset[str] = frozenset()
    """Fields that no name told, only what a body does with them."""

    @property
    def takes_a_mask(self) -> bool:
        masks = ("trainable", "batch", "attention", "in_use", "reducer")
        return any(one.field in masks or one.form == "labels" for one in self.fillings)

    def inputs(self, case: Case) -> dict[str, Any]:
        given = {one.argument: self.given(case, one) for one in self.fillings}
        beside_current = any(one.field == "logp_current" for one in self.fillings)
        for batch in (value for value in given.values() if isinstance(value, Keys)):
            batch.beside_current, batch.rolled = beside_current, self.rolled
        return given

    def given(self, case: Case, one: Filling) -> Any:
        values = view(case, one.field, one.size, self.way, one.form)
        if not self.as_numpy:
            return values
        if isinstance(values, list):
            return [v.detach().numpy() if isinstance(v, Tensor) else v for v in cast("list[Any]", values)]
        return values.detach().numpy() if isinstance(values, Tensor) else values


def probes() -> list[Case]:
    """Two batches whose numbers of rows and columns differ."""
    return [case for name, case in zip(SHAPES, directed(), strict=True) if name in PROBES]


def plans(found: Found, *, by_size: bool = False) -> Iterator[Plan]:
    """Every way to fill the arguments, the most usual first; `by_size`: its groups are so many rows in a row."""
    fields, used = fields_to_fill(found, by_size=by_size)
    speaks = _speaks_numpy(found)
    by_row = "in_use" in fields.values() or _asks_for_rows(found)
    rolled = rolled_keys(found.function) if "batch" in fields.values() else frozenset[str]()
    for way in _ways(found, fields) if not rolled else ("sliced",):
        choices = [
            [_suppressed(one) if by_row else one for one in _fillings(found, n, f, way, fields)]
            for n, f in fields.items()
        ]
        for chosen in itertools.product(*choices):
            for as_numpy in (False, True) if speaks is None else (speaks,):
                plan = Plan(way, tuple(chosen), bool(as_numpy), shift=bool(rolled), rolled=rolled, by_use=used)
                yield plan
                if way == "model":
                    yield replace(plan, shift=True)
                elif way == "packed" and _is_in_line(plan):
                    yield replace(plan, fillings=tuple(replace(one, form="line") for one in plan.fillings))


def _is_in_line(plan: Plan) -> bool:
    """Whether all that it takes has one entry per token, and something tells where a sequence ends."""
    ends = {"ended", "position", "segment", "boundaries"}
    sizes = {one.size for one in plan.fillings if one.field not in ends}
    forms = {one.form for one in plan.fillings}
    return sizes == {"token"} and forms == {"tensor"} and any(one.field in ends for one in plan.fillings)


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
        yield from (Filling(name, field, size, form) for size, form in orders)
        forms: tuple[Form, ...] = ("cut", "flags") if way == "sliced" else ("flags",)
        yield from (Filling(name, field, "token", form) for form in forms)
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
        yield Filling(name, field, "sequence", "names" if is_reason(name) else as_list)
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
    if "boundaries" in fields.values():
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
    if "ended" in fields.values() and "pack" in f"{found.name} {inspect.getdoc(found.function)}".lower():
        return ("packed", "padded", "row", "list", "whole")
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
    near = why = ""
    for plan in plans(found, by_size=by_size):
        if any(_same_but_for_form(plan, other) for other in kept):
            continue
        try:
            returned = [returned_by(found, plan, adapt(case)) for case in probes()]
        except Broadcast as error:  # nothing else is wrong with this layout, so it is the nearest one
            near = near or f": {error}"
        except CannotRepresent as error:
            why = why or f": {error}"
        except Exception as error:  # foreign code may raise anything
            why = why or f": {type(error).__name__}: {error}"
        else:
            if all(one is not None for one in returned):
                kept.append(plan)
                yield _joined(plan, returned[0], adapt(probes()[0]))
    if not kept:
        raise CannotCall(f"no layout of its arguments runs{near or why}" if near or why else "it returns nothing")


def _joined(plan: Plan, returned: Any, case: Case) -> Plan:
    """A function that takes a list of rows, and gives back one line with the answers of all rows."""
    first: Any = next(iter(cast("tuple[Any, ...]", returned)), None) if isinstance(returned, tuple) else returned
    total = sum(case.response_lengths)
    is_line = isinstance(first, Tensor) and first.shape == (total,) and total != case.num_sequences
    if plan.way != "list" or not is_line or any(one.form != "tensor" for one in plan.fillings):
        return plan
    held = (replace(one, form="rows") if one.size == "token" else one for one in plan.fillings)
    return replace(plan, way="joined", fillings=tuple(held))


def _same_but_for_form(plan: Plan, other: Plan) -> bool:
    """Names of groups as numbers or as texts, and masks as numbers or as flags, are no two readings of a function."""
    first, second = ([replace(one, form=_FORMS.get(one.form, "tensor")) if one.field in _ALIKE else one
                      for one in held.fillings] for held in (plan, other))  # fmt: skip
    return first == second and plan.way == other.way and (plan.as_numpy, plan.shift) == (
        other.as_numpy, other.shift
    )  # fmt: skip


_ALIKE = ("group", "trainable", "batch")
_FORMS: dict[Form, Form] = {"steps": "steps", "cut": "cut", "rows": "rows"}


def returned_by(found: Found, plan: Plan, case: Case) -> Any:
    """What it returns on a case; refused where two shapes met that were not meant to."""
    with NoOuterProducts() as watch:
        returned = called(found, plan, case, found.options)
    if watch.seen:
        raise Broadcast(f"shapes are broadcast against each other: {watch.seen}")
    return returned


def _fresh(returned: Any, inputs: Mapping[str, Any]) -> Any:
    """What was returned, without the inputs that a function hands on beside its results: `{**batch, "rewards": …}`."""
    if not isinstance(returned, Mapping):
        return returned
    pairs = cast("Mapping[Any, Any]", returned)
    given = [*inputs.values(), *(one for batch in inputs.values() if isinstance(batch, Keys) for one in batch.values())]
    kept = {name: value for name, value in pairs.items() if not any(value is one for one in given)}
    return kept or returned


def _out_of_line(returned: Any) -> Any:
    """Results in one packed row, [1, tokens], without the dimension of its own."""
    if isinstance(returned, tuple):
        return tuple(_out_of_line(one) for one in cast("tuple[Any, ...]", returned))
    if isinstance(returned, Mapping):
        return {name: _out_of_line(one) for name, one in cast("Mapping[Any, Any]", returned).items()}
    is_line = isinstance(returned, Tensor | np.ndarray) and returned.ndim == 2 and returned.shape[0] == 1
    return returned[0] if is_line else returned


def called(found: Found, plan: Plan, case: Case, options: Mapping[str, Any]) -> Any:
    """One call with all rows, or one call per row."""
    inputs = plan.inputs(case)
    if plan.way not in ONE_BY_ONE:
        with noting_writes(case, inputs):
            returned = found.call(inputs, options)
        in_line = any(one.form == "line" for one in plan.fillings)
        return _fresh(_out_of_line(returned) if in_line else returned, inputs)
    rows: list[Any] = []
    for row in range(case.num_sequences):
        own = {one.argument: of_row(inputs[one.argument], row, case) for one in plan.fillings}
        rows.append(found.call(own, options))
    return rows

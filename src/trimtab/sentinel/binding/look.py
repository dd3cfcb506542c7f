"""What a function returned, as results with a level and a kind: the only place that reads shapes."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.bind import Role
from trimtab.sentinel.binding.callable import Found
from trimtab.sentinel.binding.given import layouts
from trimtab.sentinel.binding.guess import ONE_BY_ONE, Plan, called
from trimtab.sentinel.binding.subject import Kind, Level, Result

SECOND: dict[str, Kind] = {
    "returns": "return",
    "group_advantage": "return",
    "logp": "entropy",
    "importance": "importance",
}
"""The kind of a second result, by role: estimators return advantages and returns, scores come with entropies."""


@dataclass(frozen=True)
class Look:
    """One result of a call, as far as it shows."""

    name: str
    value: Any
    level: Level | None
    has_gradient: bool
    is_flag: bool
    """Every number is 0 or 1, and both occur or it is boolean."""
    is_stacked: bool = False
    """One of several results of one kind in a single tensor."""


def looks_of(found: Found, plan: Plan, case: Case) -> list[Look]:
    return list(looked_at(case, called(found, plan, case, found.options), plan))


def looked_at(case: Case, returned: Any, plan: Plan) -> Iterator[Look]:
    case = replace(case, touched=None)  # what is asked about shapes is not read by the function
    for name, value in _parts(_by_result(returned) if plan.way in ONE_BY_ONE else returned, case.response_lengths):
        held = _as_tensors(value)
        if held is None:
            continue
        if isinstance(held, Tensor) and held.ndim == 3 and level_of(held[0], case, plan) == "token":
            yield from (
                Look(f"{name}.{i}", one, "token", one.requires_grad, False, is_stacked=True)
                for i, one in enumerate(held)
            )
            continue
        flat = held if isinstance(held, Tensor) else torch.cat([one.reshape(-1) for one in held]) if held else None
        if flat is None:
            continue
        flags = flat.dtype == torch.bool or (flat.numel() > 1 and bool(((flat == 0) | (flat == 1)).all()))
        yield Look(name, held, level_of(held, case, plan), flat.requires_grad, flags)


def _by_result(rows: list[Any]) -> Any:
    """Results of one call per row, as one list per result."""
    if rows and isinstance(rows[0], tuple):
        return tuple([row[i] for row in rows] for i in range(len(rows[0])))
    if rows and isinstance(rows[0], dict):
        return {key: [row[key] for row in rows] for key in rows[0]}
    return rows


def _parts(returned: Any, sizes: list[int]) -> Iterator[tuple[str, Any]]:
    """Every value in what was returned, with a name."""
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        returned = {f.name: getattr(returned, f.name) for f in dataclasses.fields(returned)}
    if isinstance(returned, Mapping):
        for key, value in returned.items():
            yield from ((f"{key}.{n}" if n != "value" else str(key), v) for n, v in _parts(value, sizes))
    elif isinstance(returned, tuple) and not _are_rows(cast("tuple[Any, ...]", returned), sizes):
        for i, value in enumerate(cast("tuple[Any, ...]", returned)):
            yield from ((f"{i}.{n}" if n != "value" else str(i), v) for n, v in _parts(value, sizes))
    else:
        yield "value", returned


def _are_rows(values: tuple[Any, ...], sizes: list[int]) -> bool:
    """A tuple of rows, as `split` gives them, and not several results."""
    return [len(one) if isinstance(one, Tensor) and one.ndim == 1 else -1 for one in values] == sizes


def _as_tensors(value: Any) -> Tensor | list[Tensor] | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(np.asarray(value))
    if isinstance(value, bool | int | float):
        return torch.tensor(float(value), dtype=torch.float64)
    if isinstance(value, list | tuple):
        held = [_as_tensors(one) for one in cast("list[Any]", value)]
        if any(not isinstance(one, Tensor) for one in held):
            return None
        tensors = cast("list[Tensor]", held)
        is_row = bool(tensors) and all(one.ndim == 0 for one in tensors)
        return torch.stack([one.double() for one in tensors]) if is_row else tensors
    return None


def level_of(value: Tensor | list[Tensor], case: Case, plan: Plan) -> Level | None:
    """The level from the shape; None where no shape of the case fits."""
    if isinstance(value, list):
        lengths = [one.shape[0] if one.ndim else -1 for one in value]
        return "token" if any(lengths == sizes for sizes, _ in _lists(case, plan)) else None
    if value.ndim == 0 or (value.numel() == 1 and case.num_sequences > 1):
        return "scalar"
    if view_of(value, case, plan) is not None:
        return "token"
    return "sequence" if value.shape == (case.num_sequences,) else None


def _lists(case: Case, plan: Plan) -> list[tuple[list[int], int | None]]:
    """Lengths that a list of rows can have, and how many tokens of each row come before them; None for its prompt."""
    if plan.way != "alone":
        return [(case.response_lengths, None)]
    return [(case.lengths, 0), ([length - 1 for length in case.lengths], 1)]


def view_of(value: Tensor, case: Case, plan: Plan) -> dict[str, Any] | None:
    """How a result with one number per token lies; None where no layout of the plan has its shape."""
    if plan.way == "joined" and value.shape == (sum(case.response_lengths),):
        return {"layout": "list", "with_prompt": False}
    return next(
        (dict(held) for shape, held in layouts(case, plan.way, shift=plan.shift) if tuple(value.shape) == shape), None
    )


def result_of(case: Case, look: Look, plan: Plan, preset: Role | None, role: str | None, place: int) -> Result | None:
    if look.level is None:
        return None
    case = replace(case, touched=None)
    if place == 0 or look.is_stacked:
        kind: Kind = "term" if look.level == "token" and look.has_gradient else "statistic"
        if preset is not None:
            kind = preset.token_kind if look.level == "token" and preset.token_kind else preset.kind
    elif look.level == "token" and role in SECOND:
        kind = SECOND[role]
    elif look.level == "scalar":
        kind = "metric"
    elif look.level == "sequence" and role == "reward_normalisation":
        kind = "advantage"
    elif look.level == "token" and role == "policy_loss" and not look.is_flag:
        kind = "statistic"
    else:
        return None
    if look.level == "token":
        if isinstance(look.value, list):
            lengths = [one.shape[0] for one in look.value]
            before = next((n for sizes, n in _lists(case, plan) if sizes == lengths), None)
            rows = look.value if not before else [torch.cat([torch.zeros_like(r[:1]), r]) for r in look.value]
            return Result.token(case, rows, kind, layout="list", with_prompt=before is not None)
        view = view_of(look.value, case, plan) or {}
        if preset is not None and preset.level == "cell" and view.get("layout") == "padded":
            return Result.cell(case, look.value, kind, **{k: v for k, v in view.items() if k != "layout"})
        held = list(look.value.split(case.response_lengths)) if view.get("layout") == "list" else look.value
        return Result.token(case, held, kind, **view)
    values = look.value.reshape(()) if look.level == "scalar" and isinstance(look.value, Tensor) else look.value
    return Result.sequence(values, kind) if look.level == "sequence" else Result.scalar(values, kind)

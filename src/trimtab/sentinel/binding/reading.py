"""What a function returned, read as results: levels from shapes, a role from fields, gradients and agreement.

The only place that decides what an unbound function is.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, agreed, compacted, without_tokens
from trimtab.sentinel.binding.bind import ROLES, Role
from trimtab.sentinel.binding.callable import CannotCall, Config, Found
from trimtab.sentinel.binding.calling import TRAINED
from trimtab.sentinel.binding.facts import (
    best_aligned,
    is_alive,
    is_whitened,
    other_values,
    penalties_of,
    reads_padding,
    switched_on,
)
from trimtab.sentinel.binding.given import ROWS, layouts
from trimtab.sentinel.binding.guess import ONE_BY_ONE, Plan, called, plausible, probes
from trimtab.sentinel.binding.subject import Kind, Level, Out, Result, Subject
from trimtab.sentinel.binding.words import is_group_size, words_of

SECOND: dict[str, Kind] = {
    "returns": "return",
    "group_advantage": "return",
    "logp": "entropy",
    "importance": "importance",
}
"""The kind of a second result, by role: estimators return advantages and returns, scores come with entropies."""


ABOUT_MASKS = ("mask_content", "nonfinite_isolation", "credit_over_trainable")
NO_MASK = "it takes no mask, so it is given full rows; if its rows are padded, bind it with layout='padded'"
MOST = 3
"""How many plausible bindings are kept."""


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


def subject_of(find: Callable[..., Found]) -> Subject:
    """The most usual plausible binding, with the others as alternatives."""
    found = find()
    made = _bindings(found)
    if found.invented and not is_alive(made[0]):
        # Where a setting called "high" is a bound and not a distance, 0.28 shuts every token out.
        other = find(bounds=True)
        with suppress(CannotCall):
            tried = _bindings(other)
            made = tried if is_alive(tried[0]) else made
    return replace(made[0], alternatives=tuple(made[1:]))


def _bindings(found: Found) -> list[Subject]:
    if found.takes_a_size:
        return _bound(found, by_size=True)
    if not any(is_group_size(name) for name in _mentioned(found)):
        return _bound(found, by_size=False)
    try:  # a size of groups among the settings of an object may be for another method
        return _bound(found, by_size=False)
    except CannotCall:
        return _bound(found, by_size=True)


def _bound(found: Found, *, by_size: bool) -> list[Subject]:
    made: list[Subject] = []
    sizes: list[Plan] = []
    why = ""
    for plan in plausible(found, in_pairs if by_size else _as_it_is, by_size=by_size):
        adapt = in_pairs if by_size else _as_it_is if plan.takes_a_mask else _adapted(plan)
        try:
            made.append(_subject(found, plan, adapt, by_size=by_size))
            sizes.append(plan)
        except CannotCall as error:
            why = why or str(error)
        except Exception as error:  # foreign code may raise anything
            why = why or f"{type(error).__name__}: {error}"
        if len(made) == MOST and made[0].role != "logp":  # those are told apart by what they score
            break
    if not made:
        raise CannotCall(why)
    if (
        len(made) > 1
        and _differ_in_credit(sizes[0], sizes[1])
        and reads_padding(made[0])
        and not reads_padding(made[1])
    ):
        made[:2] = made[1::-1]  # one advantage per sequence was meant: as a row of tokens it meets padding
    made = [one for one in made if one.role is not None] or made
    return best_aligned(made)


def _differ_in_credit(first: Plan, second: Plan) -> bool:
    """Whether two plans differ only in the size of the advantages."""
    rest = [[one for one in plan.fillings if one.field != "advantage"] for plan in (first, second)]
    return first.way == second.way and rest[0] == rest[1] and first.fillings != second.fillings


def _mentioned(found: Found) -> list[str]:
    """Attributes and keys that a function, or the constructor of its class, asks a config object for."""
    if not any(isinstance(value, Config) for value in found.options.values()):
        return []
    codes = [getattr(fn, "__code__", None) for fn in (found.function, getattr(found.owner, "__init__", None))]
    names = [(*code.co_names, *code.co_consts) for code in codes if code is not None]
    # A single letter is too short a name to go by.
    return [name for told in names for name in told if isinstance(name, str) and len(name) > 1]


def _as_it_is(case: Case) -> Case:
    return case


def _adapted(plan: Plan) -> Callable[[Case], Case]:
    """A function without a mask gets batches that need none: full rows, or rows without tool output."""
    fields = {one.field for one in plan.fillings}
    if plan.way == "padded" and not fields & {"logits", "token_id"} and fields - ROWS:
        return _full
    return _as_it_is if plan.way in ("padded", "model", "sliced") else _answers_only


def _full(case: Case) -> Case:
    """Rows of one length in which every token trains."""
    if not bool(case.trainable.any()):
        raise case.cannot("it takes no mask, and no token trains")
    whole = compacted(replace(case, extra_columns=0))
    return whole if case.within is None else replace(whole, within=compacted(case.within))


def _answers_only(case: Case) -> Case:
    """Without tool output: a function that gets one row and no mask gets the tokens that train."""
    return without_tokens(case, "o")


def _subject(found: Found, plan: Plan, adapt: Callable[[Case], Case], *, by_size: bool) -> Subject:
    probe = adapt(probes()[0])
    fields = _fields(found, plan, probe)
    role = role_of(fields, _looks(found, plan, _with_leaves(probe)), found, plan, probe, by_size=by_size)
    preset = ROLES[role] if role is not None else None

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        looks = list(_looked_at(case, called(found, plan, case, options), plan))
        return {look.name: one for i, look in enumerate(looks) if (one := _result(case, look, plan, preset, role, i))}

    facts: dict[str, Any] = {"couples": preset.couples, "waived": dict(preset.waived)} if preset else {}
    facts |= {"block": 2} if by_size else {}
    if role == "keep" and "reward" in fields and ("group" in fields or by_size):
        facts["couples"] = "group"
    elif role == "keep" and not fields & {*LOGPS, "token_id"}:
        facts["couples"] = "batch"  # a share of the batch, as far as anybody knows
    if role == "response_mask":
        facts["waived"] = dict.fromkeys(("eos_semantics", "mask_content"), "which ids it is given is a guess")
    if adapt is _full:
        facts["waived"] = {**facts.get("waived", {}), **dict.fromkeys(ABOUT_MASKS, NO_MASK)}
    subject = Subject(
        found.name, call, options=dict(found.options), role=role, adapt=adapt, guessed=lines(found, plan, role),
        invented=found.invented, by_use=plan.by_use, variants=other_values(found),
        choices={**found.choices, **switched_on(found)}, said=inspect.getdoc(found.function) or "", **facts,
    )  # fmt: skip
    subject = replace(subject, penalties=penalties_of(subject, fields, probe))
    return replace(subject, couples="batch") if is_whitened(subject) else subject


def _fields(found: Found, plan: Plan, probe: Case) -> frozenset[str]:
    """The fields that its arguments name, and those that it takes out of a batch by key."""
    named = {one.field for one in plan.fillings}
    if "batch" in named:
        touched: set[str] = set()
        with torch.no_grad():
            _ = called(found, plan, replace(probe, touched=touched), found.options)
        named |= touched
    return frozenset(named | ({"advantage"} if "outcome" in named else set()))


def lines(found: Found, plan: Plan, role: str | None) -> str:
    """What was chosen, and the binding that says so."""
    shapes = {
        "whole": "[rows, width] with prompts", "alone": "one row with its prompt",
        "padded": "[rows, width]", "list": "a list of rows", "packed": "all tokens", "row": "one row",
        "joined": "all answers in one line", "sliced": "[rows, width] with prompts",
        "model": "[rows, width] with prompts",
    }  # fmt: skip
    sizes = {one.argument: "[rows]" if one.size == "sequence" else shapes[plan.way] for one in plan.fillings}
    told = ", ".join(
        f"{one.argument} = {one.field} {sizes[one.argument]}{' (by its use)' if one.field in plan.by_use else ''}"
        for one in plan.fillings
    )
    args = {one.argument: one.field for one in plan.fillings}
    layout = "" if plan.way not in ("list", "packed") else f", layout={plan.way!r}"
    bound = f"bind({found.name}, role={role!r}{layout}, args={args})"
    return f"guessed: role {role or 'unknown'}; {told}. {bound}"


def in_pairs(case: Case) -> Case:
    """Groups of two neighbours, for a function that takes groups by position."""
    group = case.sequences["group"]
    rows: list[int] = []
    for name in sorted({int(g) for g in group}):
        own = (group == name).nonzero().squeeze(1).tolist()
        rows += own[: len(own) // 2 * 2]
    if not rows:
        raise case.cannot("no two sequences answer one prompt")
    taken = case.taken(rows, as_part=case.within is not None)
    pairs = torch.arange(len(rows)) // 2
    return taken.with_sequences(group=pairs)


def _with_leaves(case: Case) -> Case:
    """What trains requires a gradient, and nothing else: data without one stays data."""
    leaves = {n: case.tokens[n].detach().clone().requires_grad_() for n in (*TRAINED, "token_loss", "kl", "advantage")}
    return case.with_tokens(**leaves)


def _looks(found: Found, plan: Plan, case: Case) -> list[Look]:
    return list(_looked_at(case, called(found, plan, case, found.options), plan))


def _looked_at(case: Case, returned: Any, plan: Plan) -> Iterator[Look]:
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


def role_of(
    fields: frozenset[str], looks: list[Look], found: Found, plan: Plan, probe: Case, *, by_size: bool
) -> str | None:
    """The most likely part of the signal, from what it reads and what its first result is like."""
    main = next((look for look in looks if look.level is not None), None)
    if main is None:
        raise CannotCall("no result has a shape that is known")
    policies = {f for f in fields if f in LOGPS}
    if fields & {"ratio", "log_ratio", "minus_log_ratio"}:
        policies |= {"logp_current", "logp_old"}
    if "gap_to_ref" in fields:
        policies = {"logp_current", "logp_ref"}
    if "teacher_logits" in fields:
        return "distillation"
    if fields & {"eos_id", "stop_ids"} and "token_id" in fields:
        return None if not main.is_flag else "keep" if "trainable" in fields else "response_mask"
    if "logits" in fields:
        if main.level == "scalar" and "token_id" in fields and main.has_gradient:
            return "kl_in_loss"  # a likelihood: a term of a loss
        return "logp" if "token_id" in fields else "entropy" if main.level == "token" else "statistic"
    if "value" in fields and "returns" in fields and not policies:
        return "value_loss" if main.has_gradient else "metric"
    if "advantage" in fields and policies:
        if "logp_ref" in fields and not main.has_gradient and main.level == "token" and not main.is_flag:
            return "kl_in_reward"  # advantages that were paid or charged for a distance
        return "keep" if main.is_flag else "policy_loss" if main.has_gradient else _numeric(main)
    if fields & {"reward", "token_reward"} and "logp_current" in policies and main.level != "token":
        return "policy_loss" if main.has_gradient else _numeric(main)
    if fields & {"reward", "token_reward"}:
        if (len(policies) > 1 or "kl" in fields) and main.level == "token" and "value" not in fields:
            return "returns" if _discounted(found) else "kl_in_reward"
        if main.is_flag and main.level == "sequence":
            return "keep"
        if "group" in fields or by_size:
            return "group_advantage" if main.level == "token" else "reward_normalisation"
        if main.level == "sequence":
            return "reward_normalisation"
        return "returns" if main.level == "token" else "metric"
    if len(policies) > 1:
        return _of_two_policies(main, found, plan, probe)
    if fields & {"token_loss", "advantage", "entropy", "kl", "returns"}:
        if main.is_flag:
            return "keep"
        return "whitening" if main.level == "token" else "aggregation" if main.has_gradient else "statistic"
    return None


def _discounted(found: Found) -> bool:
    return any(set(words_of(name)) & {"gamma", "discount"} for name in found.options)


def _numeric(main: Look) -> str | None:
    return "metric" if main.level == "scalar" else None


def _of_two_policies(main: Look, found: Found, plan: Plan, probe: Case) -> str | None:
    if main.is_flag:
        return "keep"
    if main.level == "scalar":
        counted = {one.field for one in plan.fillings} & {"count", "rows"}  # only a loss is divided by those
        return "kl_in_loss" if main.has_gradient or counted else "metric"
    same = next((look for look in _looks(found, plan, agreed(probe)) if look.name == main.name), None)
    held = same.value if same is not None else None
    numbers = torch.cat([one.reshape(-1) for one in held]) if isinstance(held, list) else held
    if not isinstance(numbers, Tensor) or not numbers.numel():
        return None
    values = numbers.double()
    if float(values.abs().max()) < 1e-6:
        return "kl"
    # A factor is 1 where policies agree; one that is another constant there is a factor with a mistake.
    some = values[values != 0]  # a mask may have made others 0
    even = bool(some.numel()) and float((some - some.max()).abs().max()) < 1e-6
    is_factor = float((values - 1).abs().min()) < 1e-6 or (even and not main.has_gradient and float(values.max()) > 0)
    return "importance" if is_factor else None


def _result(case: Case, look: Look, plan: Plan, preset: Role | None, role: str | None, place: int) -> Result | None:
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

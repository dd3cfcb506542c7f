"""A binding that nobody wrote, as a subject: a plan that runs, a role, results, and the facts that calls show.

The only place that makes subjects of functions that nobody bound.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, compacted, without_tokens
from trimtab.sentinel.binding.bind import ROLES
from trimtab.sentinel.binding.callable import CannotCall, Config, Found
from trimtab.sentinel.binding.calling import TRAINED
from trimtab.sentinel.binding.facts import (
    best_aligned,
    is_alive,
    is_whitened,
    mentioned,
    other_values,
    penalties_of,
    reads_padding,
    switched_on,
)
from trimtab.sentinel.binding.given import ROWS
from trimtab.sentinel.binding.guess import Plan, called, plausible, probes
from trimtab.sentinel.binding.look import looked_at, looks_of, result_of
from trimtab.sentinel.binding.role import role_of
from trimtab.sentinel.binding.subject import Out, Subject
from trimtab.sentinel.binding.words import is_group_size

ABOUT_MASKS = ("mask_content", "nonfinite_isolation", "credit_over_trainable")


NO_MASK = "it takes no mask, so it is given full rows; if its rows are padded, bind it with layout='padded'"


MOST = 3
"""How many plausible bindings are kept."""


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
    role = role_of(fields, looks_of(found, plan, _with_leaves(probe)), found, plan, probe, by_size=by_size)
    preset = ROLES[role] if role is not None else None

    def call(case: Case, options: Mapping[str, Any]) -> Out:
        looks = list(looked_at(case, called(found, plan, case, options), plan))
        return {look.name: one for i, look in enumerate(looks) if (one := result_of(case, look, plan, preset, role, i))}

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
        mentioned=mentioned(found, plan), choices={**found.choices, **switched_on(found)},
        said=inspect.getdoc(found.function) or "", **facts,
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

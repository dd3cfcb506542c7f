"""What a function computes, number for number: a published formula, or one with a known mistake.

The only place that compares a function with formulas that nobody declared.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, agreed
from trimtab.sentinel.batch.rest import at_rest
from trimtab.sentinel.binding.subject import Result, Subject, call_subject
from trimtab.sentinel.known import credit, surrogate, token
from trimtab.sentinel.known.averages import AVERAGES, EXTREMES, Average
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.said import told_otherwise
from trimtab.sentinel.known.token import Known

CLOSE = 1e-5
ROUGH = 5e-3
"""Stabilisers inside a spread change its numbers by less than this on ordinary rewards."""


@dataclass(frozen=True)
class Fit:
    """The formula that a result equals on every case. `mistake` is empty for a published one."""

    result: str
    formula: str
    mistake: str
    case: Case
    observed: object
    expected: object
    said: str = ""
    """The setting under which it does, where it is not the default."""


def fitted(subject: Subject, cases: Sequence[Case]) -> list[Fit]:
    """For each result that equals a known formula on every ordinary case: which. A right formula wins.

    Every text that its body asks for is tried as a setting, too.
    """
    found = _with(subject, subject.options, cases)
    for option, texts in subject.choices.items():
        base = {**subject.defaults, **subject.options}
        for text in (t for t in texts if t != base.get(option)):
            changed = {**subject.options, option: text}
            found += [replace(fit, said=f" with {option}={text!r}") for fit in _with(subject, changed, cases) if fit.mistake]
    return found


def _with(subject: Subject, options: Mapping[str, Any], cases: Sequence[Case]) -> list[Fit]:
    seen: list[tuple[Case, Mapping[str, Result]]] = []
    for case in cases:
        with suppress(Exception), torch.no_grad():  # what does not run on a case says nothing about it
            own = subject.adapt(at_rest(case, _fields(subject)))
            seen.append((own, call_subject(subject, own, options)))
    if len(seen) < 2:
        return []
    found: list[Fit] = []
    for name, result in seen[0][1].items():
        if all(name in out for _, out in seen):
            held = [(Cells(case), out[name]) for case, out in seen]
            one = _of_result(subject, name, result, held)
            found += [_as_told(subject, one, options)] if one is not None else []
    return found


def _as_told(subject: Subject, fit: Fit, options: Mapping[str, Any]) -> Fit:
    """The fit, with what its settings or its name ask for if that is another formula."""
    known = {**subject.defaults, **options}
    told = next(told_otherwise(subject.name, known, fit.formula), "")
    return replace(fit, mistake=told) if told and not fit.mistake else fit


def _fields(subject: Subject) -> frozenset[str] | None:
    return None if subject.reads is None else subject.reads | subject.inputs


Held = list[tuple[Cells, Result]]


def _of_result(subject: Subject, name: str, result: Result, held: Held) -> Fit | None:
    if all(float(one.value.double().abs().max() if one.value.numel() else 0.0) == 0 for _, one in held):
        return None
    wrong: Known | None = None
    for known in candidates(subject, result):
        if not all(_equal(known, cells, one, _tolerance(result)) for cells, one in held):
            continue
        if not known.mistake:
            return _fit(name, known, held)
        wrong = wrong or known
    return _fit(name, wrong, held) if wrong is not None else None


def _fit(name: str, known: Known, held: Held) -> Fit:
    cells, one = held[0]
    return Fit(name, known.name, known.mistake, cells.case, one.value.tolist(), "")


def _tolerance(result: Result) -> float:
    return ROUGH if result.kind in ("advantage", "reward", "return") else CLOSE


def _equal(known: Known, cells: Cells, result: Result, tolerance: float) -> bool:
    try:
        expected = known.of(cells)
    except (KeyError, RuntimeError, IndexError, ValueError):
        return False
    observed = result.value.double()
    if result.level == "token" and expected.ndim >= 2:
        expected = cells.case.from_padded(expected, with_prompt=False)
    elif result.level == "token" and expected.ndim == 1:
        expected = expected[cells.case.segments.sequence_of_token]
    if result.level == "sequence" and expected.ndim == 2:
        expected = expected[:, 0]
    if expected.shape != observed.shape:
        return False
    scale = max(1.0, float(expected.abs().max()) if expected.numel() else 1.0)
    return bool(((expected - observed).abs() <= tolerance * scale).all())


def candidates(subject: Subject, result: Result) -> Iterator[Known]:
    """Formulas that a result of this kind and level can be, from the fields that the function reads."""
    inputs, numbers = subject.inputs, settings_of(subject)
    policies = inputs & set(LOGPS)
    if result.level == "scalar":
        yield from _scalars(subject, result, numbers)
    elif result.kind in ("kl", "term", "importance") and len(policies) > 1 and not inputs & {"advantage", "outcome"}:
        yield from token.kl(inputs)
        yield from token.importance(inputs, numbers)
    elif result.kind == "term" and inputs & {"advantage", "outcome"} and policies:
        yield from surrogate.policy_losses(inputs, numbers)
    elif result.kind == "term" and "returns" in inputs and "value" in inputs:
        yield from token.squared_errors(inputs, numbers)
    elif result.kind == "entropy":
        yield from token.entropy(numbers)
    elif result.kind in ("advantage", "return", "reward") and inputs & {"reward", "token_reward"}:
        if result.level == "sequence" or "group" in inputs or subject.couples == "group":
            yield from credit.normalised()
        if result.level == "token":
            yield from credit.carried_back(inputs, numbers)
    elif result.kind == "advantage" and result.level == "token":
        for name in inputs & {"advantage", "returns", "value", "token_loss"}:
            yield from credit.whitened(name)


def _scalars(subject: Subject, result: Result, numbers: Sequence[float]) -> Iterator[Known]:
    inputs = subject.inputs
    policies = inputs & set(LOGPS)
    terms: list[Known] = []
    if result.kind == "loss" and policies and inputs & {"advantage", "outcome"}:
        terms += surrogate.policy_losses(inputs, numbers)
    elif result.kind == "loss" and "returns" in inputs:
        terms += token.squared_errors(inputs, numbers)
    elif policies:
        terms += [*token.kl(inputs), *token.gaps(inputs)] if len(policies) > 1 else []
        terms += surrogate.clip_flags(inputs, numbers) if "logp_current" in inputs else []
    if not policies:
        terms += [Known(n, lambda c, n=n: c[n]) for n in sorted(inputs & {"token_loss", "entropy", "kl", "advantage"})]
    averages = AVERAGES if result.kind == "loss" else (*AVERAGES, *EXTREMES)
    for one in terms:
        for average in averages:
            yield averaged(one, average)


def averaged(one: Known, average: Average) -> Known:
    return Known(
        f"{average.name} of {one.name}", lambda c: average.of(c, one.of(c)), one.mistake or average.mistake
    )


def settings_of(subject: Subject) -> list[float]:
    """Every number among its settings, also inside config objects."""
    found: dict[float, None] = {}
    for value in (*subject.options.values(), *subject.defaults.values()):
        for number in _numbers(value):
            found[number] = None
    return list(found)[:8]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, list | tuple):
        for one in cast("list[Any]", value):
            yield from _numbers(one)
    elif isinstance(value, Mapping):
        for one in cast("Mapping[Any, Any]", value).values():
            yield from _numbers(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _numbers(getattr(value, field.name))

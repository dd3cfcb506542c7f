"""What a function computes, number for number: a published formula, or one with a known mistake.

The only place that compares a function with formulas that nobody declared.
"""

import dataclasses
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, agreed
from trimtab.sentinel.batch.rest import at_rest
from trimtab.sentinel.binding.callable import Config
from trimtab.sentinel.binding.subject import Result, Subject, call_subject
from trimtab.sentinel.known import credit, surrogate, token
from trimtab.sentinel.known.averages import AVERAGES, EXTREMES, ROW_AVERAGES, Average, with_constant
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.said import told_otherwise
from trimtab.sentinel.known.token import Known

CLOSE = 1e-5
EXACT = 1e-9
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
            found += [
                replace(fit, said=f" with {option}={text!r}") for fit in _with(subject, changed, cases) if fit.mistake
            ]
    return found


def _with(subject: Subject, options: Mapping[str, Any], cases: Sequence[Case]) -> list[Fit]:
    subject = replace(subject, options=options)
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
    known = named({**subject.defaults, **options})
    told = next(told_otherwise(subject.name, fit.result, known, fit.formula), "")
    return replace(fit, mistake=told) if told and not fit.mistake else fit


def _fields(subject: Subject) -> frozenset[str] | None:
    return None if subject.reads is None else subject.reads | subject.inputs


Held = list[tuple[Cells, Result]]


def _of_result(subject: Subject, name: str, result: Result, held: Held) -> Fit | None:
    if all(float(one.value.double().abs().max() if one.value.numel() else 0.0) == 0 for _, one in held):
        return None
    factors = (1.0, *settings_of(subject)) if result.kind in ("loss", "term") else (1.0,)
    known = _first(candidates(subject, result), held, factors)
    if known is None and result.kind == "loss" and "logp_ref" in subject.inputs:
        known = _with_penalty(subject, result, held)
    return (
        None if known is None else Fit(name, known.name, known.mistake, held[0][0].case, held[0][1].value.tolist(), "")
    )


def _first(offered: Iterable[Known], held: Held, factors: Sequence[float]) -> Known | None:
    """The published formula that fits best; one with a mistake only where it fits clearly better than all of these."""
    found: dict[bool, tuple[float, Known]] = {}
    for known in offered:
        wrong = bool(known.mistake)
        error = _error(known, held, factors)
        if error is not None and (wrong not in found or error < found[wrong][0]):
            found[wrong] = (error, known)
            if error < EXACT and not wrong:
                break
    if False in found and (True not in found or found[False][0] <= 3 * found[True][0] + EXACT):
        return found[False][1]
    return found[True][1] if True in found else None


def _error(known: Known, held: Held, factors: Sequence[float]) -> float | None:
    """The largest difference on any case, with the factor that fits; None where it is too large."""
    left: dict[float, float] = dict.fromkeys(factors, 0.0)
    for cells, one in held:
        expected = _expected(known, cells, one)
        if expected is None:
            return None
        observed = one.value.double()
        there = torch.isfinite(expected)
        if known.partial and int(there.sum()) * 2 >= expected.numel():
            expected, observed = expected[there], observed[there]
        size = max(1.0, float(expected.abs().max()) if expected.numel() else 1.0)
        for factor in list(left):
            error = float((factor * expected - observed).abs().max()) if expected.numel() else 0.0
            # A small coefficient must not make everything equal.
            if not error <= _tolerance(one) * size * min(1.0, abs(factor)):
                del left[factor]
            else:
                left[factor] = max(left[factor], error)
        if not left:
            return None
    return min(left.values())


def _with_penalty(subject: Subject, result: Result, held: Held) -> Known | None:
    """A loss with a KL to the reference inside: first without it, where the reference agrees, then what is left."""
    quiet: Held = []
    with suppress(Exception), torch.no_grad():
        for cells, one in held:
            case = cells.case.with_tokens(logp_ref=cells.case.tokens["logp_current"].detach())
            same_result = next(r for n, r in call_subject(subject, case).items() if _is_main(r, one))
            quiet.append((Cells(case), same_result))
    if len(quiet) < len(held):
        return None
    base = _first(candidates(subject, result), quiet, (1.0,))
    if base is None:
        return None
    average = next(a for a in AVERAGES if base.name.startswith(f"{a.name} of "))
    minus = "the KL is taken from the loss instead of added"

    def penalised() -> Iterator[Known]:
        for kl in token.kl(frozenset({"logp_current", "logp_ref"})):
            for coef in settings_of(subject):
                for sign, mistake in ((1.0, ""), (-1.0, minus)):

                    def whole(c: Cells, k: Known = kl, f: float = sign * coef) -> Tensor:
                        return base.of(c) + f * average.of(c, k.of(c))

                    yield Known(
                        f"{base.name}, {'plus' if sign > 0 else 'minus'} {coef:g} × {kl.name}", whole,
                        base.mistake or mistake or kl.mistake,
                    )  # fmt: skip

    return _first(penalised(), held, (1.0,))


def _is_main(one: Result, other: Result) -> bool:
    return one.kind == other.kind and one.level == other.level


def _tolerance(result: Result) -> float:
    if result.value.dtype != torch.float64:
        return max(ROUGH if result.kind in _ROUGHLY else 0.0, 1e-4)
    return ROUGH if result.kind in _ROUGHLY else CLOSE


_ROUGHLY = ("advantage", "reward", "return")


def _expected(known: Known, cells: Cells, result: Result) -> Tensor | None:
    """The numbers of a formula in the shape of a result; None where it has none there."""
    try:
        expected = known.of(cells)
    except (KeyError, RuntimeError, IndexError, ValueError):
        return None
    if result.level == "token" and expected.ndim >= 2:
        expected = cells.case.from_padded(expected, with_prompt=False)
    elif result.level == "token" and expected.ndim == 1:
        expected = expected[cells.case.segments.sequence_of_token]
    if result.level == "sequence" and expected.ndim == 2:
        expected = expected[:, 0]
    return expected if expected.shape == result.value.shape else None


def candidates(subject: Subject, result: Result) -> Iterator[Known]:
    """Formulas that a result of this kind and level can be, from the fields that the function reads."""
    inputs, numbers = subject.inputs, settings_of(subject)
    policies = inputs & set(LOGPS)
    if result.level == "scalar":
        yield from _scalars(subject, result, numbers)
    elif result.level == "sequence" and not policies and "token_loss" in inputs:
        yield from (averaged(Known("token_loss", lambda c: c["token_loss"]), one) for one in ROW_AVERAGES)
    elif result.kind in ("kl", "term", "importance") and len(policies) > 1 and not inputs & {"advantage", "outcome"}:
        yield from token.kl(inputs)
        yield from token.importance(inputs, numbers)
    elif result.kind == "term" and inputs & {"advantage", "outcome"} and policies:
        yield from surrogate.policy_losses(inputs, numbers)
    elif result.kind == "statistic" and result.level == "token" and inputs & {"advantage", "outcome"} and policies:
        yield from (one for one in surrogate.policy_losses(inputs, numbers) if not one.is_part)
        yield from token.kl(inputs)
    elif result.kind == "term" and "returns" in inputs and "value" in inputs:
        yield from token.squared_errors(inputs, numbers)
    elif result.kind == "entropy":
        yield from token.entropy(numbers)
    elif result.kind == "logp":
        yield from token.scores(numbers)
    elif result.kind == "keep" and len(policies) > 1:
        yield from token.keeps(inputs, numbers)
    elif result.kind in ("advantage", "return", "reward") and inputs & {"reward", "token_reward"}:
        if result.level == "sequence" or "group" in inputs or subject.couples == "group":
            yield from credit.normalised()
        if result.level == "token":
            yield from credit.carried_back(inputs, numbers)
    elif result.kind == "statistic" and result.level == "sequence" and "reward" in inputs:
        yield from credit.normalised()
    elif result.kind == "advantage" and result.level == "token":
        for name in inputs & {"advantage", "returns", "value", "token_loss"}:
            yield from credit.whitened(name)


def _scalars(subject: Subject, result: Result, numbers: Sequence[float]) -> Iterator[Known]:
    inputs = subject.inputs
    if result.kind != "loss":
        yield from counts()
    policies = inputs & set(LOGPS)
    terms: list[Known] = []
    if result.kind == "loss" and policies and inputs & {"advantage", "outcome"}:
        terms += surrogate.policy_losses(inputs, numbers)
    elif result.kind == "loss" and "returns" in inputs:
        terms += token.squared_errors(inputs, numbers)
    elif policies:
        terms += [*token.kl(inputs), *token.gaps(inputs)] if len(policies) > 1 else []
        terms += surrogate.clip_flags(inputs, numbers) if "logp_current" in inputs else []
    if "logits" in inputs and not policies:
        terms += token.entropy(numbers)
    if not policies:
        terms += [Known(n, lambda c, n=n: c[n]) for n in sorted(inputs & {"token_loss", "entropy", "kl", "advantage"})]
    averages = AVERAGES if result.kind == "loss" else (*AVERAGES, *EXTREMES)
    if len(terms) == 1:
        averages = (*averages, *(one for n in numbers if n > 1 for one in with_constant(n)))
    for one in terms:
        for average in averages:
            yield averaged(one, average)


def counts() -> Iterator[Known]:
    """Numbers about the batch that are no averages."""
    yield Known("number of rows", lambda c: torch.tensor(float(c.mask.shape[0]), dtype=torch.float64))
    yield Known("number of sequences that train", lambda c: (c.mask.sum(1) > 0).double().sum())
    yield Known("number of tokens that train", lambda c: c.mask.sum())


def averaged(one: Known, average: Average) -> Known:
    """An average of a formula. The formula is computed once per case, however many averages are tried."""
    return Known(f"{average.name} of {one.name}", lambda c: average.of(c, c.once(one)), one.mistake or average.mistake)


def named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name, also those inside config objects."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        inner = inside(value)
        found |= inner if inner is not None else {name: value}
    return found


def inside(value: Any) -> dict[str, Any] | None:
    """What a config object holds; None for everything else."""
    if isinstance(value, Mapping):
        return {str(k): v for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Config):
        return dict(value.asked)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return dict(vars(value)) if isinstance(value, SimpleNamespace | Namespace) else None


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
    else:
        for one in (inside(value) or {}).values():
            yield from _numbers(one)

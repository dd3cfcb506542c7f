"""What a function computes, number for number: a published formula, or one with a known mistake.

The only place that compares a function with formulas that nobody declared.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.batch.perturb import LOGPS, paid_where_it_trains
from trimtab.sentinel.batch.rest import at_rest
from trimtab.sentinel.binding.calling import call_subject
from trimtab.sentinel.binding.sameness import same
from trimtab.sentinel.binding.settings import named, others, settings_of, switches, with_setting
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.binding.words import words_of
from trimtab.sentinel.known import token
from trimtab.sentinel.known.averages import AVERAGES
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.masks import endings, turns, with_a_constant_group
from trimtab.sentinel.known.offered import candidates
from trimtab.sentinel.known.said import told_otherwise
from trimtab.sentinel.known.shaped import as_shaped
from trimtab.sentinel.known.slope import WRONG, slope_apart
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
    """The first ordinary case, and its numbers below."""
    observed: object
    said: str = ""
    """The setting under which it does, where it is not the default."""


@dataclass(frozen=True)
class Path:
    """What the results are under some options; `said` tells which, where they are not those of the binding."""

    said: str
    options: Mapping[str, Any]
    fits: tuple[Fit, ...]
    is_other: bool = True
    """It runs other lines than with the options of the binding, and not only other numbers."""


def paths(subject: Subject, cases: Sequence[Case]) -> list[Path]:
    """What each result is, with the options of the binding first.

    Every other setting is tried, too: a mistake behind a switch, or hidden by a factor of 1, shows there only.
    """
    first = _with(subject, subject.options, cases)
    walked = [Path("", subject.options, tuple(first))]
    opening = switches(subject)
    # Where no formula fits at all, another number will not help; another path through the body may.
    for option, value in (others if first else switches)(subject)[:MOST]:
        if not subject.by_use and any(fit.mistake for path in walked for fit in path.fits):
            break
        said = f" with {option}={value!r}"
        options = with_setting(subject, option, value)
        there = [
            replace(fit, said=said, mistake=fit.mistake or _more_than_asked(option, fit, first))
            for fit in _with(opened(subject), options, cases)
        ]
        walked.append(Path(said, options, tuple(there), (option, value) in opening))
    return _in_one_direction(walked) if subject.by_use & set(LOGPS) else walked


def opened(subject: Subject) -> Subject:
    """The subject with what it reads on any path among its inputs: behind a switch, it may read more."""
    return replace(subject, inputs=subject.inputs | ((subject.reads or frozenset()) & READ_BY_NAME))


READ_BY_NAME = frozenset({*LOGPS, "entropy", "advantage", "returns", "value", "value_old", "kl"})


def _in_one_direction(walked: list[Path]) -> list[Path]:
    """Which policy sampled is not known here. A direction is a mistake only where two paths have different ones."""
    directed = (fit for path in walked for fit in path.fits if "k1 of" in fit.formula or "k3 of" in fit.formula)
    every = {(fit.result, fit.formula.endswith(TURNED)) for fit in directed}
    both = {result for result, is_turned in every if (result, not is_turned) in every}
    return [
        replace(path, fits=tuple(
            fit if fit.result in both or "turned around" not in fit.mistake else replace(fit, mistake="")
            for fit in path.fits
        ))
        for path in walked
    ]  # fmt: skip


def fitted(subject: Subject, cases: Sequence[Case]) -> list[Fit]:
    """For each result that equals a known formula on every ordinary case: which. A right formula wins."""
    first, *rest = paths(subject, cases)
    return [*first.fits, *(fit for path in rest for fit in path.fits if fit.mistake)]


def _more_than_asked(option: str, fit: Fit, found: Sequence[Fit]) -> str:
    """A switch about the spread of rewards leaves their centre alone."""
    before = next((one for one in found if one.result == fit.result), None)
    about = set(words_of(option)) & {"std", "spread", "deviation"} and not set(words_of(option)) & {"mean", "center"}
    if not about or before is None or not all(one.formula.startswith("reward") for one in (fit, before)):
        return ""
    first, second = (one.formula.partition(", over")[0] for one in (before, fit))
    return f"{option} is about the spread, and it also turns {first!r} into {second!r}" if first != second else ""


TURNED = ", turned around"

MOST = 8
"""How many other settings are tried."""


Seen = Sequence[tuple[Case, Mapping[str, Result]]]
"""Cases, and what a function gave on them."""


def answers(subject: Subject, options: Mapping[str, Any], cases: Sequence[Case]) -> Seen:
    """What the function gives on ordinary cases that suit it."""
    if subject.reading("eos_id", "stop_ids") and subject.reading("token_id"):
        cases = turns() if subject.role == "keep" else endings(several=subject.reading("stop_ids"))
    if subject.role == "keep" and subject.reading("reward"):
        cases = with_a_constant_group(cases)
    seen: list[tuple[Case, Mapping[str, Result]]] = []
    for case in cases:
        with suppress(Exception), torch.no_grad():  # what does not run on a case says nothing about it
            own = subject.adapt(at_rest(case, subject.fields))
            if subject.reading("token_reward") and not subject.reading("reward"):
                own = paid_where_it_trains(own)
            seen.append((own, call_subject(subject, own, options)))
    return seen


def _with(subject: Subject, options: Mapping[str, Any], cases: Sequence[Case]) -> list[Fit]:
    """The fits under some options. Many results are bounded: where policies are closer, they may tell what they are."""
    seen = answers(subject, options, cases)
    there = replace(subject, options=options)
    found = _fitting(there, seen)
    left = {name for out in seen[:1] for name in out[1]} - {fit.result for fit in found}
    return found if not left or len(seen) < 3 else [*found, *_fitting(there, seen[:-1], only=left)]


def _fitting(subject: Subject, seen: "Seen", *, only: Collection[str] | None = None) -> list[Fit]:
    inputs, options = subject.inputs, subject.options
    if len(seen) < 2:
        return []
    found: list[Fit] = []
    idle = _idle_policies(subject, seen)
    for name, result in seen[0][1].items():
        if (only is None or name in only) and all(name in out for _, out in seen):
            subject = replace(subject, inputs=inputs - idle.get(name, frozenset()))
            held = [(Cells(case, by_token=not subject.reading("reward")), out[name]) for case, out in seen]
            one = _of_result(subject, name, result, held)
            is_loss = result.kind in ("loss", "term", "statistic", "kl")
            found += [_as_told(subject, one, options, is_loss=is_loss)] if one is not None else []
    meant = {fit.formula for fit in found}
    # Both directions in one report are there on purpose.
    return [replace(f, mistake="") if f.formula.removesuffix(TURNED) in meant - {f.formula} else f for f in found]


def _idle_policies(subject: Subject, seen: Seen) -> dict[str, frozenset[str]]:
    """For each result, the policies that it is given and does not follow on any case."""
    idle = {name: set(subject.inputs & set(LOGPS)) for name in seen[-1][1]}
    for case, out in reversed(seen):
        wave = torch.sin(torch.arange(case.trainable.numel(), dtype=torch.float64) * 1.7)
        open_ones = sorted({one for policies in idle.values() for one in policies})
        for policy, far in product(open_ones, (0.3, 2.0)):
            with suppress(Exception), torch.no_grad():
                other = call_subject(subject, case.with_tokens(**{policy: case.tokens[policy] - far * (1 + wave)}))
                for name in idle:
                    if name in other and name in out and not same(out[name].value, other[name].value):
                        idle[name].discard(policy)
    return {name: frozenset(policies) for name, policies in idle.items()}


def _as_told(subject: Subject, fit: Fit, options: Mapping[str, Any], *, is_loss: bool) -> Fit:
    """The fit, with what its settings or its name ask for if that is another formula."""
    known = named({**subject.defaults, **options})
    told = next(told_otherwise(subject.name, fit.result, known, fit.formula, said=subject.said, is_loss=is_loss), "")
    return replace(fit, mistake=told) if told and not fit.mistake else fit


Held = list[tuple[Cells, Result]]


def _of_result(subject: Subject, name: str, result: Result, held: Held) -> Fit | None:
    if all(float(one.value.double().abs().max() if one.value.numel() else 0.0) == 0 for _, one in held):
        return None
    if result.level == "scalar" and len({float(one.value) for _, one in held}) == 1:
        return None  # a number that never changes is no formula
    factors = (1.0, *settings_of(subject)) if result.kind in ("loss", "term") else (1.0,)
    known = _first(candidates(subject, result), held, factors)
    if known is None and result.kind == "loss" and "logp_ref" in subject.inputs:
        known = _with_penalty(subject, result, held)
    if known is None:
        return None
    is_loss = result.kind in ("loss", "term") and not known.mistake
    mistake = WRONG if is_loss and slope_apart(subject, name, known, held) else known.mistake
    return Fit(name, known.name, mistake, held[0][0].case, held[0][1].value.tolist())


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
        expected = as_shaped(known, cells, one)
        if expected is None:
            return None
        size, apart = _apart(known, expected, one.value)
        allowed = _tolerance(one) * size
        errors = {factor: apart(factor) for factor in left}
        # A small coefficient must not make everything equal.
        left = {f: max(left[f], e) for f, e in errors.items() if e <= allowed * min(1.0, abs(f))}
        if not left:
            return None
    return min(left.values())


def _apart(known: Known, expected: Tensor, observed: Tensor) -> tuple[float, Callable[[float], float]]:
    """The size of the numbers, and how far they are from a multiple of a formula."""
    if not expected.ndim:  # by far the most: thousands of averages are tried for one loss
        told, seen = float(expected), float(observed)
        return max(1.0, abs(told)), lambda factor: abs(factor * told - seen)
    there = torch.isfinite(expected)
    observed = observed.double()
    if known.partial and int(there.sum()) * 2 >= expected.numel():
        expected, observed = expected[there], observed[there]
    if not expected.numel():
        return 1.0, lambda _: 0.0
    return max(1.0, float(expected.abs().max())), lambda factor: float((factor * expected - observed).abs().max())


def _with_penalty(subject: Subject, result: Result, held: Held) -> Known | None:
    """A loss with a KL to the reference inside: first without it, where the reference agrees, then what is left."""
    quiet: Held = []
    with suppress(Exception), torch.no_grad():
        for cells, one in held:
            case = cells.case.with_tokens(logp_ref=cells.case.tokens["logp_current"].detach())
            same_result = next(r for r in call_subject(subject, case).values() if _is_main(r, one))
            quiet.append((Cells(case), same_result))
    if len(quiet) < len(held):
        return None
    base = _first(candidates(subject, result), quiet, (1.0,))
    if base is None:
        return None
    average = next((a for a in AVERAGES if base.name.startswith(f"{a.name} of ")), None)
    if average is None:
        return None
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

"""Metrics are correct, can reach both ends of their range, and combine correctly."""

import math

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import CannotRepresent, Case
from trimtab.sentinel.batch.perturb import LOGPS, agreed, drifted, parts
from trimtab.sentinel.binding.calling import Seen, of_kind, run
from trimtab.sentinel.binding.sameness import SINGLE, same
from trimtab.sentinel.binding.subject import Out, Result, Subject
from trimtab.sentinel.invariants.alignment import source
from trimtab.sentinel.invariants.apart import differing
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant, numbers
from trimtab.sentinel.invariants.definition import as_numbers

_READ = ("metric", "observation", "statistic", "kl")


@invariant(
    family="I22",
    statement="A metric equals its recomputation from raw trainable tokens, stays inside its range, and shows no "
    "difference where the policies agree. It keeps counts of tokens and of sequences apart.",
    why="People steer by these numbers. "
    "A metric that cannot change, or that measures something other than its name says, hides the failure.",
    bug="TRL 488025cd8: the clip fraction counted ratios outside the band even where min() does not clip.",
    repair="Recompute it from raw trainable tokens. Test an input that must give 0 and one that must give 1.",
)
def metric_truth(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, case)
    expected = _defined(subject, case)
    absent = sorted(n for n, r in expected.items() if r.kind == "observation" and n not in seen.values)
    if absent:
        return _misread(f"{absent[0]} is not reported", "nothing", numbers(expected[absent[0]].value))
    found = [(n, r) for n, r in of_kind(seen.results, case, *_READ)]
    for name, result in found:
        value = as_numbers(seen.values[name])
        if result.kind != "kl":
            wrong = _implausible(name, result, value)
            if wrong:
                return wrong
        owed = expected[name].value.detach() if name in expected else _recomputed(case, result)
        # A number that .item() read from single precision does not show its dtype.
        tolerance = 1e-8 if value.dtype == torch.float64 and result.level != "scalar" else SINGLE
        if owed is not None and not same(as_numbers(owed).reshape(value.shape), value, tolerance=tolerance):
            return differing(
                f"{name} does not measure what its name says", result, as_numbers(owed).reshape(value.shape), value
            )
    return _where_policies_agree(subject, case, found)


def _defined(subject: Subject, case: Case) -> Out:
    """Values from the definition; empty if there is none, because a binding may also name a metric's source."""
    try:
        return subject.definition(case, subject.options) if subject.definition is not None else {}
    except CannotRepresent:
        return {}


def _misread(what: str, observed: object, expected: object) -> Violation:
    return Violation(what, observed, expected, effect=Effect("metric"))


def _implausible(name: str, result: Result, value: Tensor) -> Violation | None:
    if not bool(torch.isfinite(value).all()):
        return _misread(f"{name} is not finite", numbers(value), "a finite number")
    is_flag = result.value.dtype == torch.bool or bool(((value == 0) | (value == 1)).all())
    if result.kind == "observation" and not is_flag:
        return _misread(f"{name} is not boolean, so its fraction can leave [0, 1]", str(result.value.dtype), "bool")
    if result.range is not None:
        low, high = result.range
        if bool((value < low - 1e-6).any()) or bool((value > high + 1e-6).any()):
            return _misread(f"{name} leaves its range", numbers(value), [low, high])
    return None


def _recomputed(case: Case, result: Result) -> Tensor | None:
    """The metric, recomputed from the source that its binding names; None where it names none."""
    if result.of is None:
        return None
    values = source(case, result)
    if result.level != "scalar" or result.reduction is None:
        return values
    if not values.numel():
        return torch.zeros((), dtype=torch.float64)
    return {"sum": values.sum, "mean": values.mean, "max": values.max, "min": values.min}[result.reduction]()


def _where_policies_agree(subject: Subject, case: Case, found: list[tuple[str, Result]]) -> Violation | None:
    owed = {n: 0.0 if r.agreed is None else r.agreed for n, r in found if r.agreed is not None or r.kind == "kl"}
    if not owed or not subject.reading(*LOGPS) or not bool(case.trainable.any()):
        return None
    quiet = run(subject, agreed(case))
    for name, number in owed.items():
        value = as_numbers(quiet.values[name])
        if not same(value, torch.full_like(value, number), tolerance=1e-7):
            return _misread(f"{name} is not {number:g} where all policies agree", numbers(value), number)
    return None


@invariant(
    family="I22",
    statement="A metric changes with its input and comes near both ends of its range on some batch.",
    why="A fraction that is always 0 looks reassuring for months.",
    bug="verl fa23b696d: the dual-clip fraction could never be anything but 0.",
    repair="Build an input that must give each end. Keep both as tests.",
    some=True,
)
def metric_reach(subject: Subject, case: Case) -> tuple[Violation, ...] | None:
    if subject.guessed:
        raise case.cannot("nobody said which of its results are metrics")
    base = run(subject, case)
    read = [(n, r) for n, r in of_kind(base.results, case, "metric") if r.level == "scalar"]
    if not read or not bool(case.trainable.any()):
        raise case.cannot("no metric is a number")
    reached: dict[str, list[float]] = {name: [float(base.values[name])] for name, _ in read}
    for one in _extremes(case):
        try:
            seen = run(subject, subject.adapt(one))
        except CannotRepresent:
            continue
        for name, _ in read:
            reached[name].append(float(seen.values[name]))
    claims: list[Violation] = []
    for name, result in read:
        finite = [v for v in reached[name] if math.isfinite(v)]
        if finite and max(finite) - min(finite) <= 1e-12:
            what = f"{name} never moves from {finite[0]:.6g}"  # a different number on another case is a separate claim
            claims.append(_misread(what, finite[0], "another value on some case"))
        for end, which in zip(result.range or (), ("lower", "upper"), strict=False):
            near = 0.1 * (result.range[1] - result.range[0]) if result.range else 0.0
            if math.isfinite(end) and math.isfinite(near) and all(abs(v - end) > near for v in finite):
                best = min((abs(v - end), v) for v in finite)[1] if finite else None
                claims.append(_misread(f"{name} never comes near its {which} end, {end:g}", best, end))
    return tuple(claims) or None


def _extremes(case: Case) -> list[Case]:
    """All policies equal, and each one far above and far below the others, with both signs of the advantage."""
    found = [agreed(case)]
    even = drifted(case, 0.0)
    for leaf in (n for n in LOGPS if n in case.tokens and n != "logp_current"):
        rest = {n: even.tokens[n] - 3.0 for n in LOGPS if n in case.tokens and n != leaf}
        found += [even.with_tokens(**{leaf: even.tokens[leaf] - 3.0}), even.with_tokens(**rest)]
    if "value" in case.tokens and "value_old" in case.tokens:
        far = case.tokens["value_old"] + 3.0
        found += [case.with_tokens(value=far, returns=far), case.with_tokens(value=case.tokens["value_old"])]
    for amount in (0.7, -0.7, 3.0, -3.0):
        for sign in (1.0, -1.0):
            there = drifted(case, amount).with_tokens(advantage=torch.full_like(case.tokens["advantage"], sign))
            found.append(there.with_sequences(outcome=torch.full_like(case.sequences["outcome"], sign)))
    if "value" in case.tokens and "value_old" in case.tokens:
        found += [case.with_tokens(value=case.tokens["value_old"] + amount) for amount in (0.0, 3.0)]
    return found


@invariant(
    family="I22",
    statement="Parts of a metric combine into the whole: extrema by extremum, means by weight, sums by sum.",
    why="An average of maxima over ranks is not a maximum, and a mean of means gives too much weight to small ranks.",
    bug="miles 319716c02: cross-rank maxima and minima were averaged, so 10 and 2 showed as 6.",
    repair="Carry (total, count) or an extremum to the end. Divide once.",
)
def metric_reduction(subject: Subject, case: Case) -> Violation | None:
    whole = run(subject, case)
    read = [
        (n, r) for n, r in of_kind(whole.results, case, "metric", "statistic") if r.reduction and r.level == "scalar"
    ]
    if not read:
        raise case.cannot("no metric declares how its parts combine")
    for groups in parts(case, by_group=subject.couples == "group"):
        pieces = [case.taken(rows, as_part=True) for rows in groups]
        filled = [p for p in pieces if bool(p.trainable.any())]
        if len(filled) < 2:
            continue
        seen = [run(subject, piece) for piece in filled]
        for name, result in read:
            if result.population == "sequence" and len(filled) < len(pieces):
                continue  # a part without a trainable token has sequences, but no value to weight
            values = torch.stack([as_numbers(one.values[name]).double().reshape(()) for one in seen])
            total = _reduced(result, values, filled)
            if subject.reading("whole") and result.reduction == "mean" and _adds_up(whole, name, values):
                continue  # each part got the counts of the whole, so it is its share of the mean
            if not same(as_numbers(whole.values[name]).double().reshape(()), total, tolerance=SINGLE):
                what = f"splitting the batch in {len(filled)} changes {name}"
                return _misread(what, float(total), float(whole.values[name]))
    return None


def _adds_up(whole: Seen, name: str, values: Tensor) -> bool:
    return same(as_numbers(whole.values[name]).double().reshape(()), values.sum(), tolerance=SINGLE)


def _reduced(result: Result, values: Tensor, pieces: list[Case]) -> Tensor:
    if result.reduction == "mean":
        counts = [p.segments.num_tokens if result.population == "token" else p.num_sequences for p in pieces]
        weight = torch.tensor(counts, dtype=torch.float64)
        return (values * weight).sum() / weight.sum()
    return {"sum": values.sum, "max": values.max, "min": values.min}[result.reduction or "sum"]()

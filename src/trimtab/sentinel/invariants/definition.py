"""Results compared with their definition in plain loops, and with another implementation."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case, WrongBinding
from trimtab.sentinel.batch.perturb import LOGPS, near
from trimtab.sentinel.binding.calling import TRAINED, Seen, run
from trimtab.sentinel.binding.sameness import SINGLE, same
from trimtab.sentinel.binding.settings import with_setting
from trimtab.sentinel.binding.subject import Call, Subject
from trimtab.sentinel.invariants.apart import apart, differing
from trimtab.sentinel.invariants.declare import Effect, Violation, invariant
from trimtab.sentinel.invariants.surrogate import into_fixed
from trimtab.signal.layout import places

STEP = 1e-6
"""Half the step of the central difference that a gradient is compared with."""
CONSTANTS = 1e-6
"""Relative tolerance of a result in float64. A setting stored in single precision, or a stabiliser, needs it."""
ROUNDING = 1e-14
"""Relative rounding error of a loop in float64, as in a difference of two large numbers."""
KINK = 1e-4
"""If the left and right slopes differ by more than this, the point is a kink, where either slope is a gradient."""


@invariant(
    family="I11",
    statement="In every mode, results equal their definition, computed with plain loops, "
    "and their gradients equal its slopes.",
    why="One name stands for many formulas. The code must compute the one that its name and its source state.",
    bug="verl 7fc8330d9: the aggregation called seq-mean-token-sum returned the token mean.",
    repair="Compare with a ten-line loop on small inputs, for every option. Then compare slopes.",
)
def equals_definition(subject: Subject, case: Case) -> Violation | None:
    if subject.definition is None:
        raise case.cannot("there is no definition to compare with")
    if not bool(case.trainable.any()):
        raise case.cannot("nothing trains: degenerate_bounded checks the mean over no tokens")
    for chosen in option_sets(subject, _read_by(subject.definition, case, subject.options)):
        if chosen != subject.options and not _covers(subject.definition, case, chosen):
            continue
        found = _holds_with(replace(subject, options=chosen), case)
        if found is not None:
            apart_from = {n: v for n, v in chosen.items() if v != subject.options.get(n)}
            told = "".join(f", with {n} = {v!r}" for n, v in apart_from.items())
            return replace(found, what=found.what + told)
    return None


def option_sets(subject: Subject, names: frozenset[str] | None = None) -> Iterator[dict[str, Any]]:
    """The options of the binding; each with one of its other values; and all of them changed at once."""
    own = dict(subject.options)
    yield own
    others = {n: values for n, values in subject.variants.items() if values and (names is None or n in names)}
    for name, values in others.items():
        for value in values:
            yield with_setting(subject, name, value)
    if len(others) > 1:
        for name, values in others.items():
            own = with_setting(replace(subject, options=own), name, values[-1])
        yield own


class _Reading(dict[str, Any]):
    """Options that note which of them are read."""

    def __init__(self, options: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(options)
        self.read = read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def _read_by(definition: Call, case: Case, options: Mapping[str, Any]) -> frozenset[str]:
    """The options that a definition follows. It says nothing about other values of the others."""
    read: set[str] = set()
    _ = definition(case, _Reading(options, read))
    return frozenset(read)


def _covers(definition: Call, case: Case, options: Mapping[str, Any]) -> bool:
    """Whether a definition is about other options than those of its binding; None may switch something off."""
    try:
        _ = definition(case, options)
    except TypeError:
        return not any(value is None for value in options.values())
    return True


def _holds_with(subject: Subject, case: Case) -> Violation | None:
    found = _differs(subject, case)
    if found is None or not subject.reading(*LOGPS):
        return found
    # Many functions bound their exponent. That is a choice, as long as they agree where policies are close.
    closer = subject.adapt(near(case))
    is_far = any(not same(case.tokens[n], closer.tokens[n]) for n in LOGPS if n in case.tokens)
    if not is_far or _differs(subject, closer) is not None:
        return found
    what = f"{found.what}, only where policies are more than 10 apart in log-prob"
    return replace(found, what=what, grade="convention")


def _differs(subject: Subject, case: Case) -> Violation | None:
    assert subject.definition is not None
    seen, expected = run(subject, case), subject.definition(case, subject.options)
    if not set(expected) & set(seen.values):
        raise WrongBinding(
            f"its definition gives {', '.join(sorted(expected))}, and the function gives "
            f"{', '.join(sorted(seen.values))}: "
            "nothing is compared. Use the same names, as in like(…, result=NAME)."
        )
    for name, result in expected.items():
        if result.kind in ("observation", "metric") or name not in seen.values:
            continue
        value = seen.values[name]
        tolerance = CONSTANTS if value.dtype == torch.float64 else SINGLE
        if not same(as_numbers(value), as_numbers(result.value.detach()), tolerance=tolerance):
            what = f"{name} differs from its definition"
            return differing(what, seen.results[name], as_numbers(result.value.detach()), as_numbers(value))
        found = _slopes(subject, case, seen, name) if result.kind in ("term", "kl", "loss") else None
        if found:
            return found
    return None


def _slopes(subject: Subject, case: Case, seen: Seen, name: str) -> Violation | None:
    """Gradients into trained inputs against finite differences of the definition, away from its kinks."""
    detached = subject.stops_gradient or getattr(subject.definition, "stops_gradient", False)
    if detached or seen.values[name].dtype != torch.float64:
        return into_fixed(subject, seen, name) if seen.results[name].kind != "kl" else None
    for leaf in TRAINED:
        if leaf not in subject.inputs or leaf not in case.tokens or case.tokens[leaf].ndim > 1:
            continue
        if name in seen.blocked:
            return None
        if name not in seen.gradients:
            return Violation(f"{name} is not connected to {leaf}", "no gradient", "the slope of its definition")
        gradient = seen.gradients[name][leaf]
        for place in places(case.trainable):
            left, middle, right = (_moved(subject, case, name, leaf, place, step) for step in (-STEP, 0.0, STEP))
            # Take differences first and sum them afterwards: a huge loss value elsewhere must not swallow the slope.
            before, after = float((middle - left).sum()) / STEP, float((right - middle).sum()) / STEP
            slope, found = (before + after) / 2, float(gradient[place])
            # A number that stands alone is rounded as a whole, even where the step did not show in it.
            touched = torch.ones_like(middle) if middle.numel() == 1 else (right - left != 0).to(middle.dtype)
            allowed = KINK * max(1.0, abs(slope)) + ROUNDING * float((touched * middle.abs()).sum()) / STEP
            wrong = abs(before - after) <= allowed and abs(slope - found) > allowed
            if wrong and not _tied(subject, case, name, leaf, place, slope):
                size = abs(slope - found) / max(abs(slope), 1e-12)
                what = f"d {name} / d {leaf} is not the slope at token {place}"
                return Violation(what, found, slope, effect=Effect("gradient", (), size))
    return into_fixed(subject, seen, name)


def _tied(subject: Subject, case: Case, name: str, leaf: str, place: int, slope: float) -> bool:
    """Whether the gradient is right slightly to the left and right. At a tie, max(x, x), autograd may halve it."""
    sides: list[float] = []
    for step in (-KINK, KINK):
        moved = case.tokens[leaf].clone()
        moved[place] += step
        seen = run(subject, case.with_tokens(**{leaf: moved}))
        sides.append(float(seen.gradients[name][leaf][place]))
    return all(abs(side - slope) <= 10 * KINK * max(1.0, abs(slope)) for side in sides)


def _moved(subject: Subject, case: Case, name: str, leaf: str, place: int, step: float) -> Tensor:
    """The definition's result with one token of one input moved by a step."""
    assert subject.definition is not None
    moved = case.tokens[leaf].clone()
    moved[place] += step
    return subject.definition(case.with_tokens(**{leaf: moved}), subject.options)[name].value.detach()


@invariant(
    family="I23",
    statement="Two implementations of one formula agree in values and in gradients. "
    "An option that is declared indifferent, such as the size of a chunk, changes nothing.",
    why="Training runs the fused, vectorised or packed path. Tests run the plain one. So only one of them is tested.",
    bug="A vectorised leave-one-out baseline differed from the loop for a group of one sample.",
    repair="Keep the slow path. Compare both on ragged, single-sample, constant and extreme inputs.",
)
def twins_agree(subject: Subject, case: Case) -> Violation | None:
    if subject.twin is None and not subject.indifferent:
        raise case.cannot("its binding names no second implementation (twin) and no indifferent option")
    for name, values in subject.indifferent.items():
        for value in values:
            other = run(subject, case, with_setting(subject, name, value))
            found = apart(f"{name} = {value!r}", run(subject, case), other, tolerance=1e-7)
            if found:
                return found
    for chosen in option_sets(subject) if subject.twin is not None else ():
        told = "".join(f" with {n} = {v!r}" for n, v in chosen.items() if v != subject.options.get(n))
        other = run(replace(subject, call=subject.twin or subject.call), case, chosen)
        found = apart(f"the other implementation{told}", other, run(subject, case, chosen), tolerance=1e-7)
        if found:
            return found
    return None


def as_numbers(values: Tensor) -> Tensor:
    """Booleans become 0 and 1; numbers stay as they are."""
    return values if values.dtype.is_floating_point else values.double()

"""Results against the long way round, and metrics against what they are called."""

import torch
from torch import Tensor

from trimtab.sentinel.case import Case
from trimtab.sentinel.invariants.content import differing
from trimtab.sentinel.invariants.contract import into_fixed
from trimtab.sentinel.invariants.declare import Violation, invariant, numbers
from trimtab.sentinel.subject import TRAINED, Out, Seen, Subject, of_kind, run, same
from trimtab.signal.layout import places

STEP = 1e-6
"""Half the distance of the central difference that a gradient is compared with."""
ROUNDING = 1e-14
"""Relative rounding of a loop in float64: what is left of a difference of two large numbers."""
KINK = 1e-4
"""Slopes to the left and right that differ by more than this lie at a kink, where a gradient may be either."""


@invariant(
    statement="A named formula equals its definition, worked out token by token in plain arithmetic, in every mode; "
    "its gradient is the slope of that definition, and inputs it holds fixed get none.",
    why="One word has many formulas; the code must be the one its name and source say.",
    bug="verl 7fc8330d9: the aggregation called seq-mean-token-sum returned the token mean.",
    repair="Compare with a ten-line loop on small inputs, for every option; then compare slopes.",
)
def equals_definition(subject: Subject, case: Case) -> Violation | None:
    if subject.definition is None:
        raise case.cannot("there is no definition to compare with")
    seen, expected = run(subject, case), subject.definition(case, subject.options)
    for name, result in expected.items():
        if result.kind == "observation":
            continue
        value = seen.values[name]
        if not same(as_numbers(value), result.value, tolerance=1e-8):
            return Violation(
                f"{name} is not what its definition gives",
                numbers(value),
                numbers(result.value),
                differing(value, result.value),
            )
        found = _slopes(subject, case, seen, name) if result.kind in ("term", "kl", "loss") else None
        if found:
            return found
    return None


def _slopes(subject: Subject, case: Case, seen: Seen, name: str) -> Violation | None:
    """Gradients into trained inputs against finite differences of the definition, away from its kinks."""
    if subject.stops_gradient:
        return into_fixed(seen, name)
    for leaf in TRAINED:
        if leaf not in subject.inputs or leaf not in case.tokens:
            continue
        if name not in seen.gradients:
            return Violation(f"{name} is not connected to {leaf}", "no gradient", "the slope of its definition")
        gradient = seen.gradients[name][leaf]
        for place in places(case.trainable):
            left, middle, right = (_moved(subject, case, name, leaf, place, step) for step in (-STEP, 0.0, STEP))
            # Differences first, sums after: a huge loss elsewhere must not swallow the slope.
            before, after = float((middle - left).sum()) / STEP, float((right - middle).sum()) / STEP
            slope, found = (before + after) / 2, float(gradient[place])
            allowed = KINK * max(1.0, abs(slope)) + ROUNDING * float((right - left != 0).mul(middle.abs()).sum()) / STEP
            if abs(before - after) <= allowed and abs(slope - found) > allowed:
                return Violation(f"d {name} / d {leaf} is not the slope at token {place}", found, slope)
    return into_fixed(seen, name)


def _moved(subject: Subject, case: Case, name: str, leaf: str, place: int, step: float) -> Tensor:
    """The definition's result with one token of one input moved by a step."""
    assert subject.definition is not None
    moved = case.tokens[leaf].clone()
    moved[place] += step
    return subject.definition(case.with_tokens(**{leaf: moved}), subject.options)[name].value


@invariant(
    statement="A metric or observation equals its recomputation, stays inside its range, "
    "and is told apart by sequence or token.",
    why="People steer by these numbers; "
    "one that cannot move, or shows something else than its name, hides the failure.",
    bug="TRL 488025cd8: the clip fraction counted ratios outside the band even where min() does not clip.",
    repair="Recompute it from raw trainable tokens; craft an input that must give 0 and one that must give 1.",
)
def metric_truth(subject: Subject, case: Case) -> Violation | None:
    seen = run(subject, case)
    expected: Out = subject.definition(case, subject.options) if subject.definition is not None else {}
    absent = sorted(
        name for name, result in expected.items() if result.kind == "observation" and name not in seen.values
    )
    if absent:
        return Violation(f"{absent[0]} is not reported", "nothing", numbers(expected[absent[0]].value))
    for name, result in of_kind(seen.results, case, "metric", "observation"):
        value = seen.values[name]
        if not bool(torch.isfinite(as_numbers(value)).all()):
            return Violation(f"{name} is not finite", numbers(value), "a finite number")
        size = {"token": case.segments.num_tokens, "sequence": case.num_sequences}.get(result.level)
        if size is not None and value.shape != (size,):
            return Violation(f"{name} has shape {list(value.shape)}", list(value.shape), [size])
        if result.kind == "observation" and value.dtype != torch.bool:
            return Violation(f"{name} is no flag, so its fraction can leave [0, 1]", str(value.dtype), "bool")
        if name in expected and not same(as_numbers(value), as_numbers(expected[name].value), tolerance=1e-8):
            return Violation(
                f"{name} is not what its name says",
                numbers(value),
                numbers(expected[name].value),
                differing(value, expected[name].value),
            )
    return None


def as_numbers(values: Tensor) -> Tensor:
    """Flags as 0 and 1; numbers as they are."""
    return values if values.dtype.is_floating_point else values.double()

"""Compare two calls of a subject: the only place that decides when two runs are the same."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.sentinel.batch.case import Case
from trimtab.sentinel.binding.calling import Seen
from trimtab.sentinel.binding.sameness import SINGLE, same, same_gradient
from trimtab.sentinel.binding.subject import SIGNAL, Result
from trimtab.sentinel.invariants.declare import Compared, Effect, Grade, Violation, numbers
from trimtab.signal.layout import places

Index = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Match:
    """Which entries of two runs must be equal; None for all of them, in order.

    scalars  expected factor between a scalar of the second run and that of the first; None to leave scalars out
    """

    tokens: Index | None = None
    sequences: Index | None = None
    leaves: Index | None = None
    scalars: float | None = 1.0
    only: Callable[[str, Result], bool] = lambda _name, _result: True

    def index(self, result: Result) -> Index | None:
        return {"token": self.tokens, "sequence": self.sequences}.get(result.level)


def apart(
    what: str, first: Seen, second: Seen, match: Match | None = None, *, tolerance: float = 1e-9, grade: Grade = "bug"
) -> Violation | None:
    """The first difference between two runs, in values and then in gradients: `second` is what was observed."""
    match = match or Match()
    for name, result in first.results.items():
        if not match.only(name, result) or name not in second.values:
            continue
        if result.level == "scalar" and match.scalars is None:
            continue
        factor = match.scalars if result.level == "scalar" and match.scalars is not None else 1.0
        before, after = first.values[name], second.values[name]
        if result.level == "cell" and before.shape != after.shape:
            continue  # other padding or other rows give other cells
        index = match.index(result)
        if index is not None:
            before, after = before[index[0]], after[index[1]]
        if not same(before.double() * factor, after, tolerance=_precise(result, tolerance)):
            found = Compared(name, None, second.case, first.case, *_indices(index))
            return differing(f"{what} changes {name}", result, before.double() * factor, after, found, grade)
        violation = _gradients_apart(what, first, second, name, match, factor, tolerance, grade)
        if violation is not None:
            return violation
    return None


def _precise(result: Result, tolerance: float) -> float:
    single = result.value.dtype.is_floating_point and result.value.dtype != torch.float64
    # A number that .item() read from single precision does not show its dtype.
    single = single or (result.level == "scalar" and result.kind in ("metric", "statistic"))
    return max(tolerance, SINGLE) if single and tolerance else tolerance


def _gradients_apart(
    what: str, first: Seen, second: Seen, name: str, match: Match, factor: float, tolerance: float, grade: Grade
) -> Violation | None:
    if name not in first.gradients:
        return None
    result = first.results[name]
    if name in second.blocked:
        return None
    if name not in second.gradients:
        return Violation(f"{what} disconnects {name}", "no gradient", "a gradient, if only zero", grade=grade)
    # The gradient of a token result sums over all its tokens, so it is compared only where all of them are.
    if match.index(result) is not None and result.level != "scalar":
        return None
    for leaf, gradient in first.gradients[name].items():
        if leaf not in second.gradients[name]:
            continue
        before, after = gradient * factor, second.gradients[name][leaf]
        if match.leaves is not None:
            before, after = before[match.leaves[0]], after[match.leaves[1]]
        if not same_gradient(before, after, result, tolerance=tolerance):
            found = Compared(name, leaf, second.case, first.case, *_indices(match.leaves))
            return differing(f"{what} changes d {name} / d {leaf}", result, before, after, found, grade)
    return None


def _indices(index: Index | None) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    if index is None:
        return None, None
    after, before = (
        tuple(int(i) for i in one) if one.dtype != torch.bool else tuple(places(one)) for one in index[::-1]
    )
    return after, before


def differing(
    what: str,
    result: Result,
    expected: Tensor,
    observed: Tensor,
    compared: Compared | None = None,
    grade: Grade = "bug",
) -> Violation:
    """A violation from two tensors that should be equal, with the size of their difference."""
    where = positions(expected, observed)
    on = "gradient" if compared and compared.leaf else "decision" if result.kind in ("keep", "mask") else "value"
    if result.kind not in SIGNAL and on != "gradient":
        on = "metric" if result.kind in ("metric", "observation", "statistic") else "value"
    effect = Effect(on, where if result.level == "token" else (), relative_change(expected, observed))
    return Violation(what, numbers(observed), numbers(expected), where, grade, effect, compared)


def positions(first: Tensor, second: Tensor) -> tuple[int, ...]:
    """Entries at which two results differ."""
    if first.shape != second.shape or first.ndim != 1:
        return ()
    apart = ~torch.isclose(first.double(), second.double(), rtol=1e-9, atol=1e-9, equal_nan=True)
    return tuple(places(apart))


def relative_change(expected: Tensor, observed: Tensor) -> float | None:
    """The largest difference, in units of the largest expected number; as it is where 0 is expected everywhere."""
    if expected.shape != observed.shape or not expected.numel():
        return None
    gap = (expected.double() - observed.double()).abs().max()
    size = expected.double().abs().max()
    return float(gap / size) if bool(size > 0) else float(gap)


def trainable_leaves(first: Case, second: Case) -> Index:
    """The trainable tokens of both cases, among all tokens."""
    return first.trainable.nonzero().squeeze(1), second.trainable.nonzero().squeeze(1)

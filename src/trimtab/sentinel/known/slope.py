"""Whether a function that has the numbers of a formula also has its slope: what is detached too much, or too little."""

from contextlib import suppress

import torch
from torch import Tensor

from trimtab.sentinel.binding.calling import TRAINED, run
from trimtab.sentinel.binding.subject import Result, Subject
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.shaped import as_shaped
from trimtab.sentinel.known.token import Known

SLOPE = 1e-3
"""Largest difference, as a share of the largest slope."""
WRONG = "its numbers are right, but its gradient is another one: a part is detached that should not be, or is not"


def slope_apart(subject: Subject, name: str, known: Known, held: list[tuple[Cells, Result]]) -> bool:
    """Whether the gradient differs from that of the formula on several cases."""
    if not known.slopes or subject.stops_gradient:
        return False
    return sum(_differs(subject, name, known, cells, result) for cells, result in held) > 1


def _differs(subject: Subject, name: str, known: Known, cells: Cells, result: Result) -> bool:
    case = cells.case
    with suppress(Exception), torch.enable_grad():
        found = run(subject, case).gradients[name]
        leaves = [n for n in TRAINED if n in found and n in case.tokens]
        live = {n: case.tokens[n].detach().clone().requires_grad_() for n in leaves}
        expected = as_shaped(known, Cells(case.with_tokens(**live), live=True), result)
        if expected is None or not expected.requires_grad:
            return False
        # A coefficient stands before the whole.
        factor = float(result.value.double().sum() / expected.detach().sum())
        slopes = torch.autograd.grad(factor * expected.sum(), list(live.values()), materialize_grads=True)
        pairs = [
            (slope, found[n].double()) for n, slope in zip(leaves, slopes, strict=True) if bool((slope != 0).any())
        ]
        return not all(_close(slope, seen) for slope, seen in pairs)
    return False


def _close(first: Tensor, second: Tensor) -> bool:
    return float((first - second).abs().max()) <= SLOPE * float(first.abs().max())

"""How a trainer of preferences arranges a case: chosen and rejected sequences."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel import Case


def pairs(case: Case) -> list[tuple[int, int]]:
    """(chosen, rejected) rows, if the case has any."""
    if not case.pairs:
        raise case.cannot("no two sequences of a group have different rewards")
    return list(case.pairs)


def summed(name: str, which: int) -> Callable[[Case], Tensor]:
    """One sum of log-probs per pair: of the chosen (0) or the rejected (1) sequence, over its trained tokens."""

    def taken(case: Case) -> Tensor:
        masks = [one.bool() for one in case.list("trainable")]
        sums = [torch.where(m, x, 0.0).sum() for m, x in zip(masks, case.list(name), strict=True)]
        return torch.stack([sums[pair[which]] for pair in pairs(case)])

    return taken


def one_after_the_other(name: str, **view: Any) -> Callable[[Case], Tensor]:
    """[2 x pairs, width]: chosen, rejected, chosen, rejected, …"""
    return lambda case: case.padded(name, **view)[[row for pair in pairs(case) for row in pair]]

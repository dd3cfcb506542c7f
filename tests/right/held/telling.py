"""How twins are told apart whose values agree on whole batches."""

from collections.abc import Callable
from typing import Any

import torch

from trimtab.sentinel import Subject
from trimtab.sentinel.batch.directed import directed
from trimtab.sentinel.binding.calling import TRAINED, run

Differs = Callable[[Any, Any], bool]


def slopes_differ(bound: Callable[[Any], Subject], result: str = "loss") -> Differs:
    """Whether the gradients of two versions differ on a ragged batch."""

    def differs(right: Any, wrong: Any) -> bool:
        case = next(iter(directed()))
        seen = [run(bound(fn), case).gradients.get(result, {}) for fn in (right, wrong)]
        return any(
            leaf in one and (leaf not in seen[1] or not torch.allclose(one[leaf], seen[1][leaf]))
            for one in seen[:1]
            for leaf in TRAINED
        )

    return differs


def parts_differ(bound: Callable[[Any], Subject], result: str = "loss") -> Differs:
    """Whether two versions differ on a micro-batch: the first row of a ragged batch."""

    def differs(right: Any, wrong: Any) -> bool:
        part = next(iter(directed())).taken([0], as_part=True)
        first, second = (run(bound(fn), part).values[result] for fn in (right, wrong))
        return not torch.allclose(first, second)

    return differs

"""Losses over pairs of a chosen and a rejected answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from trimtab.sentinel.known import bounds
from trimtab.sentinel.known.cells import Cells
from trimtab.sentinel.known.token import Known, Values

Margin = Callable[[Cells], Tensor]
"""One number per pair: by how much the chosen answer is preferred."""


def losses(
    inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float], *, by_position: bool
) -> Iterator[Known]:
    """One number per pair and their mean.

    `by_position`: the pairs are rows two by two, chosen first; else the best and the worst answer of each group.
    """
    for told, margin in _margins(inputs, numbers, named, by_position=by_position):
        for name, of in _of_margin(numbers, named):
            yield Known(f"mean over pairs of {name}, {told}", lambda c, f=of, m=margin: f(m(c)).mean())
            yield Known(f"sum over pairs of {name}, {told}", lambda c, f=of, m=margin: f(m(c)).sum())
            yield Known(f"{name}, {told}", lambda c, f=of, m=margin: f(m(c)))


def _margins(
    inputs: frozenset[str], numbers: Sequence[float], named: Mapping[str, float], *, by_position: bool
) -> Iterator[tuple[str, Margin]]:
    def rows(c: Cells) -> tuple[list[int], list[int]]:
        if by_position:
            return list(range(0, len(c.mask), 2)), list(range(1, len(c.mask), 2))
        return [first for first, _ in c.case.pairs], [second for _, second in c.case.pairs]

    def summed(c: Cells) -> Tensor:
        gap = c.gap("logp_current", "logp_ref") if "logp_ref" in inputs else c["logp_current"]
        return (gap * c.mask).sum(1)

    sizes: tuple[tuple[str, Values], ...] = (("of sums", summed), ("of means", lambda c: summed(c) / c.count))
    betas = bounds.called(named, "beta", "coef", "scale") or [n for n in numbers if n > 0] or [1.0]
    for told, of in sizes:
        for beta in betas:

            def apart(c: Cells, f: Values = of, b: float = beta) -> Tensor:
                first, second = rows(c)
                found = b * (f(c)[first] - f(c)[second])
                if not bool((found != 0).any()):
                    raise ValueError("nothing is preferred, so this says nothing about a loss")
                return found

            yield f"{beta:g} × difference {told}", apart
            for gamma in dict.fromkeys(n for n in numbers if n > 0):
                yield f"{beta:g} × difference {told} minus {gamma:g}", lambda c, f=apart, g=gamma: f(c) - g
                yield (
                    f"{beta:g} × (difference {told} minus {gamma:g})",
                    lambda c, f=apart, g=gamma, b=beta: f(c) - b * g,
                )


def _of_margin(
    numbers: Sequence[float], named: Mapping[str, float]
) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    yield "minus log-sigmoid", lambda x: -functional.logsigmoid(x)
    yield "hinge", lambda x: torch.relu(1 - x)
    for share in bounds.called(named, "smoothing", "smooth", "label", "eps"):

        def smoothed(x: Tensor, s: float = share) -> Tensor:
            return -(1 - s) * functional.logsigmoid(x) - s * functional.logsigmoid(-x)

        yield f"minus log-sigmoid, smoothed by {share:g}", smoothed
        yield f"minus log-sigmoid, robust to {share:g}", lambda x, f=smoothed, s=share: _robust(x, s)
    for tau in (n for n in numbers if n > 0):  # the margin carries a factor already
        yield f"squared distance to 1 / (2 × {tau:g})", lambda x, t=tau: (x / t - 1 / (2 * t)) ** 2
        yield f"squared distance to 1 / (2 × {tau:g}), unscaled", lambda x, t=tau: (x - 1 / (2 * t)) ** 2
    yield "squared distance to 1 / 2", lambda x: (x - 0.5) ** 2


def _robust(x: Tensor, share: float) -> Tensor:
    """Unbiased where a share of the labels is flipped (cDPO turned around)."""
    plain, flipped = -functional.logsigmoid(x), -functional.logsigmoid(-x)
    return ((1 - share) * plain - share * flipped) / (1 - 2 * share)

"""How numbers per cell become one number: the averages in use, and the ones that people get by mistake."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trimtab.sentinel.known.cells import Cells

Reduce = Callable[[Cells, Tensor], Tensor]


@dataclass(frozen=True)
class Average:
    """A way to average; `mistake` says what is wrong with it, and is empty where nothing is."""

    name: str
    of: Reduce
    mistake: str = ""


def _over_rows(c: Cells, per_row: Tensor, *, filled: bool) -> Tensor:
    rows = (c.mask.sum(1) > 0).sum().clamp(min=1) if filled else torch.tensor(float(c.mask.shape[0]))
    return per_row.sum() / rows


def _row_means(c: Cells, x: Tensor) -> Tensor:
    return (x * c.mask).sum(1) / c.count


def _total(c: Cells, x: Tensor) -> Tensor:
    return (x * c.mask).sum()


def _tokens(c: Cells) -> Tensor:
    return c.mask.sum().clamp(min=1)


AVERAGES: tuple[Average, ...] = (
    Average("token mean", lambda c, x: _total(c, x) / _tokens(c)),
    Average("mean over sequences of their token means", lambda c, x: _over_rows(c, _row_means(c, x), filled=True)),
    Average("mean over all rows of their token means", lambda c, x: _over_rows(c, _row_means(c, x), filled=False)),
    Average("token sum", _total),
    Average("mean over sequences of their token sums", lambda c, x: _over_rows(c, (x * c.mask).sum(1), filled=True)),
    Average("mean over all rows of their token sums", lambda c, x: _over_rows(c, (x * c.mask).sum(1), filled=False)),
    Average("sum over sequences of their token means", lambda c, x: _row_means(c, x).sum()),
    Average(
        "token sum over the number of cells", lambda c, x: _total(c, x) / max(x.numel(), 1),
        "the sum is divided by the number of cells, padding included",
    ),
    Average(
        "mean over every cell", lambda c, x: x.mean(), "the mean runs over every cell, padding included",
    ),
    Average(
        "mean over every token after the prompt", lambda c, x: (x * c.response).sum() / c.response.sum().clamp(min=1),
        "tokens that do not train are averaged in",
    ),
    Average(
        "token sum over every token after the prompt", lambda c, x: _total(c, x) / c.response.sum().clamp(min=1),
        "the count contains tokens that do not train",
    ),
    Average(
        "mean over rows of sums over their whole length",
        lambda c, x: _over_rows(c, (x * c.mask).sum(1) / c.response.sum(1).clamp(min=1), filled=False),
        "each sequence is divided by its whole length, tokens that do not train included",
    ),
    Average(
        "sum over rows of sums over their whole length",
        lambda c, x: ((x * c.mask).sum(1) / c.response.sum(1).clamp(min=1)).sum(),
        "each sequence is divided by its whole length, tokens that do not train included",
    ),
    Average(
        "token mean divided by the number of rows", lambda c, x: _total(c, x) / _tokens(c) / x.shape[0],
        "the token mean is divided by the number of rows once more",
    ),
    Average(
        "mean over rows of sums over all tokens",
        lambda c, x: ((x * c.mask).sum(1) / _tokens(c)).mean(),
        "each row is divided by the count of the whole batch, and by the number of rows once more",
    ),
)  # fmt: skip


def every_average(c: Cells, formula: Any) -> Tensor:
    """All `AVERAGES` of a formula at once: each of them is a weighted sum of the cells."""
    return c.of_formula(formula, "averages", lambda x: _weights(c) @ x.reshape(-1))


def _weights(c: Cells) -> Tensor:
    """The weight of each cell in each of the averages, [averages, cells]. It depends on the shape of a case alone."""
    shape = (c.case.kinds, c.case.extra_columns)
    if shape not in _WEIGHTS:
        with torch.enable_grad():
            x = torch.zeros_like(c.mask, requires_grad=True)
            _WEIGHTS[shape] = torch.stack([torch.autograd.grad(one.of(c, x), x)[0].reshape(-1) for one in AVERAGES])
    return _WEIGHTS[shape]


_WEIGHTS: dict[object, Tensor] = {}


PLACES = {one.name: i for i, one in enumerate(AVERAGES)}


def with_constant(constant: float) -> tuple[Average, ...]:
    """Averages that divide by a number among the settings, such as the largest length."""
    shown = f"{constant:g}"
    return (
        Average(
            f"mean over all rows of their token sums over {shown}",
            lambda c, x: _over_rows(c, (x * c.mask).sum(1) / constant, filled=False),
        ),
        Average(f"token sum over {shown}", lambda c, x: _total(c, x) / constant),
        Average(
            f"token mean over {shown}", lambda c, x: _total(c, x) / _tokens(c) / constant,
            "it is divided by a constant as well as by the number of tokens",
        ),
        Average(
            f"mean over rows of token means over {shown}",
            lambda c, x: _over_rows(c, _row_means(c, x), filled=False) / constant,
            "it is divided by a constant as well as by the number of tokens",
        ),
        Average(
            f"token mean over {shown} and the rows", lambda c, x: _total(c, x) / _tokens(c) / constant / x.shape[0],
            "it is divided by a constant as well as by the number of tokens",
        ),
    )  # fmt: skip


ROW_AVERAGES: tuple[Average, ...] = (
    Average("token mean of each sequence", _row_means),
    Average("token sum of each sequence", lambda c, x: (x * c.mask).sum(1)),
    Average("token sum of each sequence over all tokens", lambda c, x: (x * c.mask).sum(1) / _tokens(c),
            "each row is divided by the count of the whole batch"),
    Average("token sum of each sequence over the width", lambda c, x: (x * c.mask).sum(1) / x.shape[1],
            "each row is divided by the padded width"),
    Average("mean of each row", lambda c, x: x.mean(1), "the mean runs over every cell of a row, padding included"),
    Average("token sum of each sequence over its whole length",
            lambda c, x: (x * c.mask).sum(1) / c.response.sum(1).clamp(min=1),
            "each sequence is divided by its whole length, tokens that do not train included"),
)  # fmt: skip
"""One number per sequence."""


def _inside(c: Cells, x: Tensor) -> Tensor:
    return x[c.mask > 0]


EXTREMES: tuple[Average, ...] = (
    Average("maximum", lambda c, x: _inside(c, x).max()),
    Average("minimum", lambda c, x: _inside(c, x).min()),
    Average("standard deviation", lambda c, x: _inside(c, x).std(correction=0)),
    Average("standard deviation, n - 1", lambda c, x: _inside(c, x).std(correction=1)),
    Average("maximum over every cell", lambda c, x: x.max(), "masked cells are looked at as well"),
    Average("minimum over every cell", lambda c, x: x.min(), "masked cells are looked at as well"),
    Average("maximum of masked values", lambda c, x: (x * c.mask).max(), "a masked cell counts as 0"),
    Average("minimum of masked values", lambda c, x: (x * c.mask).min(), "a masked cell counts as 0"),
)

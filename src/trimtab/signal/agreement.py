"""Metrics of two numbers at once, which merge: how far one follows another, and how large one is beside another."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trimtab.signal.tensors import Number


class Agreement(NamedTuple):
    """Moments of pairs (x, y), merged as Chan et al. 1979 do.

    correlation: Pearson's, of x and y. explained: the share of the variance of x that y explains,
    1 - var(x - y) / var(x); below 0, y is worse than the mean of x. Without variance there is neither.
    """

    count: Number  # pyright: ignore[reportIncompatibleMethodOverride] - no tuple.count is meant
    mean_x: Number
    mean_y: Number
    m2_x: Number
    m2_y: Number
    joint: Number
    """Sum of the products of x and y around their means."""
    reads: Literal["correlation", "explained"]

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, reads: Literal["correlation", "explained"], among: Tensor | None = None
    ) -> "Agreement":
        first, second = (v.detach().double() if among is None else v.detach().double()[among] for v in (x, y))
        count = first.new_full((), first.numel())
        mean_x, mean_y = _over(first.sum(), count), _over(second.sum(), count)
        apart_x, apart_y = first - mean_x, second - mean_y
        products = apart_x @ apart_x, apart_y @ apart_y, apart_x @ apart_y
        return cls(count, mean_x, mean_y, *products, reads)

    def merge(self, other: "Agreement") -> "Agreement":
        count = self.count + other.count
        share = _over(other.count, count)
        dx, dy, size = other.mean_x - self.mean_x, other.mean_y - self.mean_y, self.count * share
        return Agreement(
            count, self.mean_x + dx * share, self.mean_y + dy * share,
            self.m2_x + other.m2_x + dx * dx * size, self.m2_y + other.m2_y + dy * dy * size,
            self.joint + other.joint + dx * dy * size, self.reads,
        )  # fmt: skip

    def value(self) -> tuple[Number, "bool | Tensor"]:
        """The number, and whether there is one."""
        if self.reads == "explained":
            return 1 - _over(self.m2_x + self.m2_y - 2 * self.joint, self.m2_x), self.m2_x > 0
        product = self.m2_x * self.m2_y
        root = torch.sqrt(product) if isinstance(product, Tensor) else math.sqrt(product)
        return _over(self.joint, root), product > 0


class Quotient(NamedTuple):
    """The sum of one over the sum of another."""

    total: Number
    over: Number

    @classmethod
    def of(cls, values: Tensor, over: Tensor) -> "Quotient":
        return cls(values.detach().double().sum(), over.detach().double().sum())

    def merge(self, other: "Quotient") -> "Quotient":
        return Quotient(self.total + other.total, self.over + other.over)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return _over(self.total, self.over), self.over > 0


def _over(value: Number, divisor: Number) -> Number:
    """A quotient, 0 where nothing is to be divided by."""
    if isinstance(divisor, Tensor):
        return torch.where(divisor > 0, value / divisor, 0.0)
    return value / divisor if divisor > 0 else 0.0

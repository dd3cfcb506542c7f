"""Kinds of metrics: the only place that knows how a number from one part of a batch joins the number from another.

A metric is a sum with its count, an extremum, or moments: plain numbers where they are at hand, tensors where they are
on another device. Whatever the split, merging gives what the unsplit batch would have given. Metrics of pairs of
numbers are in agreement.py.
"""

import math
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from trimtab.signal.agreement import Agreement, Quotient
from trimtab.signal.tensors import Array, Number


class Mean(NamedTuple):
    """total / count. `absent`: leave it out when there is nothing to average; a fraction of nothing is 0 instead."""

    total: Number
    count: Number  # pyright: ignore[reportIncompatibleMethodOverride] - no tuple.count is meant
    absent: bool = True

    @classmethod
    def of(cls, values: Array, among: Array | None = None) -> "Mean":
        """Mean of the values, or of those chosen by the flags `among`."""
        return cls(*_sums(values, among))

    @classmethod
    def fraction(cls, flags: Array, among: Array | None = None) -> "Mean":
        """Share of true flags, among all or among those chosen."""
        return cls(*_sums(flags, among), absent=False)

    def merge(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count, self.absent)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        """The number, and whether there is one."""
        return self.total / larger(self.count, 1.0), self.count > 0 if self.absent else True


class Sum(NamedTuple):
    """A plain sum: counts, and weighted losses."""

    total: Number

    @classmethod
    def of(cls, values: Tensor) -> "Sum":
        return cls(_sums(values, None)[0])

    def merge(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return self.total, True


class Extremum(NamedTuple):
    """The largest value (sign = 1) or the smallest (sign = -1)."""

    extreme: Number
    sign: int

    @classmethod
    def of(cls, values: Tensor, sign: int, among: Tensor | None = None) -> "Extremum":
        signed = sign * values.detach().double()
        if among is not None:
            signed = torch.where(among, signed, torch.full_like(signed, -torch.inf))
        return cls(signed.max() if signed.numel() else signed.new_full((), -torch.inf), sign)

    def merge(self, other: "Extremum") -> "Extremum":
        return Extremum(larger(self.extreme, other.extreme), self.sign)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return self.sign * self.extreme, self.extreme != -math.inf


class Spread(NamedTuple):
    """Standard deviation (ddof 0) from count, mean and M2; merged as Chan et al. 1979 do, without cancellation."""

    count: Number  # pyright: ignore[reportIncompatibleMethodOverride] - no tuple.count is meant
    mean: Number
    m2: Number

    @classmethod
    def of(cls, values: Array, among: Array | None = None) -> "Spread":
        return cls(*moments(values, among)[1:])

    def merge(self, other: "Spread") -> "Spread":
        count = self.count + other.count
        delta, share = other.mean - self.mean, other.count / larger(count, 1.0)
        return Spread(count, self.mean + delta * share, self.m2 + other.m2 + delta * delta * self.count * share)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return (self.m2 / larger(self.count, 1.0)) ** 0.5, self.count > 0


class SampleSize(NamedTuple):
    """Effective sample size as a share: (sum w)^2 / (n * sum w^2); 1 when all weights agree, 1/n when one has all."""

    total: Number
    square: Number
    count: Number  # pyright: ignore[reportIncompatibleMethodOverride] - no tuple.count is meant

    @classmethod
    def of(cls, weights: Tensor, among: Tensor | None = None) -> "SampleSize":
        total, count = _sums(weights, among)
        return cls(total, _sums(weights.double().square(), among)[0], count)

    def merge(self, other: "SampleSize") -> "SampleSize":
        return SampleSize(self.total + other.total, self.square + other.square, self.count + other.count)

    def value(self) -> tuple[Number, "bool | Tensor"]:
        return self.total * self.total / larger(self.count * self.square, 1e-300), self.count > 0


Metric = Mean | Sum | Extremum | Spread | SampleSize | Agreement | Quotient


def moments(values: Array, among: Array | None = None) -> tuple[Number, Number, Number, Number]:
    """Sum, count, mean, and the sum of squares around the mean, of what is chosen."""
    total, count = _sums(values, among)
    mean = total / larger(count, 1.0)
    exact = cast("Array", values.astype(np.float64) if isinstance(values, np.ndarray) else values.double())
    return total, count, mean, _sums((exact - mean) ** 2, among)[0]


def _sums(values: Array, among: Array | None) -> tuple[Number, Number]:
    """The sum of what is chosen, and how much that is."""
    if isinstance(values, np.ndarray):
        return _plain_sums(values, among)
    whole = values.new_full((), values.numel(), dtype=torch.float64)
    count = whole if among is None else among.count_nonzero().double()
    if values.dtype == torch.bool:
        return (values if among is None else values & among).count_nonzero().double(), count
    exact = values.detach().double()
    if among is not None:
        exact = torch.where(among, exact, 0.0)
    return exact.sum(), count


def _plain_sums(values: Array, among: Array | None) -> tuple[float, float]:
    count = float(values.size if among is None else np.count_nonzero(among))
    if values.dtype == np.bool_:
        return float(np.count_nonzero(values if among is None else values & among)), count
    exact = values.astype(np.float64)
    return float((exact if among is None else np.where(among, exact, 0.0)).sum()), count


def larger(first: Number, second: Number) -> Number:
    """The larger of two; not a number, if the first is none."""
    if isinstance(first, Tensor):
        return torch.maximum(first, second) if isinstance(second, Tensor) else first.clamp(min=second)
    return second.clamp(min=first) if isinstance(second, Tensor) else max(first, second)

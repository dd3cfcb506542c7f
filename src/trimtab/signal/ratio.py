"""One ratio of two policies: the only place that walks over its tokens. Whoever asks twice gets the same answer.

Stages ask for sums and extremes per sequence, losses for the ratio itself, metrics for a few sums over tokens. Sums are
taken in float64: beside a large number, the small ones of float32 would vanish.
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from trimtab.signal.histogram import Histogram
from trimtab.signal.layout import PerToken, Segments
from trimtab.signal.once import once
from trimtab.signal.reduce import LOG_BOUND, bounded_exp, extremes_of, sum_of
from trimtab.signal.tensors import Array, Number, as_plain, as_torch, between, host, is_plain, read_if_plain

BLOCK = 2**19
"""Tokens that are walked over together, so that what is needed on the way stays small."""


EXACT_RATIO, EXACT_TOTAL = "exact:ratio_engine", "exact:logratio_engine"
"""Names of the fields that carry ratio_engine from `prepare` to `token_loss`."""
LOG2_E = math.log2(math.e)
WIDE = 1e-4
"""A variance above this share of the squared mean is the difference of two sums; below, too many digits cancel."""


@dataclass(frozen=True)
class RatioSums:
    """A ratio in a few sums over its tokens, in float64: everything that is measured of it is made of these."""

    far: Number
    """Sum of |log-ratio|."""
    low: Number
    """The smallest log-ratio, inf of nothing."""
    high: Number
    moved: Number
    """Sum of ratio - 1."""
    around: Number
    """Sum of the squares of the ratio around its mean."""


class Exact(NamedTuple):
    """A ratio in float64, none of whose log-ratios was bounded, and the sum of these over each sequence."""

    value: Tensor
    total: Array


class Ratio:
    """logratio = later - earlier policy, at every token; ratio = exp of it, bounded."""

    def __init__(
        self,
        logratio: PerToken | Callable[[], PerToken],
        segments: Segments,
        *,
        is_factor: bool = False,
        factors: "tuple[Ratio, Exact] | None" = None,
    ) -> None:
        """`is_factor`: what was computed in float64 is kept for the product with another; `factors`: whose product
        this is."""
        self._given: PerToken | Callable[[], PerToken] = logratio
        self.segments: Segments = segments
        self._is_factor: bool = is_factor
        self._factors: tuple[Ratio, Exact] | None = factors
        self._value: PerToken | None = None

    @once
    def logratio(self) -> PerToken:
        """Made when somebody asks for it, and let go by `forget`."""
        given = self._given
        return (given if isinstance(given, Tensor) else given()).detach()

    @property
    def dtype(self) -> torch.dtype:
        return self.logratio.dtype

    def forget(self) -> None:
        """Let go of the tokens; what was asked for stays."""
        for name in ("logratio", "exact"):
            _ = self.__dict__.pop(name, None)

    def measure(self) -> None:
        """Ask now for what metrics need of the tokens, and let go of these."""
        _ = self.histogram, self.sums
        self.forget()

    @once
    def total(self) -> Array:
        """The sum over each sequence: the log of the product of its ratios."""
        if self._factors is not None:
            return self._factors[0].total + self._factors[1].total
        exact = _doubled(self.logratio)
        if exact.numel() <= BLOCK:
            self.__dict__["exact"] = exact  # for the walk
        return sum_of(exact, self.segments)

    @once
    def mean(self) -> Array:
        """The mean over each sequence, 0 for one without tokens: the log of the geometric mean of its ratios."""
        return self.total / between(self.segments.measures[:, 0], 1, None)

    @once
    def extremes(self) -> tuple[Array, Array]:
        """The smallest and the largest log-ratio of each sequence."""
        return extremes_of(self.logratio, self.segments)

    @once
    def histogram(self) -> Histogram:
        return Histogram.of(self.logratio)

    @once
    def sums(self) -> RatioSums:
        return self._walk(None)

    def exact(self) -> "Exact | None":
        """What a product with another ratio is made of; once, and only if it was asked for and nothing was bounded."""
        value, self._value = self._value, None
        return None if value is None else Exact(value, self.total)

    def value(self, *, sums_too: bool = True) -> PerToken:
        """The ratio itself; with its sums, both take one walk."""
        if not sums_too:
            return bounded_exp(self.logratio)
        value = torch.empty_like(self.logratio)
        self.__dict__["sums"] = self._walk(value)
        return value

    @once
    def is_within(self) -> bool:
        """No log-ratio is beyond its bound, as far as that can be seen without waiting for a device."""
        low, high = self._bounds
        return isinstance(low, float) and low >= -LOG_BOUND and cast("float", high) <= LOG_BOUND

    @property
    def inside(self) -> PerToken | None:
        """1 where a log-ratio is not beyond its bound, so that its gradient passes, 0 elsewhere; None if none is."""
        return None if self.is_within else self.logratio.abs().le_(LOG_BOUND)

    @once
    def _bounds(self) -> tuple[Number, Number]:
        if not self.logratio.numel():
            return float("inf"), -float("inf")
        if "extremes" in self.__dict__:
            low, high = self.extremes
            return as_plain(low.min()), as_plain(high.max())
        low, high = torch.aminmax(self.logratio)
        return read_if_plain(low), read_if_plain(high)

    def _walk(self, value: PerToken | None) -> RatioSums:
        """Block after block, in place: the log-ratio, then the ratio."""
        count = self.logratio.numel()
        size = BLOCK if is_plain(self.logratio) else sys.maxsize
        is_one = count <= size
        far, moved, around, done = 0.0, 0.0, 0.0, 0
        for start in range(0, count, size):
            block = self.logratio[start : start + size]
            held = self.__dict__.pop("exact", None)
            num = block.numel()
            spare = value if is_one else None  # its memory is at hand, and is written later
            far += read_if_plain(torch.abs(block, out=spare).sum())  # nothing cancels: the log-ratio's digits suffice
            exact = self._product() if value is None and is_one else None
            if exact is None:
                exact = _doubled(block) if held is None else held
                if is_one and "total" not in self.__dict__:  # while it is at hand
                    self.__dict__["total"] = sum_of(exact, self.segments)
                exact = exact if self.is_within else exact.clamp_(-LOG_BOUND, LOG_BOUND)
                # exp2 is a third faster, and where float32 is asked for, nobody sees its last bit.
                is_rounded = value is None or value.dtype != exact.dtype
                _ = exact.mul_(LOG2_E).exp2_() if is_rounded else exact.exp_()
            if value is not None:
                _ = value[start : start + size].copy_(exact)
            here = read_if_plain(exact.sum()) - num
            # What lies between this block and those before it: Chan et al. 1979.
            apart = (here / num - moved / done) ** 2 * (num * done / (num + done)) if done else 0.0
            around += _around_mean(exact, 1 + here / num) + apart
            moved, done = moved + here, done + num
            if self._is_factor and is_one and self.is_within:
                self._value = exact
        return RatioSums(far, *self._bounds, moved, around)

    def _product(self) -> Tensor | None:
        """The ratio as the product of its factors, which takes no exponential; None where one of them was bounded."""
        if self._factors is None or not self.is_within:
            return None
        first, second = self._factors
        held = first.exact()
        return None if held is None else held.value.mul_(second.value)


def _doubled(values: Tensor) -> Tensor:
    """A copy in float64."""
    return values.clone() if values.dtype == torch.float64 else values.double()


def _around_mean(ratio: Tensor, mean: Number) -> Number:
    """The sum of squares around the mean."""
    if isinstance(mean, float):
        squares, count = read_if_plain(torch.dot(ratio, ratio)), ratio.numel()
        around = cast("float", squares) - count * mean * mean
        if around > WIDE * count * mean * mean:  # of 16 digits, 12 are left
            return around
    apart = ratio - mean
    return read_if_plain(torch.dot(apart, apart))


def bounded_factor(exponent: Array) -> Array:
    """`bounded_exp` of an array: torch's own exponential, so that a shortcut decides as the formula does."""
    return host(bounded_exp(as_torch(exponent)))
